"""What is read of a run's directory: growing, torn and very long logs, resumes, branches, and thinned points."""

import json
import os

import numpy as np
import pytest

from oneloop.errors import DataError
from oneloop.report import comparison, page_data, summary, write_page
from oneloop.report.downsample import Series, downsample
from oneloop.report.json_lines import Tail
from oneloop.report.log_reader import Directory
from oneloop.report.run_folders import find_runs
from tests.report.tiny_runs import ARGUMENTS, START, event, lines, write_lines, write_run


def directory(folder):
    found = Directory(folder)
    found.read_new()
    return found


# -- lines


def test_a_tail_gives_each_line_once_and_waits_for_a_torn_one(tmp_path):
    tail = Tail(tmp_path / "log.jsonl")
    read = lambda: [entry["n"] for block in tail.read() for entry in block]  # noqa: E731
    assert read() == []
    (tmp_path / "log.jsonl").write_text('{"n": 1}\n{"n": 2}\n{"n": ')
    assert read() == [1, 2] and read() == []
    with open(tmp_path / "log.jsonl", "a") as f:
        f.write('3}\nnot json\n[4]\n\n{"n": 5}\n')
    assert read() == [3, 5] and tail.generation == 0


@pytest.mark.parametrize("how", ["replaced", "cut"])
def test_a_replaced_file_is_read_from_its_start(tmp_path, how):
    path = tmp_path / "log.jsonl"
    write_lines(path, [{"n": i} for i in range(9)])
    tail = Tail(path)
    assert sum(len(block) for block in tail.read()) == 9
    write_lines(tmp_path / "new", [{"n": 100}])
    os.replace(tmp_path / "new", path) if how == "replaced" else path.write_text('{"n": 100}\n')
    assert list(tail.read()) == [[{"n": 100}]] and tail.generation == 1


def test_lines_longer_than_a_block_are_read(tmp_path):
    write_lines(tmp_path / "log.jsonl", [{"n": "x" * 3_000_000}, {"n": 2}])
    assert [len(str(e["n"])) for block in Tail(tmp_path / "log.jsonl").read() for e in block] == [3_000_000, 1]


def sampled(path, budget):
    tail = Tail(path)
    return [entry for block in tail.read(budget) for entry in block], tail


def test_a_long_log_is_sampled_evenly_and_no_evaluation_is_missed(tmp_path):
    path = tmp_path / "log.jsonl"
    write_lines(path, lines(200_000, evaluations=1000))
    entries, tail = sampled(path, 300_000)
    assert not tail.is_complete and len(entries) < 2000 < path.stat().st_size / 400
    assert [e["step"] for e in entries if "eval_loss" in e] == list(range(1000, 200_001, 1000))
    steps = [e["step"] for e in entries if "loss" in e]
    assert steps == sorted(set(steps)) and steps[0] == 10 and steps[-1] == 200_000
    assert max(np.diff(steps)) < 200_000 / 50
    for file in (path, tmp_path / "none"):
        assert sampled(file, path.stat().st_size)[1].is_complete


@pytest.mark.parametrize("separators", [(", ", ": "), (",", ":")])
def test_no_spike_and_no_nan_of_the_loss_is_missed_between_the_stretches(tmp_path, separators):
    path, draw = tmp_path / "log.jsonl", np.random.default_rng(5)
    losses = [float(value) for value in draw.normal(2, 0.1, size=60_000)]
    odd = {1234: 77.5, 20_001: "nan", 33_333: -5e-07, 40_000: "inf", 47_000: 77.25, 59_998: 1e3}
    for place, value in odd.items():
        losses[place] = value
    with open(path, "w") as f:
        entries = ({"step": i, "eval_loss_": -9, "loss": loss, "z": [1]} for i, loss in enumerate(losses))
        f.writelines(json.dumps(entry, separators=separators) + "\n" for entry in entries)
    entries, tail = sampled(path, 40_000)
    assert len(entries) < 3000 and not tail.is_complete
    assert {e["step"]: e["loss"] for e in entries if not isinstance(e["loss"], float) or abs(e["loss"] - 2) > 1} == odd
    assert [e["step"] for e in entries] == sorted({e["step"] for e in entries}) and entries[-1]["step"] == 59_999


@pytest.mark.parametrize("end", ["", '{"n": 9'])
def test_a_tail_continues_after_a_sample(tmp_path, end):
    """Also where a line is longer than a stretch, the last one among them."""
    path = tmp_path / "log.jsonl"
    write_lines(path, [{"n": i, "pad": "x" * (9000 if i % 50 == 49 else 10)} for i in range(2000)])
    with open(path, "a") as f:
        f.write(end)
    entries, tail = sampled(path, 9000)
    assert (entries[0]["n"], entries[-1]["n"]) == (0, 1999) and len(entries) < 500 and not tail.is_complete
    with open(path, "a") as f:
        f.write((end and "}") + "\n" + '{"n": 10}\n')
    assert [e["n"] for block in tail.read(9000) for e in block] == [9] * bool(end) + [10]
    assert tail.generation == 0


