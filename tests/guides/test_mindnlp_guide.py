"""MindNLP's newer guide: the names of transformers 4.46 and later, half precision, recomputation, resuming."""

import json
import math

import pytest
import torch
from transformers import BertForSequenceClassification

from oneloop import Trainer, TrainingArguments
from oneloop.errors import CheckpointError
from tests.backends.support import RESOLUTION


def logged(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def steps_of(trainer, name):
    return [entry["step"] for entry in trainer.state.log_history if name in entry]


def test_step_by_step(run_script, tmp_path):
    names = run_script("mindnlp_steps")
    trainer, args = names["trainer"], names["training_args"]
    assert args.eval_strategy == args.evaluation_strategy == "steps"
    assert names["start"]["eval_loss"] == pytest.approx(math.log(2)) and names["start"]["eval_accuracy"] == 0.5
    assert steps_of(trainer, "loss") == [50, 100]
    assert steps_of(trainer, "eval_accuracy") == [100]
    assert logged(trainer, "eval_accuracy")[-1] > 0.9
    folders = sorted(path.name for path in (tmp_path / "output").glob("checkpoint-*"))
    assert folders == ["checkpoint-120", "checkpoint-40", "checkpoint-80"]
    # The model that was loaded with another data type keeps it.
    trainer = Trainer(model=names["half_model"], args=args, eval_dataset=names["eval_dataset"])
    assert trainer.evaluate()["eval_loss"] == pytest.approx(math.log(2), abs=2e-3)  # the loss itself is in float16
    assert next(trainer.model.parameters()).dtype == torch.float16


def test_the_whole_example(run_script, tmp_path):
    names = run_script("mindnlp_complete")
    trainer, result = names["trainer"], names["result"]
    assert result.global_step == 375
    losses = logged(trainer, "loss")
    assert len(losses) == 3 and losses == sorted(losses, reverse=True)
    assert logged(trainer, "eval_accuracy")[-1] > 0.9
    assert {"eval_loss", "eval_accuracy", "eval_runtime", "eval_samples_per_second", "eval_steps_per_second"} <= set(
        trainer.evaluate()
    )
    last = tmp_path / "results" / "checkpoint-375"
    assert {"config.json", "model.safetensors", "trainer_state.json"} <= {path.name for path in last.iterdir()}
    assert json.loads((last / "trainer_state.json").read_text())["global_step"] == 375
    opened = BertForSequenceClassification.from_pretrained(last)
    for name, value in names["model"].state_dict().items():
        assert torch.equal(value, opened.state_dict()[name]), name

    again = run_script("mindnlp_complete", "./results/checkpoint-250")
    assert again["result"].global_step == 375
    assert steps_of(again["trainer"], "eval_accuracy") == [125, 250, 375]
    for name, value in names["model"].state_dict().items():
        assert torch.equal(value, again["model"].state_dict()[name]), name


def test_a_checkpoint_that_is_not_there(run_script):
    with pytest.raises(CheckpointError, match="checkpoint-500.* is not a directory"):
        run_script("mindnlp_complete", "./results/checkpoint-500")


def test_the_advanced_section(run_script):
    names = run_script("mindnlp_advanced")
    (_, plain), (_, recomputed) = names["plain"], names["recomputed"]
    assert recomputed.training_loss == plain.training_loss < math.log(2)
    for kind in ("fp16", "bf16"):
        trainer, result = names[kind]
        assert result.training_loss == pytest.approx(plain.training_loss, abs=RESOLUTION[kind])
        assert result.training_loss != plain.training_loss
        assert {parameter.dtype for parameter in trainer.model.parameters()} == {torch.float32}
    assert names["recomputed"][0].model.is_gradient_checkpointing
    assert not names["plain"][0].model.is_gradient_checkpointing


@pytest.mark.parametrize("strategy", ["no", "steps", "epoch"])
def test_the_strategies(strategy, tmp_path):
    """Each of the three values for evaluating, saving and logging, eight samples an epoch in four steps."""

    class Line(torch.nn.Linear):
        def forward(self, x, labels):
            return {"loss": (super().forward(x)[:, 0] - labels).square().mean()}

    model = Line(2, 1)
    rows = [{"x": torch.full((2,), float(i)), "labels": float(i)} for i in range(8)]
    args = TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=2,
        num_train_epochs=2,
        eval_strategy=strategy,
        eval_steps=3,
        save_strategy=strategy,
        save_steps=3,
        logging_strategy=strategy,
        logging_steps=3,
        report_to="none",
    )
    trainer = Trainer(model=model, args=args, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    steps = {"no": [], "steps": [3, 6], "epoch": [4, 8]}[strategy]
    assert steps_of(trainer, "loss") == steps_of(trainer, "eval_loss") == steps
    saved = sorted(int(path.name.split("-")[1]) for path in tmp_path.glob("checkpoint-*"))
    assert saved == (steps + [8] if strategy == "steps" else steps)  # by steps, the end of the run is saved too
