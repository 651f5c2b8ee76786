"""Streams on two processes: killed, and resumed to the same bytes; each process with its own shards, or its samples."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.distributed import launch
from tests.streams import formats, job
from tests.streams.test_own_environment import NAMES

pytestmark = pytest.mark.slow
JOB = Path(job.__file__)
SHARDED = ["parquet", "jsonl_shuffled", "webdataset", "mixed", "mixed_without_state"]
CASES = [(name, "samples") for name in formats.FORMATS] + [(name, "shards") for name in SHARDED]
CASES = [pytest.param(*case, id="-".join(case)) for case in CASES]
CASES += [pytest.param(name.values[0], "samples", id=name.values[0], marks=name.marks) for name in NAMES]


@pytest.fixture(autouse=True)
def installed():
    if not (find_spec("torchdata") and find_spec("webdataset") and find_spec("datasets")):
        pytest.skip("not installed")


def train(tmp_path, output, name, sharding, workers, *more):
    """A run of two processes, which may kill themselves."""
    argv = [name, tmp_path / "data", tmp_path / output, f"--workers={workers}", f"--sharding={sharding}", *more]
    statuses, said = launch.outcome(2, *argv, script=JOB)
    killed = any("--kill" in str(word) for word in more)
    assert (-9 in statuses and all(statuses)) if killed else statuses == [0, 0], f"exit statuses {statuses}\n{said}"
    return tmp_path / output


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("name", "sharding"), CASES)
def test_a_killed_run_goes_on_to_the_same_bytes(name, sharding, workers, tmp_path):
    formats.build(name, tmp_path / "data")
    whole = train(tmp_path, "whole", name, sharding, workers)
    again = train(tmp_path, "again", name, sharding, workers, "--kill=6")
    train(tmp_path, "again", name, sharding, workers, "--resume")
    for rank in (0, 1):
        assert job.samples(again, rank) == job.samples(whole, rank)
    assert job.result(again) == job.result(whole)
    if not name.startswith("mixed"):
        first = [number for rank in (0, 1) for step in range(1, 13) for number in job.samples(whole, rank)[step]]
        assert sorted(first) == list(range(formats.SAMPLES))


@pytest.mark.parametrize("name", ["parquet", "jsonl_shuffled", "nodes", "webdataset", "mixed"])
def test_samples_are_those_of_one_process(name, tmp_path):
    two = train(tmp_path, "two", name, "samples", 0)
    job.run(name, tmp_path / "data", tmp_path / "one")
    alone = job.samples(tmp_path / "one")
    assert alone == {step: job.samples(two, 0)[step] + job.samples(two, 1)[step] for step in alone}


@pytest.mark.parametrize("name", ["parquet", "webdataset"])
def test_each_process_reads_its_own_files(name, tmp_path):
    two = train(tmp_path, "two", name, "shards", 0)
    files = [{n // formats.EACH for step in range(1, 13) for n in job.samples(two, rank)[step]} for rank in (0, 1)]
    assert len(files[0]) == len(files[1]) == 2 and not files[0] & files[1]
