"""The picture and the page of a run, from a history in the shape that a Trainer logs."""

import json
import math
import struct
import sys
from html.parser import HTMLParser

import pytest

from oneloop.cli import main
from oneloop.errors import DataError, MissingPackageError
from oneloop.report import Run, page, write_report


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


class Page(HTMLParser):
    """Collects what the tests ask of a page, and checks that every element is closed in order."""

    EMPTY = {"meta", "line", "circle", "path", "br"}

    def __init__(self, text):
        super().__init__()
        self.open, self.words, self.links, self.counts, self.paths = [], [], [], {}, []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.links += [value for name, value in attrs if name in ("src", "href")]
        self.paths += [value for name, value in attrs if name == "d"]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.EMPTY:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in self.EMPTY:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data.strip())


def read_page(path):
    return Page(path.read_text(encoding="utf-8"))


def test_both_files_are_written_beside_the_run(tmp_path):
    png, html = write_report(tmp_path / "run", history(), title="a run")
    assert (png, html) == (tmp_path / "run" / "report.png", tmp_path / "run" / "report.html")
    head = png.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    assert width > 1000 and height > 600


def test_the_page_holds_curves_figures_and_arguments_and_fetches_nothing(tmp_path):
    _, html = write_report(tmp_path, history(), title="a <run>", arguments={"learning_rate": 0.001, "note": "<b>"})
    shown = read_page(html)
    assert shown.counts["svg"] == 5  # loss, accuracy, learning rate, speed, gradient norm
    assert shown.links == [] and "script" not in shown.counts
    for word in ("a <run>", "loss", "accuracy", "learning rate", "samples per second", "0.98", "71.5", "0.001", "<b>"):
        assert any(word in text for text in shown.words), word
    assert "prefers-color-scheme: dark" in html.read_text(encoding="utf-8")


def test_a_run_is_read_from_its_directory_and_else_from_the_newest_checkpoint(tmp_path):
    for step in (9, 10):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": history(step), "global_step": step}))
    assert Run.read(tmp_path).state["global_step"] == 10
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history(20), "global_step": 20}))
    run = Run.read(tmp_path)
    assert run.state["global_step"] == 20 and run.title == tmp_path.name
    assert run.line("loss").values == [1 / step for step in range(1, 21)]


def test_arguments_of_the_directory_are_listed_where_they_differ_from_the_defaults(tmp_path):
    given = {"output_dir": "out", "learning_rate": 0.25, "weight_decay": 0.0, "adam_beta1": 0.9}
    (tmp_path / "training_args.json").write_text(json.dumps(given))
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history()}))
    shown = read_page(write_report(tmp_path)[1])
    assert "learning_rate" in shown.words and "0.25" in shown.words
    assert "adam_beta1" not in shown.words and "weight_decay" not in shown.words


def test_metrics_beyond_one_get_a_chart_of_their_own():
    entries = [{"step": s, "eval_f1": 0.5, "eval_perplexity": 30.0 / s, "eval_dev_loss": 1.0} for s in (1, 2, 3)]
    charts = {chart.title: [line.name for line in chart.lines] for chart in Run(entries).charts()}
    assert charts == {"loss": ["evaluation dev"], "evaluation": ["f1"], "perplexity": ["perplexity"]}


def test_a_curve_breaks_where_a_value_is_not_finite(tmp_path):
    entries = [{"step": step, "loss": math.nan if step == 3 else 1.0 / step} for step in range(1, 6)]
    png, html = write_report(tmp_path, entries)
    (path,) = read_page(html).paths
    assert path.count("M") == 2 and path.count("L") == 2 and "nan" not in path
    assert png.stat().st_size > 0


def test_long_histories_are_thinned_and_keep_their_end(tmp_path):
    _, html = write_report(tmp_path, [{"step": step, "loss": 1.0 + step % 7} for step in range(1, 25_001)])
    (path,) = read_page(html).paths
    assert path.count("L") <= page.MOST_POINTS
    assert path.rsplit("L", 1)[1].startswith(f"{page.WIDTH - page.RIGHT}.0 ")


def test_an_empty_history_still_makes_a_report(tmp_path):
    png, html = write_report(tmp_path, [])
    assert png.stat().st_size > 0 and "nothing was logged" in read_page(html).words


@pytest.mark.parametrize("low, high", [(0, 1), (0.0371, 0.6902), (1e-9, 3e-5), (-4, 1e6), (5, 5), (0, 0), (999, 1001)])
def test_ticks_are_few_and_cover_the_values(low, high):
    ticks = page._ticks(low, high)
    rounding = 1e-9 * (high - low)
    assert ticks[0] <= low + rounding and ticks[-1] >= high - rounding and 2 <= len(ticks) <= 8
    assert all(later > earlier for earlier, later in zip(ticks, ticks[1:]))


def test_a_missing_matplotlib_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingPackageError, match=r"matplotlib.*oneloop\[report\]"):
        write_report(tmp_path, history())


def test_a_directory_without_a_run_says_what_was_expected(tmp_path):
    with pytest.raises(DataError, match="holds no trainer_state.json"):
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
    assert "from the command line" in read_page(tmp_path / "report.html").words
