"""Pages and pictures show the losses of curve.jsonl, which are more than were logged."""

import json

import pytest

from oneloop.report import _history, comparison, page_data, summary, write_page
from oneloop.report.log_reader import Directory
from oneloop.report.server import Watched
from tests.report.tiny_runs import BEGIN, RUN, START, event, write_lines


def entry(step, run=RUN, after=None, **values):
    return {"run": run, "step": step, "time": BEGIN + (step if after is None else after), **values}


def finer(first, last, value=1.0, run=RUN):
    return [{"run": run, "step": step, "loss": value + step / 100} for step in range(first, last + 1)]


@pytest.fixture
def run(tmp_path):
    """Logged at 500 and 600, with a curve of steps 1 to 550."""
    logged = [entry(500, loss=0.5, learning_rate=0.1), entry(500, eval_loss=0.4), entry(600, loss=0.3)]
    write_lines(tmp_path / "log.jsonl", logged)
    write_lines(tmp_path / "curve.jsonl", finer(1, 550))
    write_lines(tmp_path / "run.jsonl", [event("started", 0, -1, **START), event("ended", 600, 600)])
    return tmp_path


def looked(folder):
    directory = Directory(folder)
    directory.read_new()
    return directory


def test_curves_have_the_finer_points_and_what_was_logged_after_them(run):
    steps, values = looked(run).curves(4000)["loss"]
    assert steps.tolist() == [*range(1, 551), 600]
    assert values.tolist() == pytest.approx([*(1 + step / 100 for step in range(1, 551)), 0.3])
    assert _history(run, None).line("loss").steps == steps.tolist(), "the picture"
    (packed,) = comparison.page([run])["runs"]
    assert packed["points"]["loss"] == page_data.pack(steps, values), "the comparison"
    assert page_data.pack(steps, values)[0] in write_page(run).read_text(), "the page"


def test_rates_norms_and_speeds_are_those_of_the_curve_too(tmp_path):
    """A short run logs one or two of them."""
    given = {"learning_rate": 0.1, "grad_norm": 2.0, "samples_per_second": 30.0, "tokens_per_second": 90.0}
    write_lines(tmp_path / "log.jsonl", [entry(6, loss=0.5, memory_bytes=5, **given)])
    curve = [line | {key: value + line["step"] / 10 for key, value in given.items()} for line in finer(1, 5)]
    write_lines(tmp_path / "curve.jsonl", [*curve[:4], curve[4] | {"grad_norm": "nan", "tokens_per_second": []}])
    found = looked(tmp_path).curves(4000)
    steps = {key: found[key][0].tolist() for key in (*given, "memory_bytes")}
    assert steps == dict.fromkeys(given, [1, 2, 3, 4, 5, 6]) | {
        "tokens_per_second": [1, 2, 3, 4, 6],
        "memory_bytes": [6],
    }
    assert found["learning_rate"][1].tolist() == pytest.approx([0.2, 0.3, 0.4, 0.5, 0.6, 0.1])
    assert [str(value) for value in found["grad_norm"][1][4:]] == ["nan", "2.0"]


def test_final_values_are_those_that_were_logged(run):
    directory = looked(run)
    assert ["loss", "0.3", "0.3", "600"] in summary.figures(directory)
    assert directory.curves(4000)["learning_rate"][0].tolist() == [500]


def test_before_the_first_log(tmp_path):
    write_lines(tmp_path / "curve.jsonl", finer(1, 20))
    write_lines(tmp_path / "run.jsonl", [event("started", 0, -1, **START)])
    directory = looked(tmp_path)
    assert [chart["title"] for chart in page_data.charts(directory.ranges())] == ["loss"]
    assert ["loss", "1.2", "lowest 1.01 at 1"] in summary.summary(directory, BEGIN)
    assert directory.reached() == 20


def test_logged_losses_before_the_curve(tmp_path):
    """The run was resumed in another directory, or with more to log."""
    write_lines(tmp_path / "log.jsonl", [entry(10, loss=9.0), entry(20, loss=8.0), entry(30, loss=7.0)])
    write_lines(tmp_path / "curve.jsonl", finer(15, 30))
    steps, values = looked(tmp_path).curves(4000)["loss"]
    assert steps.tolist() == [10, *range(15, 31)] and values[0] == 9.0


def test_a_branch_begins_with_the_curve_of_its_parent(tmp_path):
    write_lines(tmp_path / "log.jsonl", [entry(8, "a", loss=1.0), entry(8, "b", loss=2.0)])
    write_lines(tmp_path / "curve.jsonl", finer(1, 8, 1.0, "a") + finer(5, 8, 2.0, "b"))
    told = [event("started", 0, 0, "a"), event("resumed", 4, 5, "b", parent="a")]
    write_lines(tmp_path / "run.jsonl", told)
    steps, values = looked(tmp_path).curves(4000)["loss"]
    assert steps.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert values.tolist() == pytest.approx([1.01, 1.02, 1.03, 1.04, 2.05, 2.06, 2.07, 2.08])


@pytest.mark.parametrize("log_too", [False, True])
def test_a_watched_run_forgets_what_a_resume_removed(run, log_too):
    directory = looked(run)
    before = directory.generation
    for name, kept in (("curve.jsonl", finer(1, 400, 5.0)), ("log.jsonl", [entry(500, loss=0.5)])):
        if name == "curve.jsonl" or log_too:
            write_lines(run / "new", kept)
            (run / "new").replace(run / name)
    directory.read_new()
    steps, values = directory.curves(4000)["loss"]
    assert steps.tolist() == [*range(1, 401), 500] + [600] * (not log_too) and values[0] == pytest.approx(5.01)
    assert directory.generation > before


def unpacked(pair):
    import base64

    import numpy as np

    return np.frombuffer(base64.b64decode(pair[0][1:]), "<u4").tolist()


def test_an_open_page_gets_the_new_points(run):
    (run / "run.jsonl").unlink()
    write_lines(run / "run.jsonl", [event("started", 0, -1, **START)])
    watched = Watched(run)
    try:
        first = watched.updates_for(0, {})["runs"][0]
        assert first["whole"] and unpacked(first["points"]["loss"])[-2:] == [550, 600]
        known = {0: (first["generation"], first["entries"])}
        assert watched.updates_for(0, known)["runs"][0]["replaced"] == {}
        write_lines(run / "curve.jsonl", finer(601, 603))
        write_lines(run / "log.jsonl", [entry(602, loss=7.0, learning_rate=0.2)])
        fresh = watched.updates_for(0, known)["runs"][0]
        assert unpacked(fresh["replaced"]["loss"])[-4:] == [550, 601, 602, 603]
        assert fresh["added"] == {"learning_rate": [[602.0], [0.2]]}
    finally:
        watched.close()


def test_odd_lines_are_left_out(run):
    with open(run / "curve.jsonl", "a") as f:
        for odd in ({"run": RUN}, {"run": RUN, "step": "x", "loss": 1}, {"run": RUN, "step": 700, "loss": []}, 3):
            f.write(json.dumps(odd) + "\n")
        f.write('{"run": "' + RUN + '", "step": 701, "loss": 1.')
    assert looked(run).curves(4000)["loss"][0].tolist() == [*range(1, 551), 600]