def test_a_long_file_without_an_end_of_line_is_no_log_yet(tmp_path):
    (tmp_path / "log.jsonl").write_text("x" * 100_000)
    assert sampled(tmp_path / "log.jsonl", 5000)[0] == []


# -- thinning


def test_thinning_keeps_ends_peaks_and_gaps():
    steps = np.arange(100_000.0)
    values = np.sin(steps / 5000)
    values[[31_415, 77_777, 99_990]] = [50, -50, 60]
    values[60_000] = np.nan
    kept, left = downsample(steps, values, 300)
    assert len(kept) <= 300 and (np.diff(kept) > 0).all() and kept[0] == 0 and kept[-1] == 99_999
    assert left[kept == 31_415] == 50 and left[kept == 77_777] == -50 and left[kept == 99_990] == 60
    assert np.isnan(left[kept == 60_000]).all()
    assert (kept == 60_000).any()
    assert (
        np.abs(np.interp(steps, kept[np.isfinite(left)], left[np.isfinite(left)])[:31_000] - values[:31_000]).max()
        < 0.1
    )


def test_a_series_stays_small_and_knows_its_extremes():
    series = Series()
    draw = np.random.default_rng(0)
    for start in range(0, 500_000, 5000):
        values = draw.normal(size=5000)
        if start == 250_000:
            values[7] = 1e6
        series.extend(np.arange(start, start + 5000.0), values)
    steps, values = series.points(1000)
    assert len(series._steps) <= 8 * Series.LIMIT + 5000 and len(steps) <= 1000
    assert series.highest == (1e6, 250_007.0) and values.max() == 1e6 and steps[-1] == 499_999
    assert series.count == 500_000 and series.last == pytest.approx(values[-1])


# -- runs


def test_the_run_that_wrote_last_is_shown_without_the_lines_of_others(tmp_path):
    write_run(tmp_path, steps=100, run="a" * 16)
    write_run(tmp_path, steps=50, run="b" * 16, seed=3)
    found = directory(tmp_path)
    assert found.run_id == "b" * 16 and found.reached() == 50
    assert found.curves(100)["loss"][0].tolist() == [10, 20, 30, 40, 50]
    assert [e["kind"] for e in summary.events(found)] == ["started", "ended"]


def test_a_run_that_branched_off_has_the_curve_before_the_branch(tmp_path):
    write_lines(tmp_path / "log.jsonl", lines(200, run="a" * 16))
    later = [entry | {"loss": 7.0} for entry in lines(100, run="b" * 16) if entry["step"] > 60]
    write_lines(tmp_path / "log.jsonl", later)
    resumed = event("resumed", 60, 99, run="b" * 16, parent="a" * 16, **{"from": "checkpoint-60"})
    write_lines(tmp_path / "run.jsonl", [event("started", 0, -1, run="a" * 16), resumed])
    found = directory(tmp_path)
    steps, values = found.curves(1000)["loss"]
    assert steps.tolist() == list(range(10, 101, 10)) and (values[6:] == 7).all() and (values[:6] < 7).all()
    assert [e["title"] for e in summary.events(found)] == ["started", "ended unexpectedly", "branched off"]


def test_pauses_are_not_training(tmp_path):
    entries = [{"run": "r", "step": s, "time": 1000 + 10 * s + 5000 * (s > 3), "loss": 1.0} for s in range(1, 7)]
    write_lines(tmp_path / "log.jsonl", entries)
    events = [("started", 0, 1000), ("preempted", 3, 1031), ("resumed", 3, 6030), ("ended", 6, 6061)]
    write_lines(tmp_path / "run.jsonl", [{"run": "r", "event": e, "step": s, "time": t} for e, s, t in events])
    steps, seconds = directory(tmp_path).clock()
    assert steps.tolist() == [1, 2, 3, 4, 5, 6] and seconds.tolist() == [10, 20, 30, 41, 51, 61]


def test_lines_that_are_not_logs_are_skipped(tmp_path):
    odd = [{"run": 5, "step": "x", "loss": 1}, {"step": None}, {"loss": 1}, {"step": 1, "loss": "text", "flag": True}]
    odd += [{"step": 2, "loss": 10**400, "note": None}, {"step": 3, "loss": "inf"}, {"step": 4, "loss": [1]}]
    write_lines(tmp_path / "log.jsonl", odd + [{"step": 5, "loss": 2.0, "time": "now"}])
    write_lines(tmp_path / "run.jsonl", [{"event": 5}, {"event": "odd", "run": "", "step": "x", "time": "y"}])
    found = directory(tmp_path)
    steps, values = found.curves(100)["loss"]
    assert steps.tolist() == [2, 3, 5] and values.tolist() == [np.inf, np.inf, 2.0]
    data = page_data.run_page(found)
    assert json.dumps(data, allow_nan=False) and [c["title"] for c in data["charts"]] == ["loss"]


def test_the_state_of_a_checkpoint_serves_where_there_is_no_log(tmp_path):
    """As for runs of other trainers."""
    (tmp_path / "checkpoint-20").mkdir()
    state = {"log_history": [{"step": 10, "loss": 2.0}, {"step": 20, "loss": 1.0}], "global_step": 20}
    (tmp_path / "checkpoint-20" / "trainer_state.json").write_text(json.dumps(state))
    found = directory(tmp_path)
    assert found.curves(10)["loss"][1].tolist() == [2, 1] and summary.status(found, 0) == "unknown"


