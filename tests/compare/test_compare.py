"""scripts/compare: runs are equal to themselves, a planted difference is found, and an explanation is taken for one."""

import copy
import shutil
from importlib.util import find_spec

import pytest

from tests.compare.compare import ROOT, compare, differences, names_of, read, verdict

RECORD = {
    "phases": [[{"error": None, "exit": 0, "events": ["on_log 1", "on_save 1"], "reads": [{"item": 1}], "texts": []}]],
    "files": {"out/model.safetensors": {"sha256": "0a", "bytes": 1}},
    "seconds": 1.5,
}
# Appended to a copy of oneloop: a log that lacks a key, and reads from the device to no purpose.
PLANTED = """
_found = __getattr__


def __getattr__(name):
    value = _found(name)
    if name == "Trainer":
        log = value.log

        def planted(self, logs, start_time=None):
            logs.pop("grad_norm", None)
            self.model.head.bias.sum().item()
            log(self, logs, start_time)

        value.log = planted
    return value
"""


def changed(**more):
    """The record with other values for its one process."""
    record = copy.deepcopy(RECORD)
    record["phases"][0][0] |= more
    return record


@pytest.mark.parametrize(
    "old, new, found",
    [
        ({"a": [1, {"b": 0.1}]}, {"a": [1, {"b": 0.1}]}, []),
        ({"a": 0.1}, {"a": 0.1 + 2**-56}, [("a", 0.1, 0.1 + 2**-56)]),
        ({"a": 1}, {"a": True}, [("a", 1, True)]),
        ({"a": 1}, {"b": 1}, [("a", 1, "missing"), ("b", "missing", 1)]),
        ([1, 2], [1, 3, 4], [("[1]", 2, 3), ("[2:]", "2 in all", "3 in all")]),
        ([[1]], [{"a": 1}], [("[0]", [1], {"a": 1})]),
    ],
)
def test_every_leaf_that_differs_is_named(old, new, found):
    assert list(differences(old, new)) == found


def test_arguments_that_are_new_are_a_difference_of_their_own():
    def record(stored, logged, loss=0.5):
        files = {
            "out/training_args.json": {"sha256": str(stored), "json": stored},
            "out/run.jsonl": {"sha256": str(logged), "json": [{"event": "start", "arguments": logged}, {"loss": loss}]},
        }
        return {**RECORD, "files": files}

    old, new = {"lr": 1}, {"lr": 1, "tensor_parallel_size": 1}
    explained = [("*", "new arguments", "because")]
    good, lines = verdict("torch-plain", record(old, old), record(new, new), explained)
    assert good and len(lines) == 2 and "tensor_parallel_size" in lines[1]
    assert not verdict("torch-plain", record(old, old), record(new, new), [])[0]
    assert not verdict("torch-plain", record(old, old), record(new | {"lr": 2}, new), explained)[0]
    assert not verdict("torch-plain", record(old, old), record(new, new, loss=0.6), explained)[0]
    assert not verdict("torch-plain", record(new, new), record(old, old), explained)[0]  # one that is gone


def test_a_line_says_what_differs_first():
    good, lines = verdict("torch-plain", RECORD, changed(events=["on_log 1", "on_log 2", "on_save 1"]), [])
    assert not good and lines[0] == "DIFFERS  torch-plain"
    assert lines[1].strip() == 'differs events: [1]: "on_save 1" -> "on_log 2" and 1 more'


def test_words_and_seconds_are_not_compared():
    other = changed(texts=["WARNING: in other words"]) | {"seconds": 9.0}
    assert verdict("torch-plain", RECORD, other, []) == (True, ["equal    torch-plain"])


def test_an_explanation_covers_its_runs_and_its_field_alone():
    explained = [("torch-*", "reads", "one read less")]
    less = changed(reads=[{}])
    good, lines = verdict("torch-plain", RECORD, less, explained)
    assert good and "differs, explained: one read less" in lines[1]
    assert not verdict("paddle-plain", RECORD, less, explained)[0]
    assert not verdict("torch-plain", RECORD, changed(reads=[{}], events=[]), explained)[0]


@pytest.mark.parametrize("fault", [{"error": "ImportError"}, {"exit": -11}])
def test_runs_that_fail_on_both_sides_are_not_equal(fault):
    record = changed(**fault)
    good, lines = verdict("torch-plain", record, record, [])
    assert not good and lines[0] == "BROKEN   torch-plain"
    assert not verdict("torch-plain", None, RECORD, [])[0]


@pytest.fixture(scope="module")
def name():
    """A run of the framework that is imported the fastest."""
    return next(f"{name}-plain" for name in ("paddle", "mindspore", "torch") if find_spec(name))


def test_a_run_is_equal_to_itself_and_its_record_says_something(name, tmp_path, capsys):
    assert name in names_of("plain")
    assert compare(ROOT, ROOT, [name], tmp_path, 1, [])
    assert capsys.readouterr().out.splitlines()[0] == f"equal    {name}"
    record = read(tmp_path / "old", name, ROOT)
    of_process = record["phases"][0][0]
    assert {"out/checkpoint-5/model.safetensors", "out/checkpoint-5/manifest.json"} <= record["files"].keys()
    assert len(of_process["reads"]) == 13 and any(of_process["reads"])  # 12 steps, and what is before them
    assert of_process["events"][0].startswith("on_init_end 0") and of_process["history"][0]
    with pytest.raises(SystemExit, match="not with the oneloop of"):
        read(tmp_path / "old", name, tmp_path)


def test_a_planted_difference_is_found(name, tmp_path, capsys):
    planted = tmp_path / "planted"
    shutil.copytree(ROOT / "oneloop", planted / "oneloop", ignore=shutil.ignore_patterns("__pycache__"))
    with open(planted / "oneloop" / "__init__.py", "a") as f:
        f.write(PLANTED)
    assert not compare(ROOT, planted, [name], tmp_path / "runs", 1, [])
    said = capsys.readouterr().out
    assert said.startswith(f"DIFFERS  {name}\n")
    fields = {line.split()[1].rstrip(":") for line in said.splitlines() if line.strip().startswith("differs")}
    assert {"history", "files", "reads"} <= fields
    assert not fields & {"weights", "samples", "state", "warnings"}
