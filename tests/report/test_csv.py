"""What spreadsheets get of a run and of several, and how numbers stand in tables."""

import csv
import io

import pytest

from oneloop.cli.main import main
from oneloop.errors import DataError
from oneloop.report import comparison, csv_files, summary, write_comparison_csv, write_csv
from oneloop.report.log_reader import Directory
from oneloop.report.server import Watched
from tests.report.tiny_runs import ARGUMENTS, START, event, write_lines, write_run


def table(path):
    with open(path, encoding="utf-8", newline="") as f:
        return list(csv.reader(f))


def test_every_value_of_a_run(tmp_path, capsys):
    write_lines(tmp_path / "run" / "log.jsonl", [{"run": "a", "step": 2, "loss": 0.5, "memory_bytes": 12345678901}])
    write_lines(tmp_path / "run" / "log.jsonl", [{"run": "a", "step": 3, "eval_loss": "nan", "=own, key": 1 / 3}])
    assert main(["report", str(tmp_path / "run"), "--csv", str(tmp_path / "run.csv")]) == 0
    assert str(tmp_path / "run.csv") in capsys.readouterr().out.splitlines()
    assert table(tmp_path / "run.csv") == [
        ["step", "loss", "memory_bytes", "eval_loss", "'=own, key"],
        ["2", "0.5", "12345678901", "", ""],
        ["3", "", "", "nan", "0.3333333333333333"],
    ]
    with pytest.raises(DataError, match="no such directory"):
        write_csv(tmp_path / "nowhere", tmp_path / "x.csv")


def test_a_search_is_compared_with_its_trials(tmp_path):
    """Beside its last run, and without the checkpoints of either."""
    for name in ("", "run-0", "run-1"):
        write_lines(tmp_path / "hp" / name / "log.jsonl", [{"run": name or "best", "step": 2, "loss": 0.5}])
        (tmp_path / "hp" / name / "checkpoint-2").mkdir()
        (tmp_path / "hp" / name / "checkpoint-2" / "trainer_state.json").write_text('{"log_history": []}')
    write_comparison_csv([tmp_path / "hp"], tmp_path / "all.csv")
    assert [row[0] for row in table(tmp_path / "all.csv")[1:]] == ["hp", "run-0", "run-1"]
    write_comparison_csv([tmp_path / "hp", tmp_path / "hp" / "run-1"], tmp_path / "all.csv")
    assert len(table(tmp_path / "all.csv")[1:]) == 2


@pytest.mark.parametrize("command", ["report", "compare"])
def test_runs_near_a_directory_that_does_not_exist(command, tmp_path, capsys, monkeypatch):
    for name in "abcdefg":
        write_lines(tmp_path / "outputs" / name / "log.jsonl", [{"run": "a", "step": 2, "loss": 0.5}])
    monkeypatch.chdir(tmp_path)
    told = {
        "outputs/z": f"Runs in {tmp_path}/outputs: outputs/a, outputs/b, outputs/c, outputs/d, outputs/e and others.",
        "output/a": f"Runs in {tmp_path}: outputs/a, outputs/b, outputs/c, outputs/d, outputs/e and others.",
        "z": f"Runs in {tmp_path}: outputs/a, ",
        str(tmp_path / "outputs" / "z"): f"Runs in {tmp_path}/outputs: {tmp_path}/outputs/a, ",
        "/nowhere-at-all": "no such directory. Pass the output_dir of a run.\n",
    }
    for given, words in told.items():
        assert main([command, given]) == 1
        assert words in capsys.readouterr().err


def test_the_table_of_several_runs(tmp_path, capsys):
    for i, rate in enumerate((0.000123456789012345, 3e-4)):
        arguments = ARGUMENTS | {"learning_rate": rate, "note": ["=1+1", "-2"][i]}
        write_run(tmp_path / "all" / f"run-{i}", steps=250, run=f"{i:016x}", seed=i, arguments=arguments)
    command = ["compare", str(tmp_path / "all"), "-o", str(tmp_path / "all.html"), "--csv", str(tmp_path / "all.csv")]
    assert main(command) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "all.html"), str(tmp_path / "all.csv")]
    head, first, second = table(tmp_path / "all.csv")
    assert head[:8] == [
        "run",
        "status",
        "step",
        "learning_rate",
        "note",
        "loss, last",
        "loss, lowest",
        "loss, step of the lowest",
    ]
    assert first[:5] == ["run-0", "finished", "250", "0.000123456789012345", "'=1+1"]
    assert second[:5] == ["run-1", "finished", "250", "0.0003", "-2"]
    place = head.index("eval_accuracy, highest")
    assert head[place + 1] == "eval_accuracy, step of the highest" and float(second[place]) > 0
    page = comparison.page([tmp_path / "all" / "run-0", tmp_path / "all" / "run-1"])
    assert [row["csv"] for row in page["runs"]] == (tmp_path / "all.csv").read_text().splitlines()[1:]
    assert [row["values"][0] for row in page["runs"]] == ["0.000123457", "0.0003"]
    assert page["runs"][0]["label"].startswith("learning_rate 0.000123457,")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["0.00012345678901234567", "3e-05"], ["0.000123457", "3e-05"]),
        (["0.12345678", "0.12345679"], ["0.12345678", "0.12345679"]),  # they would be the same
        (["1234567890123", "true", "nan", "null"], ["1234567890123", "true", "nan", "null"]),
        (["0.1234567890123456", "0.1234567890123457"], ["0.1234567890123456", "0.1234567890123457"]),
        (["0.123456781234", "0.123456791234"], ["0.123456781", "0.123456791"]),
        (["v1.23456789", "[0.123456789]"], ["v1.23456789", "[0.123456789]"]),
    ],
)
def test_numbers_have_as_many_digits_as_they_need(values, expected):
    assert summary.short(values) == expected


