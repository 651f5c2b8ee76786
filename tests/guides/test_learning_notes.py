"""The learning notes: HfArgumentParser, the arguments of 2024, a logging service's callback, four ways to metrics."""

from pathlib import Path

import pytest
import torch
from transformers import BertForSequenceClassification

from oneloop import HfArgumentParser, Trainer, TrainingArguments

# The arguments of the notes, as their command line.
ARGUMENTS = [
    *("--output_dir", "./results", "--overwrite_output_dir", "--num_train_epochs", "3"),
    *("--per_device_train_batch_size", "8", "--per_device_eval_batch_size", "8", "--warmup_steps", "500"),
    *("--weight_decay", "0.01", "--logging_dir", "./logs", "--logging_steps", "10", "--save_steps", "10"),
    *("--evaluation_strategy", "steps", "--eval_steps", "500", "--learning_rate", "2e-5"),
    "--load_best_model_at_end",
]
QUICK = ["--max_steps", 30, "--warmup_steps", 5, "--learning_rate", 1e-3, "--report_to", "none"]


def steps_of(trainer, name):
    return [entry["step"] for entry in trainer.state.log_history if name in entry]


def test_metrics_inside_and_outside_the_trainer(run_script, tmp_path, capsys):
    names = run_script("notes_metrics")
    evaluated, computed = names["evaluated"], names["computed"]
    assert set(computed) == {"accuracy", "f1"}
    assert evaluated["eval_accuracy"] == computed["accuracy"] > 0.9
    assert evaluated["eval_f1"] > 0.9
    assert "torch.Size([8, 2])" in capsys.readouterr().out  # the loss and the shape that the notes print

    trainer = names["trainer"]
    assert trainer.state.global_step == 525
    assert steps_of(trainer, "loss") == list(range(10, 521, 10))
    assert steps_of(trainer, "eval_f1")[0] == 500  # save_steps=10 and eval_steps=500 go together
    assert Path(trainer.state.best_model_checkpoint).name == "checkpoint-500"
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    assert list((tmp_path / "logs").iterdir())
    # What the run ended with is the best model, not the last.
    best = BertForSequenceClassification.from_pretrained(tmp_path / "results" / "checkpoint-500").state_dict()
    for name, value in names["model"].state_dict().items():
        assert torch.equal(value, best[name]), name


def test_the_parser_makes_the_same_arguments(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (parsed,) = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses(ARGUMENTS)
    written = TrainingArguments(
        output_dir="./results",
        overwrite_output_dir=True,
        num_train_epochs=3,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        warmup_steps=500,
        weight_decay=0.01,
        logging_dir="./logs",
        logging_steps=10,
        save_steps=10,
        evaluation_strategy="steps",
        eval_steps=500,
        learning_rate=2e-5,
        load_best_model_at_end=True,
    )
    assert parsed == written
    assert parsed.to_dict() == written.to_dict()
    assert (parsed.warmup_steps, parsed.eval_steps, parsed.logging_dir) == (500, 500, "./logs")


def test_evaluating_and_saving_out_of_step(run_script, tmp_path):
    options = [word for word in ARGUMENTS if word not in ("--warmup_steps", "500", "--learning_rate", "2e-5")]
    options.remove("--eval_steps")
    names = run_script("notes_train", *options, *QUICK, "--eval_steps", 7, "--ltr", "pair")
    trainer, callback = names["trainer"], names["swanlab_callback"]
    assert (names["model_args"].ltr, names["model_args"].tokenizer_name) == ("pair", "BertModel/")
    assert trainer.model is names["model"] and trainer.args is names["training_args"]
    assert trainer.tokenizer is names["tokenizer"] and trainer.data_collator is names["data_collator"]

    assert steps_of(trainer, "eval_accuracy") == steps_of(trainer, "eval_f1") == [7, 14, 21, 28]
    scores = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert scores[-1] == min(scores) and trainer.state.best_metric == min(scores)
    assert Path(trainer.state.best_model_checkpoint).name == "checkpoint-28"  # no multiple of save_steps, and kept
    folders = {path.name for path in (tmp_path / "results").glob("checkpoint-*")}
    assert {"checkpoint-10", "checkpoint-20", "checkpoint-28", "checkpoint-30"} <= folders
    assert trainer.evaluate()["eval_loss"] == pytest.approx(min(scores), rel=1e-5)

    # The service's callback, which knows nothing of oneloop, saw the run.
    assert callback.config["learning_rate"] == 1e-3 and callback.config["hidden_size"] == 64
    assert callback.config["model_num_parameters"] == sum(p.numel() for p in names["model"].parameters())
    assert callback.config["transformers_last_checkpoint"] == "./results/checkpoint-30"
    sent = {(name, step) for name, _, step in callback.sent}
    assert {("train/loss", 10), ("train/learning_rate", 20), ("eval/f1", 7), ("evaluated", 28)} <= sent
    assert ("train/train_runtime", 30) in sent


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ltr", "list"], "--ltr: 'list' is not one of point, pair"),
        (["--lrt", "pair"], "unknown option --lrt (did you mean --ltr?)"),
        (["--learning_rate", "fast"], "Invalid learning_rate='fast': expected a number"),
    ],
)
def test_a_slip_on_the_command_line(run_script, capsys, words, message):
    with pytest.raises(SystemExit):
        run_script("notes_train", *ARGUMENTS, *words)
    assert message in capsys.readouterr().err


def test_swanlab_itself(tmp_path, monkeypatch):
    """The service's own callback where it is installed; without an account, and without sending anything."""
    swanlab = pytest.importorskip("swanlab")
    from swanlab.integration.transformers import SwanLabCallback

    monkeypatch.chdir(tmp_path)
    args = TrainingArguments("out", max_steps=4, logging_steps=2, eval_strategy="steps", report_to="none")

    class Line(torch.nn.Linear):
        def forward(self, x, labels):
            return {"loss": (super().forward(x)[:, 0] - labels).square().mean()}

    rows = [{"x": torch.full((2,), float(i)), "labels": float(i)} for i in range(8)]
    callback = SwanLabCallback(project="notes", mode="disabled", log_dir=str(tmp_path / "swanlog"))
    trainer = Trainer(Line(2, 1), args, train_dataset=rows, eval_dataset=rows, callbacks=[callback])
    assert trainer.train().global_step == 4
    assert callback._trainer_initialized and callback._eval_logged_steps == {2, 4}
    swanlab.finish()
