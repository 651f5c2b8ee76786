"""Data files of every kind, and what is wrong with them."""

import json
import os

import pytest

from oneloop.errors import ArgumentError, DataError, MissingPackageError
from oneloop.recipes import files, read_rows, split_rows
from tests.recipes.kitchen import write_csv, write_jsonl

ROWS = [{"text": f"text {i}", "label": "ab"[i % 2]} for i in range(6)]
COLUMNS = {"text": "text", "label": "label"}


def write_parquet(path, rows):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def write_dataset(path, rows):
    pytest.importorskip("datasets").Dataset.from_list(rows).save_to_disk(str(path))


def write_folder(path, rows):
    for number, row in enumerate(rows):
        folder = path / row["label"]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.txt").write_text(row["text"])
    (path / ".hidden.txt").write_text("not this one")


WRITERS = {
    "rows.jsonl": write_jsonl,
    "rows.json": lambda path, rows: path.write_text(json.dumps(rows)),
    "lines.json": write_jsonl,
    "rows.csv": write_csv,
    "rows.tsv": lambda path, rows: write_csv(path, rows, "\t"),
    "rows.parquet": write_parquet,
    "saved": write_dataset,
    "folder": write_folder,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_kind_of_file_has_the_same_rows(name, tmp_path):
    WRITERS[name](tmp_path / name, ROWS)
    found = read_rows(str(tmp_path / name), COLUMNS)
    assert sorted(found, key=lambda row: row["text"]) == ROWS


def test_a_folder_of_data_files_has_the_rows_of_all(tmp_path):
    write_jsonl(tmp_path / "b.jsonl", ROWS[3:])
    write_jsonl(tmp_path / "a.jsonl", ROWS[:3])
    (tmp_path / "notes.md").write_text("no data")
    assert read_rows(str(tmp_path), COLUMNS) == ROWS
    write_csv(tmp_path / "c.csv", ROWS)
    with pytest.raises(DataError, match=r"files of several kinds \(.csv, .jsonl\)"):
        read_rows(str(tmp_path), COLUMNS)


def test_folders_of_text(tmp_path):
    """A folder within is a label; what programs keep in hidden ones is none of the data."""
    for name in ("a.txt", "b.txt", ".copies/a.txt"):
        (tmp_path / "flat" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "flat" / name).write_text(name)
    assert [each.row for each in files.find_all([str(tmp_path / "flat")])] == [{"text": "a.txt"}, {"text": "b.txt"}]
    for name in ("good/a.txt", "bad/b.txt", ".copies/c.txt", "good/.copies/a.txt"):
        (tmp_path / "named" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "named" / name).write_text(name)
    found = [each.row for each in files.find_all([str(tmp_path / "named")])]
    assert found == [{"text": "bad/b.txt", "label": "bad"}, {"text": "good/a.txt", "label": "good"}]


def test_byte_order_marks_quotes_and_line_ends(tmp_path):
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbftext,label\r\n"one, ""two""\nlines",a\r\n\r\nthree,b\r\n')
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "one", "label": "a"}\r\n\r\n{"text": "two", "label": 1}')
    assert read_rows(str(tmp_path / "a.csv"), COLUMNS)[0]["text"] == 'one, "two"\nlines'
    assert read_rows(str(tmp_path / "a.jsonl"), COLUMNS)[1] == {"text": "two", "label": "1"}


DEEP = "[" * 100_000
BAD_LINES = {
    "not JSON": "it is not valid JSON",
    "[1]": "expected a JSON object, found list",
    '{"text": "x"}': "it has no 'label'",
    '{"text": 7, "label": "a"}': "'text': expected text, found int 7",
    '{"text": "  ", "label": "a"}': "'text': it is empty",
    '{"text": "x", "label": null}': "it has no 'label'",
    '{"text": "x", "label": 0.5}': "expected a class, found the number 0.5",
    '{"text": "x", "label": ["a"]}': "'label': expected text, found list",
    '{"text": "\\ud800", "label": "a"}': "characters that are not valid Unicode",
    '{"text": ' + DEEP: "it is nested too deeply",
    '{"text": "x", "label": ' + "9" * 5000 + "}": "it is not valid JSON",
}


