"""Names that scripts of PaddleNLP call on their arguments, their parser and their Trainer."""

import json
import sys
from dataclasses import dataclass, field

import pytest

from oneloop import PdArgumentParser, Trainer, TrainerCallback, TrainingArguments
from oneloop.errors import UnsupportedError
from tests.backends.support import rows, same_bytes


@dataclass
class Own:
    width: int = field(default=4)
    name: str = field(default="a")


def parse(monkeypatch, *words, **more):
    monkeypatch.setattr(sys, "argv", ["script.py", *map(str, words)])
    return PdArgumentParser((Own, TrainingArguments)).parse_json_file_and_cmd_lines(**more)


def test_a_json_file_and_a_command_line_that_beats_it(monkeypatch, tmp_path):
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({"width": 8, "name": "b", "output_dir": "o", "evaluation_strategy": "epoch"}))
    own, args = parse(monkeypatch, path, "--width", 9, "--eval_strategy", "no", "--learning_rate", "1e-3")
    assert (own, args.output_dir, args.eval_strategy, args.learning_rate) == (Own(9, "b"), "o", "no", 1e-3)
    own, args, rest = parse(monkeypatch, path, "--other", 3, return_remaining_strings=True)
    assert (own.width, rest) == (8, ["--other", "3"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "the first argument must be a JSON file"),
        (["settings.json", "--widht", "3"], "did you mean --width?"),
        (["wrong.json"], "unknown key 'widht'"),
        (["settings.json", "--width", "x"], "width"),
    ],
)
def test_invalid_settings_are_reported(words, said, monkeypatch, tmp_path, capsys):
    (tmp_path / "settings.json").write_text(json.dumps({"output_dir": "o"}))
    (tmp_path / "wrong.json").write_text(json.dumps({"output_dir": "o", "widht": 3}))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        parse(monkeypatch, *words)
    assert left.value.code == 2
    assert said in capsys.readouterr().err


def test_model_parallel_properties(tmp_path, capsys):
    args = TrainingArguments(str(tmp_path), device="cpu")
    assert args.tensor_parallel_degree == args.pipeline_parallel_degree == args.sep_parallel_degree == 1
    assert (args.dataset_rank, args.dataset_world_size, args.tensor_parallel_rank) == (0, 1, 0)
    assert not args.use_hybrid_parallel and args.should_load_dataset and args.should_save_model_state
    assert TrainingArguments(str(tmp_path), tensor_parallel_degree=2).tensor_parallel_size == 2
    with pytest.raises(UnsupportedError, match="this kind of model parallelism is not supported"):
        TrainingArguments(str(tmp_path), pipeline_parallel_degree=2)
    args.print_config(Own(7), "Model")
    assert capsys.readouterr().out == "***** Model arguments *****\n  name  = a\n  width = 7\n"
    args.print_config()
    assert "  learning_rate " in capsys.readouterr().out


def test_export_model_takes_the_best_weights_first(backend, trained):
    class Exports(Trainer):
        def evaluate(self, *args, **kwargs):  # the first evaluation is the best
            self.kept = getattr(self, "kept", None) or backend.weights(self.model)
            return super().evaluate(*args, **kwargs) | {"eval_score": -self.state.global_step}

        def export(self, *given):
            self.given, self.exported = given, backend.weights(self.model)
            return ["files"]

    options = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2, "max_steps": 4}
    best = {"metric_for_best_model": "score", "greater_is_better": True}
    trainer = trained(backend.classifier(), rows(12), Exports, eval_dataset=rows(4), **options, **best)
    assert trainer.export_model(input_spec="spec", load_best_model=False, output_dir="there") == ["files"]
    assert trainer.given == ("there", "spec") and not same_bytes(trainer.exported, trainer.kept)
    trainer.export_model(input_spec="spec", load_best_model=True)
    assert same_bytes(trainer.exported, trainer.kept)
    trainer.save_model(str(trainer.args.output_dir), merge_tensor_parallel=True)
    for refused in (trainer.compress, trainer.set_optimizer_grouped_parameters):
        with pytest.raises(UnsupportedError, match="PaddleNLP"):
            refused()


def test_a_schedule_without_an_optimizer_is_paddles_alone(backend, arguments):
    trainer = Trainer(backend.classifier(), arguments(max_steps=4), train_dataset=rows(8))
    if backend.name == "paddle":
        assert trainer.create_scheduler(num_training_steps=4).get_lr() == trainer.args.learning_rate
        return
    with pytest.raises(UnsupportedError, match="call create_optimizer before create_scheduler"):
        trainer.create_scheduler(num_training_steps=4)


def test_events_of_paddlenlp_are_called(backend, trained):
    seen = []

    class Listens(TrainerCallback):
        def on_load_data_end(self, args, state, control, inputs=None, **kwargs):
            seen.append(("data", sorted(inputs)))

        def on_optimizer_begin(self, args, state, control, scaler=None, optimizer=None, **kwargs):
            seen.append(("begin", scaler, optimizer is not None))

        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            seen.append("before")

        def on_optimizer_step(self, args, state, control, **kwargs):
            seen.append("after")

        def on_optimizer_end(self, args, state, control, scaler=None, **kwargs):
            seen.append(("end", scaler))

    options = {"max_steps": 1, "gradient_accumulation_steps": 2, "callbacks": [Listens()]}
    trained(backend.classifier(), rows(), **options)
    batch = ("data", ["labels", "x"])
    assert seen == [batch, batch, "before", ("begin", None, True), "after", ("end", None)]


def test_weights_are_loaded_by_the_name_that_others_call(backend, trained, tmp_path):
    trainer = trained(backend.classifier(), rows(), save_strategy="steps", save_steps=2, max_steps=4, learning_rate=0.1)
    fresh = Trainer(backend.classifier(seed=5), trainer.args)
    before = backend.weights(fresh.model)
    fresh._load_from_checkpoint(None)
    assert same_bytes(backend.weights(fresh.model), before)
    fresh._load_from_checkpoint(True)
    assert same_bytes(backend.weights(fresh.model), backend.weights(trainer.model))
    fresh._load_from_checkpoint(f"{tmp_path}/out/checkpoint-2")
    assert not same_bytes(backend.weights(fresh.model), backend.weights(trainer.model))
    with pytest.raises(UnsupportedError, match="loads into the Trainer's own model only"):
        fresh._load_from_checkpoint(True, model=backend.classifier())
