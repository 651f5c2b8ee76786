"""The picture and the page of a run, from a history in the shape that a Trainer logs."""

import base64
import json
import math
import struct
import sys

import numpy as np
import pytest

from oneloop.cli.main import main
from oneloop.errors import DataError, MissingPackageError
from oneloop.report import LoggedRun, page, write_page, write_report
from tests.report.tiny_runs import write_run


def history(steps=50):
    entries = []
    for step in range(1, steps + 1):
        rate = 1e-3 * (1 - step / steps)
        entries.append(
            {"step": step, "epoch": step / 10, "loss": 1 / step, "learning_rate": rate, "grad_norm": 0.5}
            | {"samples_per_second": 900.0, "steps_per_second": 14.0}
        )
        if step % 10 == 0:
            entries.append({"step": step, "eval_loss": 2 / step, "eval_accuracy": 1 - 1 / step, "eval_runtime": 0.5})
    entries.append({"step": steps, "train_runtime": 71.5, "train_loss": 0.3})
    return entries


def data_of(path):
    """What stands in a page as data."""
    text = path.read_text(encoding="utf-8")
    return json.loads(text.split('<script type="application/json" id="data">')[1].split("</script>")[0])


def curve(data, key, run=0):
    """(steps, values) of a curve, unpacked as the page does it."""
    steps, values = data["runs"][run]["points"][key]
    kind = "<u4" if steps[0] == "u" else "<f8"
    unpacked = np.frombuffer(base64.b64decode(steps[1:]), kind)
    return unpacked.tolist(), np.frombuffer(base64.b64decode(values), "<f4").tolist()


def test_both_files_are_written_beside_the_run(tmp_path):
    png, html = write_report(tmp_path / "run", history(), title="a run")
    assert (png, html) == (tmp_path / "run" / "report.png", tmp_path / "run" / "report.html")
    head = png.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    assert width > 1000 and height > 600


def test_the_page_holds_curves_figures_and_arguments(tmp_path):
    _, html = write_report(tmp_path, history(), title="a <run>", arguments={"learning_rate": 0.001, "note": "<b>"})
    data = data_of(html)
    titles = [chart["title"] for chart in data["charts"]]
    assert titles == ["loss", "accuracy (evaluation)", "learning rate", "gradient norm", "samples per second"]
    steps, values = curve(data, "loss")
    assert steps == list(range(1, 51)) and values == pytest.approx([1 / step for step in steps])
    assert ["learning_rate", "0.001", ""] in data["arguments"] and ["note", "<b>", ""] in data["arguments"]
    assert ["eval_accuracy", "0.98", "0.98", "50"] in data["figures"] and ["train_runtime", "71.5", "", ""] in data[
        "figures"
    ]
    assert "<title>a &lt;run&gt;</title>" in html.read_text(encoding="utf-8")


def test_the_library_that_draws_comes_with_its_licence(tmp_path):
    _, html = write_report(tmp_path, history())
    assert "MIT" in page.asset("uplot/LICENSE") and "Leon Sorokin" in page.asset("uplot/LICENSE")
    text = html.read_text(encoding="utf-8")
    assert "Leon Sorokin" in text and page.asset("uplot/uPlot.iife.min.js") in text and len(text) < 150_000


def test_a_run_is_read_from_its_directory_and_else_from_the_newest_checkpoint(tmp_path):
    for step in (9, 10):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": history(step), "global_step": step}))
    assert LoggedRun.read(tmp_path).state["global_step"] == 10
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history(20), "global_step": 20}))
    run = LoggedRun.read(tmp_path)
    assert run.state["global_step"] == 20 and run.title == tmp_path.name
    assert run.line("loss").values == [1 / step for step in range(1, 21)]


def test_arguments_of_the_directory_are_listed_where_they_differ_from_the_defaults(tmp_path):
    given = {"output_dir": "out", "learning_rate": 0.25, "weight_decay": 0.0, "adam_beta1": 0.9}
    (tmp_path / "training_args.json").write_text(json.dumps(given))
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history()}))
    shown = {name: (value, usual) for name, value, usual in data_of(write_report(tmp_path)[1])["arguments"]}
    assert shown == {"learning_rate": ("0.25", "5e-05")}


def test_metrics_beyond_one_get_a_chart_of_their_own():
    entries = [{"step": s, "eval_f1": 0.5, "eval_perplexity": 30.0 / s, "eval_dev_loss": 1.0} for s in (1, 2, 3)]
    charts = {chart.title: [line.name for line in chart.lines] for chart in LoggedRun(entries).charts()}
    assert charts == {"loss": ["evaluation dev"], "evaluation": ["f1"], "perplexity": ["perplexity"]}


def test_a_curve_has_a_gap_where_a_value_is_not_finite(tmp_path):
    entries = [{"step": step, "loss": math.nan if step == 3 else 1.0 / step} for step in range(1, 6)]
    png, html = write_report(tmp_path, entries)
    _, values = curve(data_of(html), "loss")
    assert [math.isnan(value) for value in values] == [False, False, True, False, False]
    assert png.stat().st_size > 0


def test_long_histories_are_thinned_and_keep_their_peaks_and_their_end(tmp_path):
    entries = [{"step": step, "loss": 99.0 if step == 12_345 else 1.0 + step % 7} for step in range(1, 25_001)]
    steps, values = curve(data_of(write_page(tmp_path, entries)), "loss")
    assert len(steps) <= 4000 and steps[0] == 1 and steps[-1] == 25_000
    assert values[steps.index(12_345)] == 99.0


def test_an_empty_history_still_makes_a_report(tmp_path):
    png, html = write_report(tmp_path, [])
    assert png.stat().st_size > 0 and data_of(html)["charts"] == []


def test_a_missing_matplotlib_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingPackageError, match=r"matplotlib.*oneloop\[report\]"):
        write_report(tmp_path, history())
    assert data_of(tmp_path / "report.html")["charts"]  # the page needs no package


def test_the_command_writes_the_page_without_matplotlib_and_names_the_package(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    write_run(tmp_path, steps=50)
    assert main(["report", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert out.split() == [str(tmp_path / "report.html")] and "oneloop[report]" in err


def test_a_directory_without_a_run_says_what_was_expected(tmp_path):
    with pytest.raises(DataError, match="contains no trainer_state.json"):
        write_report(tmp_path)
    (tmp_path / "trainer_state.json").write_text("[]")
    with pytest.raises(DataError, match="expected a JSON object with a list log_history"):
        write_report(tmp_path)


def test_the_command_draws_a_directory_and_reports_an_error_in_one_line(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("oneloop report: ")
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history()}))
    assert main(["report", str(tmp_path), "--title", "from the command line"]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "report.png"), str(tmp_path / "report.html")]
    assert data_of(tmp_path / "report.html")["title"] == "from the command line"
