"""Trainer.log_metric on several processes: the averages are those of one.

As a program: `test_log_metric.py FOLDER NAME [CHECKPOINT]` trains, and each process writes what it logged to
FOLDER/NAME-rankN.json. The framework is that of the variable FRAMEWORK.
"""

import json
import math
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from oneloop import Trainer, TrainingArguments
from oneloop.distributed.world import world
from oneloop.errors import ArgumentError
from oneloop.trainer.logged_metrics import LoggedMetrics
from tests.backends.support import kit_module, names, rows
from tests.distributed.launch import run_script
from tests.internals import part_of

FRAMEWORK = os.environ.get("FRAMEWORK", "torch")
SAMPLES = 20  # the last batches of an epoch, and of an evaluation, are of one process alone


class Measures(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        values = inputs["x"][:, 0]
        self.log_metric("mean", values.mean(), weight=len(inputs["labels"]))
        self.log_metric("count", 1.0)
        if world().rank == 1:
            self.log_metric("of_one", 3.0)
        is_bad = world().rank == 1 and self.state.global_step == 1 and self.is_in_train
        self.log_metric("bad", math.nan if is_bad else 1.0)
        return super().compute_loss(model, inputs, return_outputs, **kwargs)


def main(folder, name, checkpoint=None):
    args = TrainingArguments(
        f"{folder}/{name}",
        num_train_epochs=2,
        per_device_train_batch_size=8 // world().size,
        per_device_eval_batch_size=8 // world().size,
        logging_steps=4,
        eval_strategy="epoch",
        save_strategy="steps",
        save_steps=2,
        report_to="none",
        disable_tqdm=True,
        device="cpu",
        sharding="stage3" if FRAMEWORK == "torch" and "sharded" in name else "",
    )
    model = kit_module(FRAMEWORK).Kit().classifier()
    trainer = Measures(model, args, train_dataset=rows(SAMPLES), eval_dataset=rows(SAMPLES, seed=1))
    trainer.train(resume_from_checkpoint=checkpoint)
    keep = ("mean", "count", "of_one", "eval_mean", "eval_count", "eval_of_one")
    logs = [{key: e[key] for key in (*keep, "step") if key in e} for e in trainer.state.log_history]
    for entry, logged in zip(logs, trainer.state.log_history):
        if "bad" in logged:
            entry["bad"] = str(logged["bad"])  # JSON has no NaN, and NaN is unequal to itself
    (Path(folder) / f"{name}-rank{world().rank}.json").write_text(json.dumps([e for e in logs if len(e) > 1]))


@pytest.fixture(
    scope="module", params=[n if n == "torch" else pytest.param(n, marks=pytest.mark.slow) for n in names()]
)
def framework(request):
    return request.param


def logs_of(folder, name, processes):
    every = [json.loads((folder / f"{name}-rank{rank}.json").read_text()) for rank in range(processes)]
    assert all(each == every[0] for each in every)
    return every[0]


def test_averages_are_those_of_one_process(framework, tmp_path):
    run_script(framework, 1, tmp_path, Path(__file__), "one")
    run_script(framework, 2, tmp_path, Path(__file__), "two")
    one, two = logs_of(tmp_path, "one", 1), logs_of(tmp_path, "two", 2)
    assert [e["step"] for e in one] == [e["step"] for e in two] == [3, 4, 6]
    for mine, theirs in zip(one, two):
        (name,) = [key for key in mine if key.endswith("mean")]
        assert theirs[name] == pytest.approx(mine[name], rel=1e-6)
        assert mine[name.replace("mean", "count")] == theirs[name.replace("mean", "count")] == 1.0
        assert name.replace("mean", "of_one") not in mine and theirs[name.replace("mean", "of_one")] == 3.0
    assert [[e["bad"] for e in logs if "bad" in e] for logs in (one, two)] == [["1.0"], ["nan"]]
    # A resume on the same number of processes logs the same bits.
    run_script(framework, 2, tmp_path, Path(__file__), "again", tmp_path / "two" / "checkpoint-2")
    assert logs_of(tmp_path, "again", 2) == two
    run_script(framework, 1, tmp_path, Path(__file__), "fewer", tmp_path / "two" / "checkpoint-2")
    fewer = [e["mean"] for e in logs_of(tmp_path, "fewer", 1) if "mean" in e]
    assert fewer == pytest.approx([e["mean"] for e in two if "mean" in e], rel=1e-6)


def test_batches_that_only_keep_others_company_do_not_count(tmp_path):
    """With weights in shards a process without a batch computes another's: a forward pass is a collective."""
    if "torch" not in names():
        pytest.skip("needs PyTorch")
    run_script("torch", 2, tmp_path, Path(__file__), "two")
    run_script("torch", 2, tmp_path, Path(__file__), "sharded")
    whole, sharded = logs_of(tmp_path, "two", 2), logs_of(tmp_path, "sharded", 2)
    assert [e["step"] for e in whole] == [e["step"] for e in sharded]
    for mine, theirs in zip(whole, sharded):
        assert mine.pop("bad", None) == theirs.pop("bad", None)
        assert mine == pytest.approx(theirs, rel=1e-6)


def test_a_call_that_other_processes_do_not_expect_is_an_error(arguments, monkeypatch):
    """On several processes the code of the Trainer and the model says whether averages are added up at each log."""
    if "torch" not in names():
        pytest.skip("needs PyTorch")

    def averages_of(trainer_class):
        trainer = trainer_class(kit_module("torch").Kit().classifier(), arguments(), train_dataset=rows(8))
        part = LoggedMetrics(part_of(trainer, LoggedMetrics.name).context)
        monkeypatch.setattr(part.context, "mesh", SimpleNamespace(is_single=False))
        return part

    with pytest.raises(ArgumentError, match="the other processes do not expect it.*logs_metrics = True"):
        averages_of(Trainer).record("x", 1.0, 1.0)
    for expecting in (Measures, type("Declared", (Trainer,), {"logs_metrics": True})):
        with pytest.raises(ArgumentError, match="neither is running"):
            averages_of(expecting).record("x", 1.0, 1.0)


if __name__ == "__main__":
    main(*sys.argv[1:])