@pytest.mark.parametrize("line", BAD_LINES, ids=range(len(BAD_LINES)))
def test_a_bad_row_is_named_by_file_and_line(line, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "good", "label": "a"}\n' + line + "\n")
    with pytest.raises(DataError) as raised:
        read_rows(str(path), COLUMNS)
    assert f"1 of 2 rows cannot be used:\n  {path}:2: " in str(raised.value)
    assert BAD_LINES[line] in str(raised.value) and "bad_rows: skip" in str(raised.value)
    assert len(str(raised.value)) < 600
    assert read_rows(str(path), COLUMNS, bad_rows="skip") == [{"text": "good", "label": "a"}]


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "\xff", "label": "a"}\n{"text": "x", "label": "b"}\n')
    (tmp_path / "a.csv").write_bytes(b"text,label\n\xff,a\nx,b\n")
    for name, line in (("a.jsonl", 1), ("a.csv", 2)):
        with pytest.raises(DataError, match=rf"1 of 2 rows cannot be used:\n  .*{name}:{line}: "):
            read_rows(str(tmp_path / name), COLUMNS)


def test_bad_rows_of_tables(tmp_path, capsys):
    path = tmp_path / "a.csv"
    path.write_text('text,label\nx,a\n"two\nlines",b,more\nshort\ny,b\n"open,a\nz,a\n')
    found = read_rows(str(path), COLUMNS, bad_rows="skip")
    assert found == [{"text": "x", "label": "a"}, {"text": "y", "label": "b"}]
    said = capsys.readouterr().err
    assert "3 of 5 rows are skipped:" in said
    assert f"{path}:3: it has 3 fields; the first line names 2 columns" in said
    assert f"{path}:5: it has 1 fields" in said
    assert f"{path}:7: it is not a valid row" in said


def test_a_long_list_of_bad_rows_is_shortened(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [*ROWS, *[{"text": ""}] * 20])
    with pytest.raises(DataError) as raised:
        read_rows(str(tmp_path / "a.jsonl"), COLUMNS)
    assert "20 of 26 rows" in str(raised.value) and "and 15 more" in str(raised.value)
    write_jsonl(tmp_path / "b.jsonl", [{"text": ""}])
    with pytest.raises(DataError, match="none of the 1 rows can be used"):
        read_rows(str(tmp_path / "b.jsonl"), COLUMNS, bad_rows="skip")


def test_a_line_without_end_is_not_read_into_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LONGEST_ROW", 100)
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "x" * 1000, "label": "a"}) + "\n" + json.dumps(ROWS[1]) + "\n")
    with pytest.raises(DataError, match=r"1 of 2 rows .*\n.*a.jsonl:1: the line has more than 100 bytes"):
        read_rows(str(path), COLUMNS)
    assert read_rows(str(path), COLUMNS, bad_rows="skip") == [ROWS[1]]


@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("a.csv", "", "the first line has to name the columns"),
        ("a.csv", "text,text\na,b\n", "the first line has to name the columns, each once"),
        ("a.csv", "text,\na,b\n", "the first line has to name the columns"),
        ("a.csv", "text,label\n", "no rows"),
        ("a.jsonl", "", "no rows"),
        ("a.json", "[{]", "not valid JSON"),
        ("a.json", DEEP, "not valid JSON"),
        ("a.parquet", "PAR1 but not really", "not a Parquet file"),
        ("a.docx", "", "unknown kind of data file '.docx'"),
        ("a", "", r"unknown kind of data file '\(no suffix\)'"),
    ],
)
def test_files_that_are_no_data(name, contents, message, tmp_path):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_text(contents)
    with pytest.raises((DataError, ArgumentError), match=message):
        read_rows(str(tmp_path / name), COLUMNS)


def test_what_is_not_a_regular_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(DataError, match="it is a FIFO and not a regular file"):
        read_rows(str(tmp_path / "pipe.jsonl"), COLUMNS)
    with pytest.raises(DataError, match=r"there is no data file .*none.jsonl"):
        read_rows(str(tmp_path / "none.jsonl"), COLUMNS)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no data files"):
        read_rows(str(tmp_path / "empty"), COLUMNS)


