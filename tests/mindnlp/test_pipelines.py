"""Data sets of mindspore.dataset under mindnlp, as its scripts train with them."""

import mindspore.dataset as ds
import numpy as np
import pytest

from oneloop import Trainer
from oneloop.backends._common import mindspore_datasets
from oneloop.errors import DataError
from tests.emulation import emulate


def piped(rows, shuffle=False):
    columns = {name: np.stack([np.asarray(row[name]) for row in rows]) for name in rows[0]}
    columns["labels"] = columns["labels"].astype(np.int32)  # as their guides cast them
    return ds.NumpySlicesDataset(columns, shuffle=shuffle)


@pytest.fixture
def ran(bert, arguments):
    """ran(data, resume=None, seed=0, **arguments): a Trainer after train()."""

    def run(data, resume=None, seed=0, evaluated=None, **given):
        options = {"num_train_epochs": 1, "max_steps": -1, "logging_steps": 1} | given
        trainer = Trainer(bert(seed=seed), arguments(**options), train_dataset=data, eval_dataset=evaluated)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    return run


def losses(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_samples_and_batches_train_as_a_list_does(ran, rows, bits):
    plain = ran(rows, train_sampling_strategy="sequential", evaluated=rows)
    samples = ran(piped(rows), evaluated=piped(rows))
    batches = ran(piped(rows).batch(8), per_device_train_batch_size=1, evaluated=piped(rows).batch(5),
                  per_device_eval_batch_size=1)  # fmt: skip
    assert plain.state.global_step == samples.state.global_step == batches.state.global_step == 4
    assert losses(plain) == losses(samples) == losses(batches)
    assert bits(plain.model) == bits(samples.model) == bits(batches.model)
    expected = plain.evaluate()["eval_loss"]
    assert samples.evaluate()["eval_loss"] == expected
    assert batches.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-6)


def test_batches_of_batches(ran, rows, monkeypatch, caplog):
    with pytest.raises(DataError, match=r"already batched .* 4 samples .* is 8"):
        ran(piped(rows).batch(4))
    emulate(monkeypatch, {"mindnlp"})
    mindspore_datasets._warn_batch_size_ignored.cache_clear()
    assert ran(piped(rows).batch(4)).state.global_step == 8
    assert "creates batches of 4 itself" in caplog.text


def test_a_shuffled_pipeline_goes_on_in_its_order_after_a_resume(ran, rows, bits, tmp_path):
    options = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 3}
    whole = ran(piped(rows, shuffle=True), **options)
    again = ran(piped(rows, shuffle=True), str(tmp_path / "out" / "checkpoint-3"), seed=5, **options)
    assert losses(again) == losses(whole) and bits(again.model) == bits(whole.model)
