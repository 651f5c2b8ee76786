"""PaddleNLP's guide to its Trainer: its script, its order of parameters, and every option of its list."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from oneloop import PdArgumentParser, Trainer, TrainingArguments, set_seed
from oneloop.errors import OneloopError, UnsupportedError
from tests.guides.conftest import script
from tests.internals import backend_of

FRAMEWORKS = ["torch", "paddle"] if find_spec("paddle") else ["torch"]
HERE = Path(__file__).parent
SHORT = ["--device", "cpu", "--num_train_epochs", 4, "--learning_rate", 1e-3, "--logging_steps", 8]

# Every option of the guide, each with a value that one process on a CPU can do and that, but for those in AS_USUAL, is
# not its default. Of fp16 and bf16 only one can be on; test_either_half_precision has both.
OPTIONS = {
    "output_dir": "out",
    "overwrite_output_dir": True,
    "do_train": True,
    "do_eval": True,
    "do_predict": True,
    "do_export": True,
    "evaluation_strategy": "steps",
    "prediction_loss_only": True,
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 16,
    "gradient_accumulation_steps": 2,
    "learning_rate": 0.5,
    "weight_decay": 0.1,
    "adam_beta1": 0.8,
    "adam_beta2": 0.99,
    "adam_epsilon": 1e-6,
    "max_grad_norm": 0.5,
    "num_train_epochs": 2.0,
    "max_steps": 12,
    "lr_scheduler_type": "cosine",
    "warmup_ratio": 0.5,
    "warmup_steps": 2,
    "log_on_each_node": False,
    "logging_dir": "logs",
    "logging_strategy": "steps",
    "logging_first_step": True,
    "logging_steps": 5,
    "save_strategy": "steps",
    "save_steps": 4,
    "save_total_limit": 1,
    "save_on_each_node": True,
    "no_cuda": True,
    "seed": 7,
    "bf16": True,
    "fp16": False,
    "fp16_opt_level": "O2",
    "scale_loss": 1024.0,
    "sharding": "stage2",
    "sharding_degree": 2,
    "recompute": True,
    "minimum_eval_times": 6,
    "local_rank": 0,
    "dataloader_drop_last": True,
    "eval_steps": 6,
    "dataloader_num_workers": 1,
    "past_index": 2,
    "run_name": "all at once",
    "device": "cpu",
    "disable_tqdm": True,
    "remove_unused_columns": False,
    "label_names": ["labels"],
    "load_best_model_at_end": True,
    "metric_for_best_model": "eval_loss",
    "greater_is_better": False,
    "ignore_data_skip": True,
    "optim": "sgd",
    "report_to": ["visualdl"],
    "resume_from_checkpoint": "latest",
}
AS_USUAL = {"logging_strategy", "save_strategy", "fp16", "device", "disable_tqdm"}


@pytest.fixture(params=FRAMEWORKS)
def framework(request):
    """With torch in the place of Paddle, and with Paddle itself."""
    return request.param


@pytest.fixture
def guide(framework, run_script):
    """run_script with the framework."""
    return lambda *words: run_script(*words, framework=framework)


def arrays(model):
    return {name: np.array(value.detach()) for name, value in model.state_dict().items()}


def command_line(options):
    words = []
    for name, value in options.items():
        words += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return words


# -- the script -------------------------------------------------------------------------------------------------------


@pytest.mark.rare_on("torch")  # where the other tests run the script too, in this process
def test_the_script_from_the_command_line(framework, tmp_path):
    words = ["--output_dir", "out", "--do_train", "--dataset", "chnsenticorp", "--max_seq_length", 64, *SHORT]
    done = subprocess.run(
        [sys.executable, str(script("paddlenlp_finetune", framework, tmp_path)), *map(str, words)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "***** train metrics *****" in done.stdout and "train_loss" in done.stdout
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "trainer_state.json"} <= files
    state = json.loads((tmp_path / "out" / "trainer_state.json").read_text())
    losses = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
    assert state["global_step"] == 32
    assert losses[-1] < 0.5 < losses[0]
    assert list((tmp_path / "out" / "runs").glob("*/vdlrecords.*")), "VisualDL is written to without being asked for"


def test_the_script_keeps_the_parsed_arguments_apart(guide):
    names = guide("paddlenlp_finetune", "--output_dir", "out", "--dataset", "chnsenticorp", "--report_to", "none")
    assert (names["data_args"].dataset, names["data_args"].max_seq_length) == ("chnsenticorp", 128)
    assert not hasattr(names["training_args"], "dataset")
    assert names["trainer"].train_dataset is None and "train_result" not in names  # no --do_train


def test_the_criterion_makes_the_loss(guide):
    names = guide("paddlenlp_finetune", "--output_dir", "out", "--do_train", "--report_to", "none", *SHORT)
    trainer, model = names["trainer"], names["model"]
    batch = next(iter(trainer.get_train_dataloader()))
    labels = batch.pop("labels")
    model.eval()
    logits = model(**batch)
    assert backend_of(trainer).tensors.is_tensor(logits)  # the model itself makes no loss
    scores, wanted = np.array(logits.detach(), dtype=np.float64), np.array(labels)
    chances = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    expected = -np.log(chances[np.arange(len(wanted)), wanted]).mean()
    assert trainer.compute_loss(model, {**batch, "labels": labels}).item() == pytest.approx(expected, rel=1e-5)
    assert (scores.argmax(-1) == wanted).all()


def test_criterion_in_second_place(guide, tmp_path):
    options = ["--output_dir", "out", "--do_train", "--do_predict", "--evaluation_strategy", "epoch", *SHORT]
    names = guide("paddlenlp_positional", *options)
    trainer = names["trainer"]
    assert type(trainer.criterion).__name__ == "CrossEntropyLoss"
    assert trainer.args is names["training_args"] and trainer.tokenizer is names["tokenizer"]
    assert names["training_args"].do_eval  # evaluation_strategy switches it on
    assert names["eval_metrics"]["eval_accuracy"] == 1.0
    assert names["prediction"].predictions.shape == (64, 2)
    assert names["prediction"].metrics["test_loss"] == pytest.approx(names["eval_metrics"]["eval_loss"])
    results = json.loads((tmp_path / "out" / "all_results.json").read_text())
    assert {"train_loss", "train_runtime", "eval_accuracy", "eval_loss"} <= results.keys()


def test_a_run_goes_on_from_its_checkpoint(guide, tmp_path):
    options = ["--do_train", "--report_to", "none", "--save_steps", 12, *SHORT]
    whole = guide("paddlenlp_positional", "--output_dir", "whole", *options)
    start = tmp_path / "whole" / "checkpoint-12"
    again = guide("paddlenlp_positional", "--output_dir", "again", "--resume_from_checkpoint", start, *options)
    assert again["train_result"].global_step == whole["train_result"].global_step == 32
    first, second = arrays(whole["model"]), arrays(again["model"])
    assert first.keys() == second.keys()
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)


# -- the options ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_of_the_list(name):
    value = OPTIONS[name]
    words = command_line({"output_dir": "out", name: value})
    (args,) = PdArgumentParser(TrainingArguments).parse_args_into_dataclasses(words)
    read = args.device.type if name == "device" else getattr(args, name)
    assert read == value
    assert name in AS_USUAL or getattr(TrainingArguments("tmp"), name) != value
    # As one word too, and a switch without a value.
    single = [f"--{name}"] if value is True else [f"--{name}={value}"] if not isinstance(value, list) else None
    if single:
        (same,) = PdArgumentParser(TrainingArguments).parse_args_into_dataclasses(["--output_dir", "out", *single])
        assert same == args


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_the_guides_default_device_on_a_machine_without_one(guide):
    with pytest.raises(OneloopError, match="device='gpu'.* use device='cpu'"):
        guide("paddlenlp_finetune", "--output_dir", "out", "--device", "gpu")


class Recurrent(torch.nn.Module):
    """Takes the state of the step before as `mems` and returns its own in third place."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(8, 16)
        self.head = torch.nn.Linear(16, 2)
        self.fed = []

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs=None):
        self.enable_recompute = True

    def forward(self, input_ids, labels=None, mems=None):
        self.fed.append(None if mems is None else tuple(mems.shape))
        state = self.table(input_ids).mean(1)
        logits = self.head(state if mems is None else state + 0.1 * mems)
        return torch.nn.functional.cross_entropy(logits.float(), labels), logits, state


