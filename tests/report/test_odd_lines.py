"""Whatever the lines of log.jsonl, curve.jsonl and run.jsonl say: `report`, `watch`, `compare` and `checkpoints` go on
with the rest."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oneloop.cli.main import main
from oneloop.report import comparison, page, write_comparison, write_page
from oneloop.report.server import Watched
from tests.report.tiny_runs import START, event, lines, write_lines

ODD = st.sampled_from(
    [None, True, 0, -1, 1.5, 1e300, -1e300, 2**70, 10**400, float("nan"), float("inf"), -float("inf"), "", "nan", "x"]
    + ["\ud800", "\0", [], {}, [1], [[]], {"a": [1]}, "2026", -(2**70), 1e-320, "</script>"]
) | st.recursive(st.none() | st.integers() | st.floats() | st.text(max_size=5), st.lists, max_leaves=4)
EVENTS = ["started", "resumed", "ended", "preempted", "failed", "nonfinite", "saved", "save_failed", "profiled", "x"]
FIELDS = ["run", "time", "step", "max_steps", "parameters", "parent", "packages", "arguments", "framework", "skipped"]
FIELDS += [
    "passed_over",
    "stopped",
    "error",
    "samples",
    "split",
    "saved",
    "message",
    "stream",
    "loss",
    "eval_loss",
    "epoch",
]
EVENT = st.fixed_dictionaries({"event": st.sampled_from(EVENTS)}, optional=dict.fromkeys(FIELDS, ODD))
ENTRY = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("run", "step", "time", "loss", "eval_loss", "epoch", "x"), ODD)
)
RAW = st.sampled_from([b"", b"{", b"[" * 5000, b"\xff\xfe", b'{"step": 1e999}', b"3", b"null", b'{"event": []}', b"\0"])
LINES = st.lists((EVENT | ENTRY | ODD).map(lambda value: json.dumps(value).encode()) | RAW, max_size=4)


def look_at(folder):
    """All that these commands do with a run."""
    assert b"<html" in write_page(folder).read_bytes()
    write_comparison([folder, folder], folder / "compare.html")
    page.html(comparison.page([folder]))
    watched = Watched(folder)
    try:
        assert "<html" in watched.page(0)
        page.json.dumps(watched.updates_for(0, {}))
        page.json.dumps(watched.updates_for(None, {0: (0, 1)}))
    finally:
        watched.close()


def write(folder, log, events):
    """A run of ten steps, with these lines in the middle of its files."""
    good = [json.dumps(entry).encode() for entry in lines(10, run="a")]
    whole = [
        json.dumps(each).encode() for each in (event("started", 0, -1, "a", **START), event("ended", 10, 3.1, "a"))
    ]
    (folder / "log.jsonl").write_bytes(b"\n".join([*good[:5], *log, *good[5:], b""]))
    (folder / "run.jsonl").write_bytes(b"\n".join([whole[0], *events, whole[1], b""]))
    (folder / "curve.jsonl").write_bytes(b"\n".join([*good[:5], *log, b"{", *log]))


def look_for(count):
    options = {"deadline": None, "derandomize": count < 100, "database": None}

    @settings(max_examples=count, suppress_health_check=list(HealthCheck), **options)
    @given(LINES, LINES)
    def check(log, events):
        with TemporaryDirectory() as place:
            write(Path(place), log, events)
            look_at(Path(place))

    check()


def test_some_odd_lines():
    look_for(25)


@pytest.mark.slow
def test_many_odd_lines():
    look_for(1500)


ODD_EVENTS = [
    {"event": "saved", "run": "a", "step": [1], "time": 3},
    {"event": "saved", "run": "a", "step": {}, "time": 3},
    {"event": "resumed", "run": "a", "step": float("inf"), "time": float("nan")},
    {"event": "started", "run": ["a"], "max_steps": float("inf"), "time": 2e9, "step": 1},
    {"event": "started", "run": "a", "max_steps": 1e308, "time": "now", "step": 1},
]


@pytest.mark.parametrize("odd", ODD_EVENTS, ids=range(len(ODD_EVENTS)))
def test_odd_steps_and_times_of_events(tmp_path, odd, capsys):
    write(tmp_path, [], [json.dumps(odd).encode()])
    look_at(tmp_path)
    assert main(["checkpoints", str(tmp_path)]) == 0


def test_files_that_are_pipes(tmp_path):
    import os

    write(tmp_path, [], [])
    (tmp_path / "run.jsonl").unlink()
    os.mkfifo(tmp_path / "run.jsonl")
    look_at(tmp_path)
    write_lines(tmp_path / "other.jsonl", lines(3))
    (tmp_path / "log.jsonl").unlink()
    (tmp_path / "log.jsonl").symlink_to("/dev/zero")
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": [{"step": 1, "loss": 2.0}, 3]}))
    look_at(tmp_path)
