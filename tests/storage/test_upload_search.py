"""Random runs with slow and failing uploads, cut off at random: see upload_search."""

import itertools
import os

import pytest

from oneloop.checkpoint import log_history
from tests.storage.support import URL
from tests.storage.upload_search import search


@pytest.fixture(autouse=True)
def short_histories(monkeypatch):
    """Checkpoints leave most of their log entries to log.jsonl."""
    monkeypatch.setattr(log_history, "COMPLETE", 4)
    monkeypatch.setattr(log_history, "TAIL", 2)


def searched(seeds, machine, tmp_path, kit=None):
    folders = (tmp_path / f"disk{number}" for number in itertools.count())
    found, runs = [], 0
    for seed in seeds:
        wrong, count = search(seed, URL, machine, lambda: next(folders), kit)
        found, runs = found + wrong, runs + count
    print(f"{runs} runs", *found, sep="\n")
    return found


def test_a_checkpoint_in_the_storage_names_only_what_is_complete_there(machine, storage, tmp_path):
    assert searched((101, 109), machine, tmp_path) == []


@pytest.mark.slow
def test_many_of_them(backend, machine, storage, tmp_path):
    first, count = (int(os.environ.get(name, value)) for name, value in (("FIRST", 100), ("CASES", 60)))
    assert searched(range(first, first + count), machine, tmp_path, backend) == []
