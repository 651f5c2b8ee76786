"""`oneloop check`: what it says of a script, line by line."""

import json
from pathlib import Path

import pytest

from oneloop.cli.main import main
from oneloop.compat.check import arguments
from oneloop.compat.check.findings import ANSWERS
from oneloop.compat.check.script import check
from tests.compat import plans

HERE = Path(__file__).parent
SCRIPT = """\
import accelerate
import transformers as tf
from transformers import Trainer as T, TrainingArguments as TA, TrainerCallback, Seq2SeqTrainingArguments
from transformers.trainer_utils import get_last_checkpoint
from transformers.sagemaker import SageMakerTrainer
from helper import Derived

more = {"a": 1}
class Mine(Derived):
    extra = 1
    def compute_loss(self, model, inputs, return_outputs=False):
        self.mine = self.extra
        print(self.mine, self.beside, self.nothing, self.accelerator.save_state, self.args.bogus, self.args.own)
        return super().compute_loss(model, inputs, return_outputs)
    def _inner_training_loop(self, *args, **kwargs):
        return super()._inner_training_loop()
    def _run_epoch(self, checkpoint):
        self._helper()
    def _helper(self):
        pass
class Told(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        pass
    def on_something(self, args, state, control, **kwargs):
        pass
args = TA(
    "out",
    evaluation_strategy="steps",
    learning_rate=rate,
    tf32=True,
    save_safetensors=False,
    gradient_accumulation_steps=4,
    leraning_rate=2,
    pipeline_parallel_degree=2,
    predict_with_generate=True,
    optim="adamw_torch",
    report_to="none",
    **more,
)
wrong = tf.TrainingArguments(output_dir="o", num_train_epochs=-3)
seq2seq = Seq2SeqTrainingArguments("out", predict_with_generate=True, gradient_accumulation_steps=1)
trainer = Mine(model, args, beside=1, tokenizer=2)
other = T(model, args, None, None, None, None, None, None, network=1)
trainer.train()
trainer._finalize_training(3)
trainer.accelerator.backward(1)
trainer.accelerator.profile
args.world_size
args.nothing
"""
HELPER = """\
from dataclasses import dataclass
from transformers import Trainer, TrainingArguments

@dataclass
class Own(TrainingArguments):
    own: int = 1

class Derived(Trainer):
    def __init__(self, *args, beside=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.beside = beside
    def log(self, logs):
        super().log(logs)
"""
EXPECTED = {
    (1, "accelerate"): ("unseen", "not redirected"),
    (3, "Trainer"): ("works", "from oneloop"),
    (3, "TrainingArguments"): ("works", "from oneloop"),
    (4, "get_last_checkpoint"): ("works", "from oneloop"),
    (5, "SageMakerTrainer"): ("refused", "no backend"),
    (11, "compute_loss"): ("works", "called without num_items_in_batch"),
    (13, "self.nothing"): ("refused", "no such attribute"),
    (13, "accelerator.save_state"): ("refused", "no such attribute"),
    (13, "args.bogus"): ("refused", "no such attribute"),
    (15, "_inner_training_loop"): ("works", ""),
    (17, "_run_epoch"): ("changes", "never calls it; override training_step"),
    (22, "on_step_end"): ("works", ""),
    (24, "on_something"): ("changes", "never called"),
    (28, "evaluation_strategy"): ("maps", "eval_strategy"),
    (29, "learning_rate"): ("works", ""),
    (30, "tf32"): ("depends", "on cpu, mps, xpu, npu"),
    (31, "save_safetensors"): ("refused", "never written as pickles"),
    (32, "gradient_accumulation_steps"): ("changes", "undivided batch"),
    (33, "leraning_rate"): ("refused", "did you mean 'learning_rate'?"),
    (34, "pipeline_parallel_degree"): ("refused", "model parallelism is not supported"),
    (35, "predict_with_generate"): ("refused", "belongs to Seq2SeqTrainingArguments"),
    (36, "optim"): ("works", ""),
    (37, "report_to"): ("works", ""),
    (38, "**more"): ("unseen", "not checked"),
    (40, "output_dir"): ("works", ""),
    (40, "num_train_epochs"): ("works", ""),
    (40, "together"): ("refused", "Invalid num_train_epochs=-3.0: expected"),
    (41, "predict_with_generate"): ("works", ""),
    (41, "gradient_accumulation_steps"): ("works", ""),
    (42, "beside"): ("works", ""),
    (42, "tokenizer"): ("maps", "processing_class"),
    (43, "Trainer(...)"): ("refused", "pass the others by name"),
    (43, "network"): ("refused", "no such argument"),
    (45, "trainer._finalize_training"): ("refused", "no such attribute"),
    (47, "accelerator.profile"): ("refused", "no such attribute"),
    (49, "args.nothing"): ("refused", "no such attribute"),
}


