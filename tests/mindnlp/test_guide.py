"""MindNLP's newer guide as it is meant: transformers' models on MindSpore, trained by oneloop's Trainer."""

import json
import math

import mindspore
import pytest

from oneloop import Trainer
from tests.internals import backend_of


def logged(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def test_step_by_step(run_script, tmp_path):
    names = run_script("mindnlp_steps")
    trainer = names["trainer"]
    assert backend_of(trainer).NAME == "mindtorch"
    assert (
        names["start"]["eval_loss"] == pytest.approx(math.log(2), abs=1e-5) and names["start"]["eval_accuracy"] == 0.5
    )
    assert [entry["step"] for entry in trainer.state.log_history if "loss" in entry] == [50, 100]
    assert logged(trainer, "eval_accuracy")[-1] > 0.9
    folders = sorted(path.name for path in (tmp_path / "output").glob("checkpoint-*"))
    assert folders == ["checkpoint-120", "checkpoint-40", "checkpoint-80"]
    # The model that was loaded with ms_dtype keeps it.
    trainer = Trainer(model=names["half_model"], args=names["training_args"], eval_dataset=names["eval_dataset"])
    assert trainer.evaluate()["eval_loss"] == pytest.approx(math.log(2), abs=2e-3)  # the loss itself is in float16
    assert next(trainer.model.parameters()).dtype == mindspore.float16


def test_the_whole_example_and_going_on_from_a_checkpoint(run_script, tmp_path, bits):
    names = run_script("mindnlp_complete")
    trainer = names["trainer"]
    assert names["result"].global_step == 375
    losses = logged(trainer, "loss")
    assert len(losses) == 3 and losses == sorted(losses, reverse=True)
    assert logged(trainer, "eval_accuracy")[-1] > 0.9
    last = tmp_path / "results" / "checkpoint-375"
    assert json.loads((last / "trainer_state.json").read_text())["global_step"] == 375
    opened = type(names["model"]).from_pretrained(last)
    assert bits(opened) == bits(names["model"])

    again = run_script("mindnlp_complete", "./results/checkpoint-250")
    assert again["result"].global_step == 375
    assert bits(again["model"]) == bits(names["model"])
