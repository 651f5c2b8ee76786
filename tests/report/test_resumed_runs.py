"""Pages of runs that were resumed, taken back or branched: nothing is shown twice; and pages that find no room."""

import errno
import os
from pathlib import Path

import pytest

from oneloop.report import summary, write_page
from oneloop.report.json_lines import Tail
from oneloop.report.log_reader import Directory
from tests.report.tiny_runs import event, lines, write_lines

PARENT, CHILD = "a" * 16, "b" * 16


def replace(path, entries):
    """As a resume does that takes lines back: a new file in the place of the old one."""
    write_lines(path.with_name("new"), entries)
    path.with_name("new").replace(path)


@pytest.mark.parametrize("more", [-1, 0, 1], ids=["shorter", "as long", "longer"])
def test_a_file_that_was_replaced_is_read_from_its_beginning(tmp_path, more):
    path = tmp_path / "log.jsonl"
    write_lines(path, [{"step": 1}, {"step": 2}])
    tail = Tail(path)
    assert [entry["step"] for block in tail.read() for entry in block] == [1, 2]
    replace(path, [{"step": 5 + n} for n in range(2 + more)])
    assert [entry["step"] for block in tail.read() for entry in block] == [5 + n for n in range(2 + more)]
    assert tail.generation == 1
    write_lines(path, [{"step": 9}])
    assert [entry["step"] for block in tail.read() for entry in block] == [9] and tail.generation == 1


def test_a_watched_run_forgets_the_points_that_a_resume_took_back(tmp_path):
    entries = list(lines(100))
    write_lines(tmp_path / "log.jsonl", entries)
    watched = Directory(tmp_path)
    watched.read_new()
    before = watched.generation
    replace(tmp_path / "log.jsonl", [entry | {"loss": 7.0} for entry in entries if entry["step"] <= 50])
    write_lines(tmp_path / "log.jsonl", [{"run": entries[0]["run"], "step": 60 + n, "loss": 8.0} for n in range(99)])
    watched.read_new()
    steps, values = watched.curves(1000)["loss"]
    assert values.tolist() == [7.0] * 5 + [8.0] * 99 and steps.tolist() == [10, 20, 30, 40, 50, *range(60, 159)]
    assert watched.generation > before, "a page that has the old points is sent all anew"


def test_what_a_resumed_run_meets_again_is_told_once(tmp_path):
    """It died after step 20 and went on from 10: the bad batch at 15 came again, the one at 12 was left out."""
    told = [
        event("started", 0, 0),
        event("nonfinite", 12, 1, action="skip", samples="[1]"),
        event("nonfinite", 15, 2, action="skip", samples="[2]"),
        event("resumed", 10, 60),
        event("nonfinite", 15, 62, action="skip", samples="[3]"),
        event("ended", 30, 70),
    ]
    write_lines(tmp_path / "run.jsonl", told)
    found = Directory(tmp_path)
    found.read_new()
    shown = [(one["kind"], one["step"]) for one in summary.events(found)]
    assert shown == [("started", 0), ("nonfinite", 12), ("died", 10), ("resumed", 10), ("nonfinite", 15), ("ended", 30)]
    assert [one["text"] for one in summary.events(found) if one["step"] == 15] == [
        "the update was skipped; samples [3]"
    ]


def test_a_branch_has_what_happened_to_the_other_run_before_it_and_nothing_later(tmp_path):
    write_lines(
        tmp_path / "log.jsonl", [{"run": PARENT, "step": 5, "loss": 1.0}, {"run": CHILD, "step": 15, "loss": 1.0}]
    )
    told = [
        event("started", 0, 0, PARENT),
        event("save_waited", 5, 5, PARENT, what="checkpoint-5", seconds=1),
        event("save_waited", 20, 20, PARENT, what="checkpoint-20", seconds=1),  # beyond the branch
        event("ended", 20, 21, PARENT),
        event("resumed", 10, 100, CHILD, parent=PARENT),
        event("resumed", 5, 200, PARENT),  # the other run goes on, later, from further back
        event("save_waited", 8, 201, PARENT, what="checkpoint-8", seconds=1),
        event("ended", 30, 300, CHILD),
    ]
    write_lines(tmp_path / "run.jsonl", told)
    found = Directory(tmp_path)
    found.read_new()
    assert found.run_id == CHILD
    own = [(one["event"], one["step"]) for one in found.own_events()]
    assert own == [("started", 0), ("save_waited", 5), ("resumed", 10), ("ended", 30)]


@pytest.mark.parametrize("place", ["written", "put in its place"])
def test_a_page_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch, place):
    page = write_page(tmp_path, [{"step": 1, "loss": 2.0}])
    before = page.read_bytes()

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def half(self, text, encoding, newline):
        self.write_bytes(text.encode(encoding)[:100])
        full()

    monkeypatch.setattr(Path, *(("write_text", half) if place == "written" else ("replace", full)))
    with pytest.raises(OSError, match="No space"):
        write_page(tmp_path, [{"step": 1, "loss": 3.0}])
    assert [path.name for path in tmp_path.iterdir()] == [page.name] and page.read_bytes() == before