@pytest.fixture
def script(tmp_path):
    (tmp_path / "helper.py").write_text(HELPER)
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def test_a_loop_of_its_own_is_never_called(tmp_path):
    """One that calls super() is: see the script above."""
    path = tmp_path / "own.py"
    path.write_text(
        "from transformers import Trainer\n"
        "class Own(Trainer):\n"
        "    def _inner_training_loop(self, *args, **kwargs):\n"
        "        return self.state\n"
    )
    (found,) = [each for each in check(str(path))[0] if each.name == "_inner_training_loop"]
    assert found.answer == "changes" and "never calls it; override training_step" in found.text


def test_every_line_of_a_script(script):
    found, libraries, framework = check(str(script))
    mine = {(each.line, each.name): each for each in found if each.file == str(script)}
    seen = {place: (each.answer, each.text) for place, each in mine.items()}
    unexpected = {place: said for place, said in seen.items() if place not in EXPECTED}
    assert {name for _, name in unexpected} <= {"TrainerCallback", "Seq2SeqTrainingArguments"}, unexpected
    for place, (answer, words) in EXPECTED.items():
        assert seen[place][0] == answer and words in seen[place][1], (place, seen[place])
    assert (libraries, framework) == (["transformers"], "torch")
    assert {each.answer for each in found} <= set(ANSWERS)


def test_modules_beside_it_are_read_too(script):
    found, _, _ = check(str(script))
    helper = {each.name: each for each in found if Path(each.file).name == "helper.py"}
    assert helper["Trainer"].answer == "works"
    assert (helper["log"].answer, helper["log"].text) == ("works", "called without start_time")


def test_overrides_that_take_any_arguments_lack_none(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "from transformers import Trainer\n"
        "class Own(Trainer):\n"
        "    def log(self, logs, *more): pass\n"
        "    def compute_loss(self, model, inputs, **more): pass\n"
    )
    found, _, _ = check(str(script))
    assert {each.name: each.text for each in found if each.kind == "method"} == {"log": "", "compute_loss": ""}


def test_the_last_of_two_options_counts():
    words = ["--fp16_backend", "apex", "--seed=3", "--fp16-backend", "auto", "--seed", "4", "5"]
    assert arguments._words_of("fp16_backend", words) == ["auto"]
    assert arguments._words_of("seed", words) == ["4", "5"]


@pytest.mark.parametrize("name", plans.COMMANDS)
def test_scripts_that_run_are_not_refused(name):
    path, *words = plans.command(name)
    found, libraries, framework = check(path, [] if name == "json" else words)
    assert [each for each in found if each.answer == "refused"] == []
    assert not any(each.name == "Trainer" and each.answer == "unseen" for each in found)
    expected = {
        "paddle": ["paddlenlp"],
        "ernie": ["paddlenlp"],
        "mindspore": ["mindnlp"],
        "mindnlp_pipelines": ["mindnlp"],
    }
    both = ["transformers", "mindnlp"] if name.startswith("mindnlp") else ["transformers"]
    assert libraries == expected.get(name, both)
    assert (framework == "mindtorch") == name.startswith("mindnlp")


def command_line(script, *words):
    found, _, _ = check(str(script), words)
    return {each.name: (each.answer, each.text) for each in found if each.file == "command line"}