@pytest.mark.parametrize("text", ["two\nlines", "a\rb", 'a "word"', "a,b"])
def test_a_text_stays_one_cell(text):
    assert list(csv.reader(io.StringIO(csv_files.csv_head([text], []) + "\r\n", newline=""))) == [
        ["run", "status", "step", text]
    ]


@pytest.mark.parametrize("sign", "=+-@\t\r")
def test_a_text_is_never_a_formula(sign):
    text = csv_files.csv_head([f"{sign}SUM(A1)", f"a{sign}"], [])
    (row,) = csv.reader(io.StringIO(text, newline=""))
    assert row[3:] == [f"'{sign}SUM(A1)", f"a{sign}"]


def test_the_best_value_of_each_metric(tmp_path):
    """The highest accuracy and the lowest loss; a metric that stays the same has no best step."""
    for step, loss, accuracy in ((1, 0.5, 0.25), (2, 0.25, 0.75), (3, 0.75, 0.5)):
        entry = {"run": "a", "step": step, "eval_loss": loss, "eval_accuracy": accuracy, "eval_same": 1.0}
        write_lines(tmp_path / "run" / "log.jsonl", [entry])
    write_comparison_csv([tmp_path / "run"], tmp_path / "all.csv")
    found = dict(zip(*table(tmp_path / "all.csv")))
    assert [found[f"eval_loss, {what}"] for what in ("last", "lowest", "step of the lowest")] == ["0.75", "0.25", "2"]
    assert [found[f"eval_accuracy, {what}"] for what in ("last", "highest")] == ["0.5", "0.75"]
    directory = Directory(tmp_path / "run")
    directory.read_new()
    assert summary.best_points(directory) == {"eval_loss": [2, 0.25], "eval_accuracy": [2, 0.75]}


def test_hyperparameters_of_the_script(tmp_path):
    """trainer.record_event("hyperparameters", ...), and those that a search notes; not what is an argument."""
    for name, hidden in (("a", 4), ("b", 8)):
        start = event(
            "started", 0, 0, name, **START, arguments=ARGUMENTS, hyperparameters={"seed": hidden, "hidden": hidden}
        )
        write_lines(
            tmp_path / name / "run.jsonl", [start, event("hyperparameters", 0, 1, name, depth=2, api_key="x" * 40)]
        )
    directory = Directory(tmp_path / "a")
    directory.read_new()
    found = summary.hyperparameters(directory)
    assert found["hidden"] == 4 and found["depth"] == 2 and "x" * 40 not in str(found)
    page = comparison.page([tmp_path / "a", tmp_path / "b"])
    assert page["differing"] == ["hidden"] and [run["values"] for run in page["runs"]] == [["4"], ["8"]]
    rows = comparison.page_data.run_page(directory)["arguments"]
    assert ["hidden", "4", ""] in rows and ["seed", "7", "42"] in rows and ["seed", "4", ""] not in rows


def test_a_watched_table_has_new_columns_for_every_run(tmp_path):
    """A run that logs a metric that no other has: rows that did not change are sent again."""
    for name in ("a", "b"):
        write_lines(tmp_path / name / "log.jsonl", [{"run": name, "step": 1, "loss": 0.5}])
    watched = Watched(tmp_path)
    try:
        first = watched.updates_for(None, {})
        assert [run["csv"] for run in first["runs"]] == ["a,unknown,1,0.5,0.5,1", "b,unknown,1,0.5,0.5,1"]
        write_lines(tmp_path / "b" / "log.jsonl", [{"run": "b", "step": 2, "eval_f1": 0.25}])
        news = watched.updates_for(
            None, {run["id"]: (run["generation"], run["entries"]) for run in first["runs"]}, first["version"]
        )
        assert {run["csv"] for run in news["runs"]} == {"a,unknown,1,0.5,0.5,1,,,", "b,unknown,2,0.5,0.5,1,0.25,0.25,2"}
    finally:
        watched.close()


def test_a_table_of_nothing(tmp_path):
    with pytest.raises(DataError, match="no such directory"):
        write_comparison_csv([tmp_path / "nowhere"], tmp_path / "x.csv")