def test_the_last_log_line_decides_whether_a_run_is_running(tmp_path):
    folder = write_run(tmp_path / "done", steps=100)
    assert summary.status(directory(folder), 2e9) == "finished"
    running = tmp_path / "running"
    write_lines(running / "run.jsonl", [event("started", 0, 0, **START)])
    write_lines(running / "log.jsonl", list(lines(100)))
    found = directory(running)
    heard = found.points.recent[-1]["time"]
    assert summary.status(found, heard + 5) == "running" and summary.status(found, heard + 5000) == "silent"
    assert "remaining" in {row[0]: row[2] for row in summary.summary(found, heard + 5)}["training time"]
    for last, word in (("preempted", "preempted"), ("failed", "failed")):
        write_lines(running / "run.jsonl", [event(last, 100, 60)])
        assert summary.status(directory(running), heard) == word
    write_lines(running / "run.jsonl", [event("ended", 90, 70, stopped=True)])
    assert summary.status(directory(running), heard) == "stopped early"


# -- several runs


def test_runs_are_found_below_a_directory_and_a_directory_without_one_is_named(tmp_path):
    for name in ("b", "a/deep", ".hidden"):
        write_run(tmp_path / name, steps=20)
    (tmp_path / "empty").mkdir()
    assert [path.relative_to(tmp_path).as_posix() for path in find_runs(tmp_path)] == ["a/deep", "b"]
    assert find_runs(tmp_path / "b") == [tmp_path / "b"]
    with pytest.raises(DataError, match="empty contains no run"):
        comparison.find([tmp_path, tmp_path / "empty"])


def test_a_comparison_names_runs_by_the_arguments_in_which_they_differ(tmp_path):
    for i, rate in enumerate((0.1, 0.2)):
        given = ARGUMENTS | {"learning_rate": rate, "output_dir": str(tmp_path / str(i))}
        write_run(tmp_path / str(i) / "run", steps=500, arguments=given, seed=i, run=f"{i:016}")
    data = comparison.page(comparison.find([tmp_path]))
    assert data["differing"] == ["learning_rate"] and [run["name"] for run in data["runs"]] == ["0/run", "1/run"]
    assert [run["label"] for run in data["runs"]] == ["learning_rate 0.1", "learning_rate 0.2"]
    assert ["eval_accuracy", True] in data["metrics"] and ["eval_loss", False] in data["metrics"]
    last, best, at, exact = data["runs"][0]["metrics"]["eval_loss"]
    assert float(best) <= float(last) and at in (250, 500) and float(best) == pytest.approx(exact, rel=1e-3)


def test_the_best_value_is_the_highest_or_the_lowest(tmp_path):
    found = Directory(tmp_path)
    values = ((10, 3.0, 0.25), (20, 1.0, 0.75), (30, 2.0, 0.5))
    found.use_history([{"step": step, "eval_loss": loss, "eval_accuracy": share} for step, loss, share in values])
    run = comparison.read(found, "run")
    assert run["best"] == {"eval_loss": (1.0, 20.0), "eval_accuracy": (0.75, 20.0)}
    (row,) = comparison.table_rows([run], [])
    assert row["metrics"] == {"eval_loss": ["2", "1", 20.0, 1.0], "eval_accuracy": ["0.5", "0.75", 20.0, 0.75]}
    assert summary.figures(found) == [["eval_loss", "2", "1", "20"], ["eval_accuracy", "0.5", "0.75", "20"]]
    overview = summary.summary(found, now=0.0)
    assert overview[-2:] == [["evaluation loss", "2", "lowest 1 at 20"], ["accuracy", "0.5", "best 0.75 at 20"]]


def test_an_argument_that_one_run_lacks_differs():
    assert comparison.differing([{"seed": "1"}, {"seed": "1", "new": "2"}, {"seed": "1", "new": "2"}]) == ["new"]
    assert comparison.differing([{"seed": "1", "output_dir": "a"}, {"seed": "1", "output_dir": "b"}]) == []


def test_a_run_that_cannot_be_read_does_not_hide_the_others(tmp_path):
    write_run(tmp_path / "good", steps=50)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "trainer_state.json").write_text('{"log_history": [')
    data = comparison.page(comparison.find([tmp_path]))
    assert [(run["name"], run["status"]) for run in data["runs"]] == [("bad", "unknown"), ("good", "finished")]
    with pytest.raises(DataError, match="is not a trainer state"):
        write_page(tmp_path / "bad")


def test_the_page_of_many_runs_stays_small(tmp_path):
    found = directory(write_run(tmp_path, steps=5000, evaluations=100))
    runs = [comparison.read(found, f"run {i}") for i in range(300)]
    data = comparison.assemble(runs)
    size = len(json.dumps(data))
    points = sum(len(pair[1]) * 3 / 16 for run in data["runs"] for pair in run["points"].values())
    assert points <= comparison.POINTS and size < 9_000_000