def test_the_command_line(script):
    words = (
        "--do_train --evaluation_strategy epoch --fp16 --use_ipex True --own 3 --bogus 3 --pipeline_parallel_degree 4"
    )
    said = command_line(script, *words.split(), "--label_names", "a", "b", "--lr_scheduler_type=cosine")
    assert said["do_train"] == said["lr_scheduler_type"] == said["label_names"] == ("works", "")
    assert said["evaluation_strategy"] == ("maps", "eval_strategy")
    assert said["use_ipex"][0] == said["pipeline_parallel_degree"][0] == "refused"
    anyway = "--enable_auto_parallel false --unified_checkpoint true --pipeline-parallel-degree=-1 --wandb_api_key a"
    said |= command_line(script, *anyway.split())
    assert {said[name] for name in ("enable_auto_parallel", "unified_checkpoint", "pipeline_parallel_degree")} == {
        ("works", "")
    }
    assert said["wandb_api_key"][0] == "refused"
    odd = command_line(script, "--pipeline_parallel_degree", "many", "--unified_checkpoint", "--amp_master_grad")
    assert [odd[name][0] for name in ("pipeline_parallel_degree", "unified_checkpoint", "amp_master_grad")] == [
        "refused",
        "works",
        "refused",
    ]
    assert said["own"] == ("works", "a field of the script")
    assert said["bogus"][0] == "unseen"


def test_an_alias_that_converts_its_value_says_what_it_sets(script):
    assert command_line(script, "--use_cpu", "true")["use_cpu"] == ("maps", 'True sets device="cpu"')


def test_a_command_line_that_contradicts_itself(script):
    said = command_line(script, "--max_steps", "many")
    assert said == {"together": ("refused", said["together"][1])} and "max_steps" in said["together"][1]
    said = command_line(script, "--evaluation_strategy", "epoch", "--eval_strategy", "no")
    assert (
        said["together"][0] == "refused"
        and "are aliases of one argument, but have different values" in said["together"][1]
    )


PARSING = """\
from dataclasses import dataclass
from transformers import HfArgumentParser, Trainer, TrainingArguments
@dataclass
class Data:
    max_train_samples: int = 0
parser = HfArgumentParser((Data, TrainingArguments))
data, args = parser.parse_args_into_dataclasses()
Trainer(None, args)
"""


