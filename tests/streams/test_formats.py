"""Streams of every format, in one process: interrupted and resumed to the same bytes."""

from itertools import chain

import pytest

from tests.streams import formats, job

NAMES = list(formats.FORMATS)
STATELESS = ("jsonl_shuffled", "webdataset", "mixed_without_state")


@pytest.fixture(autouse=True)
def installed():
    pytest.importorskip("torch")
    pytest.importorskip("datasets")
    pytest.importorskip("torchdata")
    pytest.importorskip("webdataset")


def compare(name, tmp_path, step, **given):
    """A run, and one that is resumed from its checkpoint in the middle of the second epoch, or of the first."""
    given = {"steps": 20, "save_total_limit": None} | given
    job.run(name, tmp_path / "data", tmp_path / "whole", **given)
    job.run(name, tmp_path / "data", tmp_path / "again", resume=str(tmp_path / f"whole/checkpoint-{step}"), **given)
    whole, again = job.samples(tmp_path / "whole"), job.samples(tmp_path / "again")
    assert again == {number: found for number, found in whole.items() if number > step}
    assert job.result(tmp_path / "again") == job.result(tmp_path / "whole")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("step", [16, pytest.param(4, marks=pytest.mark.slow)])
def test_a_resumed_run_is_the_run_without_an_interruption(name, step, tmp_path, caplog):
    compare(name, tmp_path, step)
    reads_again = any("again and skips them" in record.message for record in caplog.records)
    told = any("A resumed run reads train_dataset" in record.message for record in caplog.records)
    assert reads_again == told == (name in STATELESS)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_same_with_workers(name, tmp_path):
    compare(name, tmp_path, 16, workers=2)


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("mixed")])
def test_an_epoch_has_each_sample_once_and_epochs_differ_if_they_are_shuffled(name, tmp_path):
    job.run(name, tmp_path / "data", tmp_path / "out", steps=24)
    seen = job.samples(tmp_path / "out")
    epochs = [list(chain(*(seen[step] for step in range(start, start + 12)))) for start in (1, 13)]
    assert all(sorted(epoch) == list(range(formats.SAMPLES)) for epoch in epochs)
    assert (epochs[0] != epochs[1]) == (name in ("jsonl_shuffled", "nodes", "webdataset"))
