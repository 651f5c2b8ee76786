"""Everything on the page of a run, compared with what follows by hand from a few lines of its files."""

import base64
import json
import math

import numpy as np
import pytest

from oneloop.checkpoint.listing import size_text
from oneloop.report import follow, history, page_data, summary
from oneloop.report.downsample import Series, downsample
from oneloop.report.log_reader import Directory

BEGIN = 1_790_000_000.0
START = {
    "event": "started",
    "framework": "torch",
    "packages": {"oneloop": "0.1.0"},
    "python": "3.11.7",
    "system": "Linux",
    "device": "cuda:0",
    "hardware": "a GPU",
    "processes": 2,
    "model": "Bert",
    "parameters": 12_345,
    "samples_per_step": 32,
    "max_steps": 40,
    "arguments": {"learning_rate": 0.5, "seed": 42, "output_dir": "x", "run_name": "y", "bf16": True, "own": [1, "é"]},
}
LOGS = [
    {"step": 10, "loss": 2.5, "learning_rate": 0.5, "grad_norm": 3.0},
    {"step": 10, "eval_loss": 2.25, "eval_accuracy": 0.25, "eval_bleu": 31.5, "eval_runtime": 3.5},
    {"step": 20, "loss": 1.25, "learning_rate": 0.25, "grad_norm": 5.0, "own_value": 7.0},
    {"step": 20, "eval_loss": 1.75, "eval_accuracy": 0.75, "eval_bleu": 30.5, "eval_runtime": 2.5},
    {"step": 30, "loss": 1.5, "learning_rate": 0.125, "grad_norm": "nan"},
    {"step": 30, "eval_loss": 2.0, "eval_accuracy": 0.5, "eval_bleu": 33.5, "eval_runtime": 4.5},
    {"step": 30, "train_loss": 1.75, "train_runtime": 90.0, "total_flos": 12345678.0},
]


