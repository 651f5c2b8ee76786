"""Each fsync in the code is needed, and the simulation of power failures finds it missing, or too late.

The calls of each save of disk/job.py are recorded once, with the places in oneloop that led to each fsync. Taken out of
the record is what would be missing without one of these places, and the states that a failure may leave then are
checked; only those that the whole record does not allow. `test_every_flush_of_the_code` knows the places from the
source: an fsync that is added to the code, and that no scenario here needs, fails.
"""

import ast
import logging
from functools import cache
from pathlib import Path

import pytest

import oneloop
from tests.checkpoint.disk import preload
from tests.checkpoint.disk.checks import check_checkpoints, check_file, check_models, record_in
from tests.checkpoint.disk.crash_states import all_states, digest_of
from tests.checkpoint.test_crash_states import MODELS, some

FLUSHES = ("fsync", "sync_directory", "sync_tree")
# Scenarios in which each single flush is needed; in those of a model some come twice.
CHECKPOINTS = ("rotation", "added files", "first", "own directory", "same step", "file", "two processes")
EVERY = ("file", "rotation", "added files", "model", "first configuration", "one file after shards", "shards")
EVERY += ("first", "own directory", "two processes")  # those in which more flushes are needed; the fast ones first


@pytest.fixture(scope="module")
def folders(library, tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    preload.run(library, "record", folder)
    return folder


@pytest.fixture(autouse=True)
def silent():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def found(folders, tmp_path_factory):
    """found(scenario, flushes, how): what is wrong if these, numbers of calls of a scenario, are left out or late."""
    memory = tmp_path_factory.mktemp("states")

    @cache
    def states_of(scenario):
        return frozenset(map(digest_of, all_states(record_in(folders / scenario))))

    @cache
    def check(scenario, flushes, how):
        folder = folders / scenario
        record = record_in(folder)
        record.calls = how(record.calls, flushes)
        given = {"folder": folder, "memory": memory, "first_only": True, "seen": states_of(scenario)}
        record.first = min(flushes)  # before it nothing has changed
        if scenario == "file":
            return check_file(record, **given)[1]
        if scenario in MODELS:
            return check_models(record, **given)[1]
        return check_checkpoints([record], **given)[1]

    return check


def without(calls, flushes):
    return [call for i, call in enumerate(calls) if i not in flushes]


def late(calls, flushes):
    """After the names that have changed next are durable."""
    named = next(i for i in range(max(flushes), len(calls)) if calls[i][0] == "rename" and is_final(calls[i][5]))
    durable = next((i for i in range(named, len(calls)) if calls[i][0] == "fsync" and i not in flushes), named)
    return without(calls[: durable + 1], flushes) + [calls[i] for i in sorted(flushes)] + calls[durable + 1 :]


def is_final(path):
    return ".part" not in path


def flushes_of(record):
    """Sets of flushes: one, or several of a file that was not changed in between, since libraries may write files, too,
    which are then flushed again."""
    sets, last = [], {}
    for i, (kind, inode, *_) in enumerate(record.calls):
        if kind == "fsync" and inode in last:
            last[inode].add(i)
        elif kind == "fsync":
            last[inode] = {i}
            sets.append(last[inode])
        elif kind in ("create", "mkdir", "remove", "rename", "link"):  # of a directory, which is not known here
            last = {inode: flushes for inode, flushes in last.items() if inode in files(record)}
        else:
            last.pop(inode, None)
    return list(map(frozenset, sets))


def files(record):
    return {inode for kind, inode, *_ in record.calls if kind == "create"}


def is_staged(record, flushes):
    """Whether it is a file of a staged directory, or a directory of these."""
    inode = record.calls[min(flushes)][1]
    made = (call[4] for call in record.calls if call[1] == inode and call[0] in ("create", "mkdir"))
    return any(".partial" in path for path in made)


# Not of a save: what is exported is a copy of a checkpoint, and is flushed before it gets its name.
OF_EXPORTS = ("compat/checkpoint_export.py", "backends/torch/torch_files.py")


def places_in_the_code():
    """(file, lines of the statement) of each call that flushes."""
    package = Path(oneloop.__file__).parent
    places = []
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
            if name in FLUSHES and path.relative_to(package).as_posix() not in OF_EXPORTS:
                places.append((path.relative_to(package).as_posix(), range(node.lineno, node.end_lineno + 1)))
    return places


def of_place(record, place):
    """The flushes of a record that go through this place of the code."""
    file, lines = place
    through = (i for i, chain in record.flushes.items() if any(f == file and n in lines for f, n in chain))
    return frozenset(through)


def test_every_flush_of_the_code_is_needed(folders, found):
    """Without any one call of fsync, sync_directory or sync_tree in oneloop, some scenario goes wrong."""
    places = places_in_the_code()
    assert len(places) > 15
    unneeded = []
    for place in places:
        through = ((name, of_place(record_in(folders / name), place)) for name in EVERY)
        if not any(flushes and found(name, flushes, without) for name, flushes in through):
            unneeded.append(f"{place[0]}:{place[1].start}")
    assert not unneeded, "\n".join(unneeded)


@pytest.mark.parametrize("scenario", some(CHECKPOINTS, ("rotation", "added files", "file")))
def test_every_flush_of_a_save_is_needed(scenario, folders, found):
    """Each single one, though the same place of the code makes several."""
    record = record_in(folders / scenario)
    unneeded = [record.flushes[min(each)] for each in flushes_of(record) if not found(scenario, each, without)]
    assert record.flushes and not unneeded, "\n".join(map(str, unneeded))


@pytest.mark.parametrize("scenario", some((*CHECKPOINTS, "shards"), ("rotation", "file")))
def test_a_flush_that_comes_too_late_is_found(scenario, folders, found):
    """What was staged is flushed before the names that make it final are."""
    record = record_in(folders / scenario)
    flushes = [each for each in flushes_of(record) if is_staged(record, each)]
    harmless = [record.flushes[min(each)] for each in flushes if not found(scenario, each, late)]
    assert flushes and not harmless, "\n".join(map(str, harmless))