def test_a_dataset_with_splits_asks_for_one(tmp_path):
    datasets = pytest.importorskip("datasets")
    whole = datasets.DatasetDict({name: datasets.Dataset.from_list(ROWS) for name in ("train", "test")})
    whole.save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(DataError, match="has the splits test, train. Name one"):
        read_rows(str(tmp_path / "saved"), COLUMNS)
    assert read_rows(str(tmp_path / "saved" / "train"), COLUMNS) == ROWS


@pytest.mark.parametrize(
    ("name", "command"), [("rows.parquet", "pip install pyarrow"), ("saved", "pip install datasets")]
)
def test_a_missing_package_is_named_with_its_command(name, command, tmp_path, monkeypatch):
    import sys

    WRITERS[name](tmp_path / name, ROWS)
    for package in ("pyarrow.parquet", "datasets"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=command):
        read_rows(str(tmp_path / name), COLUMNS)


# -- values of roles


@pytest.mark.parametrize(
    ("role", "value", "expected"),
    [
        ("label", True, "true"),
        ("label", 3.0, "3"),
        ("label", " good ", "good"),
        ("labels", "a; b;a", ["a", "b"]),
        ("labels", '["a", 1]', ["a", "1"]),
        ("labels", [], []),
        ("number", "2.5", 2.5),
        ("words", "a b", ["a", "b"]),
        ("messages", [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}],
         [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]),
    ],
)  # fmt: skip
def test_values_of_a_role(role, value, expected, tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [{"column": value}])
    assert read_rows(str(tmp_path / "a.jsonl"), {role: "column"}) == [{role: expected}]


@pytest.mark.parametrize(
    ("role", "value", "reason"),
    [
        ("number", "many", "expected a finite number, found 'many'"),
        ("number", float("nan"), "expected a finite number"),
        ("number", "1e999", "expected a finite number"),
        ("number", True, "expected a finite number"),
        ("labels", "[1", "not a valid JSON list"),
        ("labels", {"a": 1}, "expected a list of labels"),
        ("words", [], "one item per word"),
        ("messages", [{"role": "user", "content": "x"}], "no message has the role assistant"),
        ("messages", [{"role": "assistant"}], "no content that is text"),
        ("messages", "hello", "expected a list of messages"),
    ],
)
def test_values_that_a_role_does_not_accept(role, value, reason, tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [{"column": value}])
    with pytest.raises(DataError, match=reason.replace("[", r"\[")):
        read_rows(str(tmp_path / "a.jsonl"), {role: "column"})


def test_words_and_tags_have_to_match(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [{"words": ["a", "b"], "tags": ["O"]}])
    with pytest.raises(DataError, match="it has 2 words, but 1 tags"):
        read_rows(str(tmp_path / "a.jsonl"), {"words": "words", "tags": "tags"})


def test_labels_that_a_recipe_does_not_know(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", ROWS)
    with pytest.raises(DataError, match="3 of 6 rows cannot be used:\n.*:2: its label 'b' is not one of the labels"):
        read_rows(str(tmp_path / "a.jsonl"), COLUMNS, labels=["a"])


# -- the split


def test_a_split_is_stable_and_keeps_equal_inputs_together():
    rows = [{"text": f"text {i % 300}", "label": str(i % 3)} for i in range(900)]
    train, held_out = split_rows(rows, 0.2)
    assert len(train) + len(held_out) == 900 and 120 < len(held_out) < 240
    assert not {row["text"] for row in train} & {row["text"] for row in held_out}
    more = [*reversed(rows), {"text": "another", "label": "0"}]
    train_again, _ = split_rows(more, 0.2)
    assert {row["text"] for row in train_again} - {"another"} == {row["text"] for row in train}


@pytest.mark.parametrize("fraction", [0.001, 0.1, 0.999])
@pytest.mark.parametrize("count", [2, 3, 10])
def test_neither_side_of_a_split_is_empty(fraction, count):
    train, held_out = split_rows([{"text": str(i)} for i in range(count)], fraction)
    assert train and held_out and len(train) + len(held_out) == count


def test_splits_that_cannot_be_made():
    assert split_rows(ROWS, 0) == (ROWS, [])
    with pytest.raises(DataError, match="all have the same input"):
        split_rows([{"text": "x", "label": "a"}, {"text": "x", "label": "b"}], 0.1)
    for fraction in (1, -0.1):
        with pytest.raises(ArgumentError, match="expected a fraction"):
            split_rows(ROWS, fraction)