def written(folder, events, logs=LOGS, seconds=30.0):
    """A run whose log has a line every `seconds`; events are at the same times."""
    times = {step: BEGIN + seconds * step / 10 for step in range(0, 100, 10)}
    lines = [{"run": "r", "time": times[entry["step"]], **entry} for entry in logs]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    lines = [{"run": "r", "time": times[event.get("step", 0)], "step": 0, **event} for event in events]
    (folder / "run.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    directory = Directory(folder)
    directory.read_new()
    return directory


def test_the_tables_of_a_finished_run(tmp_path):
    directory = written(tmp_path, [START, {"event": "ended", "step": 30}])
    assert summary.summary(directory, BEGIN + 1e6) == [
        ["state", "finished", ""],
        ["step", "30", "75% of 40"],
        ["training time", "1 min 30 s", ""],
        ["loss", "1.5", "lowest 1.25 at 20"],
        ["evaluation loss", "2", "lowest 1.75 at 20"],
        ["accuracy", "0.5", "best 0.75 at 20"],
    ]
    assert summary.figures(directory) == [
        ["loss", "1.5", "1.25", "20"],
        ["eval_loss", "2", "1.75", "20"],
        ["eval_accuracy", "0.5", "0.75", "20"],
        ["eval_bleu", "33.5", "33.5", "30"],
        ["eval_runtime", "4.5", "", ""],
        ["train_loss", "1.75", "", ""],
        ["train_runtime", "90", "", ""],
        ["total_flos", "12,345,678", "", ""],
    ]
    assert summary.environment(directory) == [
        ["framework", "torch"],
        ["model", "Bert"],
        ["trainable parameters", "12,345"],
        ["device", "cuda:0"],
        ["hardware", "a GPU"],
        ["processes", "2"],
        ["samples per update", "32"],
        ["Python", "3.11.7"],
        ["system", "Linux"],
        ["oneloop", "0.1.0"],
        ["run", "r"],
    ]
    page = page_data.run_page(directory, None)
    assert page["arguments"] == [["learning_rate", "0.5", "5e-05"], ["bf16", "true", "false"], ["own", '[1, "é"]', ""]]
    assert page["title"] == page["runs"][0]["name"] == tmp_path.name and page["partly"] is False
    assert [(chart["title"], chart["keys"], chart["zero"]) for chart in page["charts"]] == [
        ("loss", [["loss", "training"], ["eval_loss", "evaluation"]], False),
        ("accuracy (evaluation)", [["eval_accuracy", "accuracy"]], False),
        ("bleu (evaluation)", [["eval_bleu", "bleu"]], False),
        ("learning rate", [["learning_rate", "learning rate"]], True),
        ("gradient norm", [["grad_norm", "gradient norm"]], True),
        ("own value", [["own_value", "own_value"]], False),
    ]


def test_the_points_of_every_curve(tmp_path):
    packed = page_data.run_page(written(tmp_path, [START]))["runs"][0]

    def unpacked(pair):
        steps, values = pair
        steps = np.frombuffer(base64.b64decode(steps[1:]), {"u": "<u4", "d": "<f8"}[steps[0]])
        return list(zip(steps.tolist(), np.frombuffer(base64.b64decode(values), "<f4").tolist()))

    found = {key: unpacked(pair) for key, pair in packed["points"].items()}
    norms = found.pop("grad_norm")
    assert norms[:2] == [(10, 3.0), (20, 5.0)] and norms[2][0] == 30 and math.isnan(norms[2][1])
    assert found == {
        "loss": [(10, 2.5), (20, 1.25), (30, 1.5)],
        "learning_rate": [(10, 0.5), (20, 0.25), (30, 0.125)],
        "eval_loss": [(10, 2.25), (20, 1.75), (30, 2.0)],
        "eval_accuracy": [(10, 0.25), (20, 0.75), (30, 0.5)],
        "eval_bleu": [(10, 31.5), (20, 30.5), (30, 33.5)],
        "own_value": [(20, 7.0)],
    }
    assert unpacked(packed["clock"])[-1] == (30, 90.0)
    assert unpacked(page_data.pack(np.array([2.0**32]), np.array([1.0]))) == [(2.0**32, 1.0)]
    assert unpacked(page_data.pack(np.array([2.0**32 - 1]), np.array([1.0]))) == [(2**32 - 1, 1.0)]
    assert unpacked(page_data.pack(np.array([0.5]), np.array([1.0]))) == [(0.5, 1.0)]


def rows_of(directory, now):
    return {label: (value, note) for label, value, note in summary.summary(directory, now)}


def test_the_state_of_a_run(tmp_path):
    last = BEGIN + 90.0
    running = written(tmp_path, [START])
    assert rows_of(running, last + 119.9)["state"] == ("running", "")
    assert rows_of(running, last + 119.9)["training time"] == ("1 min 30 s", "about 30 s remaining")
    silent = rows_of(running, last + 120.0)
    assert silent["state"] == ("silent", "no log line for 2 min 00 s: killed, or in a long step")
    assert silent["training time"] == ("1 min 30 s", "")
    for events, state in (
        ([START, {"event": "ended", "step": 30, "stopped": True}], "stopped early"),
        ([START, {"event": "preempted", "step": 30}], "preempted"),
        ([START, {"event": "failed", "step": 30}], "failed"),
        ([START, {"event": "ended", "step": 30}, {"event": "resumed", "step": 30}], "running"),
        ([{"event": "profiled"}], "unknown"),
    ):
        note = "the run has no run.jsonl" if state == "unknown" else ""
        assert rows_of(written(tmp_path, events), last + 1.0)["state"] == (state, note)
    unlimited = written(tmp_path, [START | {"max_steps": -1}])
    assert rows_of(unlimited, last)["step"] == ("30", "") and rows_of(unlimited, last)["training time"][1] == ""
    done = written(tmp_path, [START | {"max_steps": 30}])
    assert rows_of(done, last)["step"] == ("30", "100% of 30") and rows_of(done, last)["training time"][1] == ""


SPIKE = {"value": 9.5, "median": 1.25, "limit": 4.0}
EVENTS = [
    (START, "started", "torch on cuda:0, 2 processes"),
    (START | {"processes": 1}, "started", "torch on cuda:0, 1 process"),
    ({"event": "resumed", "from": "checkpoint-3", "device": "cpu"}, "resumed", "from checkpoint-3, on cpu"),
    (
        {"event": "resumed", "device": "cpu", "crossed_from": "paddle", "passed_over": ["a", "b"], "parent": "p"},
        "branched off",
        "from a checkpoint, on cpu, saved with paddle; skipped a, b",
    ),
    ({"event": "ended"}, "finished", ""),
    ({"event": "ended", "stopped": True}, "stopped early", ""),
    ({"event": "preempted", "signal": "SIGTERM", "saved": "c"}, "preempted", "SIGTERM; saved to c"),
    ({"event": "preempted"}, "preempted", "a signal; not saved"),
    ({"event": "failed", "error": "ValueError", "message": "bad"}, "failed", "ValueError: bad"),
    ({"event": "failed", "error": "ValueError"}, "failed", "ValueError"),
    (
        {"event": "nonfinite", "action": "stop", "samples": [3]},
        "not finite (NaN or infinite)",
        "the run was stopped; samples [3]",
    ),
    (
        {"event": "nonfinite", "action": "skip"},
        "not finite (NaN or infinite)",
        "the update was skipped; samples unknown",
    ),
    (
        {"event": "loss_spike", **SPIKE, "samples": [1, 2]},
        "loss spike",
        "loss 9.5, median 1.25, expected at most 4; samples [1, 2]",
    ),
    (
        {"event": "loss_spike", **SPIKE, "of": "grad_norm"},
        "loss spike",
        "gradient norm 9.5, median 1.25, expected at most 4; samples unknown",
    ),
    (
        {"event": "rolled_back", **SPIKE, "to": "checkpoint-2", "left_out": [3, 5], "positions": [0, 8, 20]},
        "rolled back",
        "loss 9.5, median 1.25, expected at most 4; to checkpoint-2; skipped: steps 3 to 5 (epoch 0, positions 8 to "
        "19); samples of the spike unknown",
    ),
    (
        {"event": "rolled_back", "left_out": [3, 3], "positions": [0, 8], "samples": [7]},
        "rolled back",
        "loss far above that of the steps before; to a checkpoint; skipped: step 3; samples of the spike [7]",
    ),
    (
        {"event": "out_of_memory", "split": 2},
        "out of memory",
        "the step was retried with 2 times as many micro-batches",
    ),
    (
        {"event": "output_lost", "stream": "stdout"},
        "output lost",
        "stdout was closed, or its reader has exited; the run continued without it",
    ),
    ({"event": "save_failed", "what": "checkpoint-3", "error": "full"}, "save failed", "checkpoint-3: full"),
    ({"event": "upload_failed", "error": "gone"}, "upload failed", "a checkpoint: gone; it is repeated later"),
    (
        {"event": "save_waited", "what": "checkpoint-3", "seconds": 1.5},
        "save waited",
        "checkpoint-3 waited 1.5 s for the previous one",
    ),
    ({"event": "profiled", "path": "trace"}, "profiled", "trace in trace"),
    ({"event": "own_event", "a": 1, "b": "c"}, "own event", "a 1, b c"),
]


@pytest.mark.parametrize(("event", "title", "words"), EVENTS, ids=lambda value: "")
def test_the_words_of_every_event(event, title, words, tmp_path):
    (found,) = summary.events(written(tmp_path, [event | {"step": 30}]))
    expected = {"kind": event["event"], "step": 30, "title": title, "text": words}
    assert found == expected | {"time": summary.moment(BEGIN + 90.0)}


@pytest.mark.parametrize("missing", SPIKE)
def test_a_spike_without_one_of_its_figures(missing, tmp_path):
    event = {"event": "loss_spike", **{key: value for key, value in SPIKE.items() if key != missing}}
    (found,) = summary.events(written(tmp_path, [event]))
    assert found["text"] == "loss far above that of the steps before; samples unknown"


def test_events_that_a_resumed_run_repeats_and_an_end_that_nobody_wrote(tmp_path):
    directory = written(
        tmp_path,
        [
            START,
            {"event": "save_failed", "step": 10, "error": "first"},
            {"event": "save_failed", "step": 20, "error": "other"},
            {"event": "resumed", "step": 10},
            {"event": "save_failed", "step": 20, "error": "again"},
            {"event": "rolled_back", "step": 20},
            {"event": "resumed", "step": 10},
            {"event": "preempted", "step": 20},
            {"event": "resumed", "step": 20},
        ],
    )
    found = [(event["kind"], event["step"], event["text"].partition(": ")[2]) for event in summary.events(directory)]
    kinds = [(kind, step) for kind, step, _ in found]
    assert kinds == [
        ("started", 0),
        ("save_failed", 10),
        ("died", 10),
        ("resumed", 10),
        ("save_failed", 20),
        ("rolled_back", 20),
        ("resumed", 10),
        ("preempted", 20),
        ("resumed", 20),
    ]
    assert found[1][2] == "first" and found[4][2] == "again"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-1, "0.0 s"), (0, "0.0 s"), (9.94, "9.9 s"), (10, "10 s"), (59.4, "59 s"), (60, "1 min 00 s"),
        (3599, "59 min 59 s"), (3600, "1 h 00 min"), (3660, "1 h 01 min"), (48 * 3600 - 1, "47 h 59 min"),
        (48 * 3600, "2 d 0 h"), (49 * 3600, "2 d 1 h"),
    ],
)  # fmt: skip
def test_durations(seconds, words):
    assert summary.duration(seconds) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.0, "0"), (3.0, "3"), (-3.0, "-3"), (1234.0, "1,234"), (999.94, "999.9"), (1000.5, "1,000.5"),
        (-1000.5, "-1,000.5"), (0.000123456, "0.0001235"), (1e-7, "1e-07"), (1e15, "1e+15"),
        (1e15 - 1, f"{10**15 - 1:,}"),
        (2.5e9 + 0.5, "2.5e+09"), (999999999.5, "999,999,999.5"), (math.inf, "inf"), (math.nan, "nan"),
    ],
)  # fmt: skip
def test_figures(value, words):
    assert summary.figure(value) == words


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1500, "1.5 kB"), (10**6, "1.0 MB"), (5 * 10**9, "5.0 GB")],
)  # fmt: skip
def test_sizes(size, words):
    assert size_text(size) == words