def recurrent(framework):
    """The same in Paddle, which is told to recompute by an attribute, as PaddleNLP's models are."""
    if framework == "torch":
        return Recurrent()
    import paddle

    class RecurrentLayer(paddle.nn.Layer):
        enable_recompute = False

        def __init__(self):
            super().__init__()
            self.table = paddle.nn.Embedding(8, 16)
            self.head = paddle.nn.Linear(16, 2)
            self.fed = []

        def forward(self, input_ids, labels=None, mems=None):
            self.fed.append(None if mems is None else tuple(mems.shape))
            state = self.table(input_ids).mean(1)
            logits = self.head(state if mems is None else state + 0.1 * mems)
            return paddle.nn.functional.cross_entropy(logits, labels), logits, state

    return RecurrentLayer()


def samples(count):
    """The label is whether the first word is above the middle."""
    words = np.random.default_rng(0).integers(0, 8, (count, 3))
    words[:, 1:] = words[:, :1]
    return [{"input_ids": row, "labels": int(row[0] > 3)} for row in words]


def all_at_once(tmp_path, **changes):
    given = OPTIONS | {"output_dir": str(tmp_path / "out"), "logging_dir": str(tmp_path / "logs")} | changes
    given = {name: value for name, value in given.items() if value is not None}
    (args,) = PdArgumentParser(TrainingArguments).parse_args_into_dataclasses(command_line(given))
    return args


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_what_one_process_cannot_do_is_refused_in_words(framework, tmp_path):
    with pytest.raises(UnsupportedError) as refused:
        Trainer(recurrent(framework), lambda *_: None, all_at_once(tmp_path), eval_dataset=samples(32))
    lines = str(refused.value).splitlines()
    # Paddle has no half precision on a CPU.
    cannot = {"torch": ["sharding_degree"], "paddle": ["bf16", "sharding_degree"]}
    assert [line.split("=")[0] for line in lines] == cannot[framework]
    assert all("Instead: " in line for line in lines)