def test_an_option_that_the_scripts_parser_does_not_have(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(PARSING)
    words = "--output_dir o --max_train_samples 3 --max_train_sampels 3 --predict_with_generate --seed 3".split()
    said = command_line(path, *words)
    assert said["max_train_samples"][0] == said["seed"][0] == "works"
    assert said["max_train_sampels"][0] == "refused"
    assert said["max_train_sampels"][1].endswith("did you mean max_train_samples?")
    assert said["predict_with_generate"] == (
        "refused",
        "it belongs to Seq2SeqTrainingArguments, which the script does not parse",
    )
    path.write_text(PARSING.replace("TrainingArguments", "Seq2SeqTrainingArguments"))
    assert command_line(path, *words)["predict_with_generate"] == ("works", "")


@pytest.mark.parametrize(
    "old, new",
    [
        ("dataclasses()", "dataclasses(return_remaining_strings=True)"),
        ("dataclasses()", "dataclasses(None, True)"),
        ("dataclasses()", "dataclasses(**options)"),
        ("parser.parse_args", "parser.add_argument('--x')\nparser.parse_args"),
        ("class Data:", "class Data(Imported):"),
        ("(Data, TrainingArguments)", "classes"),
    ],
)
def test_options_that_another_part_of_the_script_may_take(tmp_path, old, new):
    path = tmp_path / "script.py"
    path.write_text(PARSING.replace(old, new))
    said = command_line(path, "--max_train_sampels", "3", "--predict_with_generate")
    assert said["max_train_sampels"][0] == "unseen" and said["predict_with_generate"][0] == "works"


PADDLENLP = """\
from dataclasses import dataclass
from paddlenlp.trainer import CompressionArguments, PdArgumentParser, Trainer, TrainerCallback

@dataclass
class DataArguments:
    debug: bool = False
class Told(TrainerCallback):
    def on_optimizer_begin(self, args, state, control, **kwargs):
        pass
data_args, training_args = PdArgumentParser((DataArguments, CompressionArguments)).parse_args_into_dataclasses()
trainer = Trainer(model=model, args=training_args)
if training_args.do_compress and training_args.width_mult_list:
    trainer.compress()
"""


def test_a_script_of_paddlenlp_with_compression(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(PADDLENLP)
    words = ["--debug", "True", "--strategy", "ptq", "--do_train", "--do_compress", "False"]
    found, libraries, framework = check(str(path), words)
    assert (libraries, framework) == (["paddlenlp"], "paddle")
    assert [each for each in found if each.answer not in ("works", "maps")] == []
    said = command_line(path, *words)
    assert said["debug"] == ("works", "a field of the script") and said["do_train"] == ("works", "")
    assert said["strategy"] == ("works", "only for model compression, which is not supported")
    for switch in (["--do_compress"], ["--do_compress", "True"], ["--do_compress=1"]):
        assert command_line(path, *switch)["do_compress"][0] == "refused"
    path.write_text(
        "from paddlenlp.trainer import CompressionArguments\nargs = CompressionArguments('o', do_compress=True)"
    )
    (answer,) = [each for each in check(str(path))[0] if each.name == "do_compress"]
    assert answer.answer == "refused" and "PaddleSlim" in answer.text


def test_what_a_library_derives_itself_is_unseen(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(
        "from paddlenlp.prompt import PromptTrainer, PromptTuningArguments\n"
        "from paddlenlp.trainer import PdArgumentParser\n"
        "(training_args,) = PdArgumentParser(PromptTuningArguments).parse_args_into_dataclasses()\n"
        "training_args.rounds = 3\n"
        "print(training_args.rounds, training_args.freeze_plm)\n"
        "trainer = PromptTrainer(model=model, args=training_args)\n"
    )
    said = {(each.line, each.name): (each.answer, each.text) for each in check(str(path))[0]}
    assert said[5, "args.freeze_plm"][0] == said[6, "PromptTrainer"][0] == "unseen"
    assert said[5, "args.freeze_plm"][1].endswith("PromptTuningArguments may have it")
    assert (5, "args.rounds") not in said and (0, "Trainer") not in said


def test_a_json_file(script, tmp_path):
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({"output_dir": "o", "evaluation_strategy": "no", "use_ipex": True, "own": 2, "x": 1}))
    found, _, _ = check(str(script), [str(path)])
    said = {each.name: each.answer for each in found if each.file == str(path)}
    assert said == {
        "output_dir": "works",
        "evaluation_strategy": "maps",
        "use_ipex": "refused",
        "own": "works",
        "x": "unseen",
    }


def test_the_framework_follows_from_the_script(tmp_path):
    path = tmp_path / "script.py"
    texts = {
        "paddle": "from paddlenlp.trainer import TrainingArguments as A\nA('o', fp16=True)",
        "mindspore": "from mindnlp.engine import TrainingArguments as A\nA('o', bf16=True)",
        "mindtorch": "import mindnlp\nfrom transformers import TrainingArguments as A\nA('o', torch_compile=True)",
        "torch": "from transformers import TrainingArguments as A\nA('o', fp16=True)",
    }
    answers = {"paddle": "depends", "mindspore": "depends", "mindtorch": "refused", "torch": "works"}
    for framework, text in texts.items():
        path.write_text(text)
        found, _, name = check(str(path))
        (said,) = [each.answer for each in found if each.name in ("fp16", "bf16", "torch_compile")]
        assert (name, said) == (framework, answers[framework])


def test_a_script_without_a_trainer_is_reported(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("from accelerate import Accelerator\n")
    found, _, _ = check(str(path))
    assert any("none of their code would run on oneloop" in each.text for each in found)


def test_exit_status_text_and_json(script, tmp_path, capsys):
    assert main(["check", str(script)]) == 1
    text = capsys.readouterr().out
    assert "nothing was run" in text and "    28  maps     argument  evaluation_strategy" in text
    good = plans.command("classification")
    assert main(["check", "--json", good[0], "--", *good[1:]]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["framework"] == "torch" and data["counts"]["maps"] >= 3
    assert {"file", "line", "kind", "name", "answer", "text"} == data["findings"][0].keys()
    assert main(["check", str(tmp_path / "nothing.py")]) == 2
    assert "nothing.py not found" in capsys.readouterr().err
    (tmp_path / "broken.py").write_text("x = (")
    assert main(["check", str(tmp_path / "broken.py")]) == 2
    assert "cannot be parsed as Python" in capsys.readouterr().err


def test_arguments_that_are_refused_stay_so_where_others_contradict_one_another(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(
        "from transformers import Trainer, TrainingArguments\n"
        "args = TrainingArguments('out', tpu_num_cores=8, fp16=True, bf16=True)\n"
        "Trainer(args=args)\n"
    )
    found, _, _ = check(str(path))
    answers = {finding.name: finding.answer for finding in found}
    assert answers["tpu_num_cores"] == "refused" and answers["together"] == "refused"