def test_a_curve_keeps_the_extremes_of_every_interval():
    """Of 300 points in 10 intervals: the first and the last, and the lowest, the highest and a NaN of each."""
    steps = np.arange(300.0)
    values = np.sin(steps) + steps / 100
    values[45] = np.nan
    kept, found = downsample(steps, values, 32)
    assert len(kept) <= 32 and kept[0] == 0 and kept[-1] == 299 and 45 in kept
    place = np.minimum((steps * (10 / 299)).astype(int), 9)
    for interval in range(10):
        own = (place == interval) & np.isfinite(values)
        here = found[np.isin(kept, steps[own])]
        assert here.min() == values[own].min() and here.max() == values[own].max()
    assert [list(each) for each in downsample(steps[:32], values[:32], 32)] == [list(steps[:32]), list(values[:32])]
    assert len(downsample(steps[:33], values[:33], 32)[0]) < 33
    same = downsample(np.full(40, 7.0), np.arange(40.0), 8)
    assert [list(each) for each in same] == [[7.0], [39.0]]


def test_extremes_of_a_growing_curve():
    series = Series(limit=8)
    for steps, values in (([1, 2], [3.0, math.nan]), ([3, 4], [1.0, 5.0]), ([2.5], [1.0]), ([5], [math.inf])):
        series.extend(np.array(steps, float), np.array(values, float))
    assert (series.count, series.reached, series.lowest, series.highest) == (6, 5.0, (1.0, 3.0), (5.0, 4.0))
    assert math.isinf(series.last)
    assert series.points()[0].tolist() == [1, 2, 2.5, 3, 4, 5], "an evaluation of an earlier step was logged later"
    assert series.points(upto=3)[0].tolist() == [1, 2, 2.5, 3]
    for number in range(100):
        series.extend(np.array([6.0 + number]), np.array([2.0]))
    assert len(series._steps) < 8 * 8 and series.count == 106 and series.lowest == (1.0, 3.0)