def test_all_options_at_once(framework, tmp_path):
    cannot = {"sharding": None, "sharding_degree": None} | ({"bf16": None} if framework == "paddle" else {})
    args = all_at_once(tmp_path, **cannot)
    set_seed(1)
    model = recurrent(framework)
    trainer = Trainer(model=model, args=args, train_dataset=samples(104), eval_dataset=samples(32))
    result = trainer.train()
    log = trainer.state.log_history

    assert result.global_step == 12
    assert [entry["step"] for entry in log if "loss" in entry] == [1, 5, 10]
    # minimum_eval_times brings the six steps between evaluations down to two; the first step is evaluated besides.
    assert [entry["step"] for entry in log if "eval_loss" in entry] == [1, 2, 4, 6, 8, 10, 12]
    assert {entry["learning_rate"] < 0.5 for entry in log if "learning_rate" in entry} == {True}
    assert type(trainer.optimizer).__name__ == "SGD"
    groups = backend_of(trainer).optimizers.groups(trainer.optimizer)
    assert {group["weight_decay"] for group in groups} == {0.1, 0.0}
    assert model.enable_recompute
    assert {shape for shape in model.fed if shape} == {(4, 16), (16, 16)}  # drop_last: no batch of another size
    kept = sorted(path.name for path in (tmp_path / "out").glob("checkpoint-*"))
    best = Path(trainer.state.best_model_checkpoint).name
    assert set(kept) == {best, "checkpoint-12"}
    assert list((tmp_path / "logs").glob("vdlrecords.*"))
    assert trainer.state.log_history[-1]["train_loss"] < 0.7


@pytest.mark.parametrize("kind", ["fp16", "bf16"])
def test_either_half_precision(framework, guide, kind):
    options = ["--output_dir", "out", "--do_train", "--do_eval", "--report_to", "none", f"--{kind}", *SHORT]
    if framework == "paddle":
        with pytest.raises(UnsupportedError, match=f"{kind}=True cannot be used on paddle with the device cpu"):
            guide("paddlenlp_positional", *options, "--scale_loss", 1024)
        return
    names = guide("paddlenlp_positional", *options, "--scale_loss", 1024)
    assert names["eval_metrics"]["eval_accuracy"] == 1.0
    assert next(names["model"].parameters()).dtype == torch.float32
    scales = {entry["loss_scale"] for entry in names["trainer"].state.log_history if "loss_scale" in entry}
    assert scales == ({1024.0} if kind == "fp16" else set())


@pytest.mark.rare_on("torch")
def test_an_exported_model(guide, tmp_path):
    """do_export is for the script, which calls export() then; the guide's models return logits alone."""
    names = guide(
        "paddlenlp_finetune", "--output_dir", "out", "--do_train", "--do_export", "--report_to", "none", *SHORT
    )
    assert names["training_args"].do_export
    files = names["trainer"].export(tmp_path / "exported")
    assert files and all(Path(each).is_file() for each in files)
