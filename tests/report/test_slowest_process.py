"""The page of a run names the process that needs longest for its own part of a step."""

import pytest

from oneloop.report import page_data, summary
from tests.report.test_every_figure import BEGIN, START, written


def lines(**seconds):
    return [
        {"step": 10, "loss": 2.5},
        {"step": 20, "loss": 1.5} | {f"process_seconds/{k}": v for k, v in seconds.items()},
    ]


@pytest.mark.parametrize(
    "seconds, shown",
    [
        ({"process 0": 0.5, "process 1": 0.75}, ["slowest process", "1", "1.50 times the other"]),
        ({"process 0": 0.9, "process 1": 0.5, "process 2": 0.6}, ["slowest process", "0", "1.50 times the median"]),
        ({"process 70": 0.9, "process 71": 0.5, "median": 0.45}, ["slowest process", "70", "2.00 times the median"]),
        ({"process 0": 0.0, "process 1": 0.0}, ["slowest process", "0", ""]),
        ({}, None),
        ({"process 0": 1.0}, None),
    ],
    ids=["two", "three", "many", "instant", "none", "one"],
)
def test_the_overview_names_it(tmp_path, seconds, shown):
    rows = summary.summary(written(tmp_path, [START], lines(**seconds)), BEGIN + 25)
    assert [row for row in rows if row[0] == "slowest process"] == ([shown] if shown else [])


def test_a_chart_has_a_curve_for_each(tmp_path):
    directory = written(tmp_path, [START], lines(**{"process 0": 0.5, "process 1": 0.75}))
    charts = {chart["title"]: chart for chart in page_data.run_page(directory)["charts"]}
    assert charts["own seconds of a step by process"]["keys"] == [
        ["process_seconds/process 0", "process 0"],
        ["process_seconds/process 1", "process 1"],
    ]
    assert not any("process" in title for title in charts if title != "own seconds of a step by process")