def test_charts_of_a_history():
    run = history.LoggedRun(
        [
            {"step": 1, "loss": 2.0, "learning_rate": 0.5, "loss/a": 3.0, "samples_per_second": 9.0, "mfu": 0.5},
            {"step": 2, "loss": 1, "eval_loss": 4.0, "eval_own_loss": 5.0, "eval_f1": 1.0, "eval_bleu": 1.01},
            {"step": 2, "eval_runtime": 9.0, "eval_f1": True, "test_f1": 0.25, "train_loss": 1.5},
            {"loss": 77.0, "eval_f1": math.nan},
        ]
    )
    charts = run.charts()
    lines = {chart.title: [(line.name, line.steps, line.values) for line in chart.lines] for chart in charts}
    found = {chart.title: (lines[chart.title], chart.zero) for chart in charts}
    assert found == {
        "loss": (
            [
                ("training", [1, 2], [2.0, 1.0]),
                ("evaluation", [2], [4.0]),
                ("evaluation own", [2], [5.0]),
            ],
            False,
        ),
        "evaluation": ([("f1", [2], [1.0])], False),
        "training loss by dataset": ([("a", [1], [3.0])], False),
        "learning rate": ([("learning rate", [1], [0.5])], True),
        "samples per second": ([("training", [1], [9.0])], True),
        "MFU": ([("model FLOPs utilization", [1], [0.5])], True),
        "bleu": ([("bleu", [2], [1.01])], False),
    }
    assert [line.sparse for line in run.charts()[0].lines] == [False, True, True]
    final = run.final_figures()
    assert math.isnan(final.pop("eval_f1"))
    of_evaluation = {"eval_loss": 4.0, "eval_own_loss": 5.0, "eval_bleu": 1.01, "eval_runtime": 9.0}
    assert final == of_evaluation | {"test_f1": 0.25, "train_loss": 1.5}


def test_names_and_ranges_of_several_runs(tmp_path):
    folders = [tmp_path / "a" / "x", tmp_path / "b" / "x", tmp_path / "b" / "y"]
    assert page_data.names_of(folders) == ["a/x", "b/x", "y"]
    assert page_data.merge_ranges([{"k": (1.0, 5.0), "e": ()}, {"k": (-2.0, 3.0)}]) == {"k": (-2.0, 5.0), "e": ()}


@pytest.mark.parametrize(
    ("runs", "kept"),
    [(1, (4096, 5000)), (20, (4096, 5000)), (300, (3333, 333)), (3000, (333, 50)), (5000, (256, 50))],
)
def test_what_is_kept_of_many_runs(runs, kept, tmp_path, monkeypatch):
    """A million points of all runs together, and a tenth of that of entries; each run has a least and a most."""
    made = []
    monkeypatch.setattr(follow, "Directory", lambda path, *limits: made.append(limits))
    monkeypatch.setattr(follow, "_size", lambda path: 0)
    followed = follow.Runs.__new__(follow.Runs)
    followed.directories = []
    followed._add([tmp_path] * runs)
    assert made == [kept] * runs
