"""Predictions: recipe.json that is damaged, and files that are no data."""

import json
import shutil

import pytest

from oneloop.cli.main import main
from oneloop.recipes import prediction
from tests.recipes import kitchen


@pytest.fixture(scope="module")
def trained(made, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        words = "--task classification --model bert --data reviews.csv --max_steps 2 --device cpu --report_to none"
        assert main(["train", *words.split(), "--output_dir", str(folder)]) == 0
    return folder


def predict(folder, *words):
    return main(["predict", str(folder), "--device", "cpu", *map(str, words)])


def test_predictions_go_to_stdout(at, trained, capsys):
    assert predict(trained, "--data", "reviews.jsonl") == 0
    said = capsys.readouterr()
    rows = [json.loads(line) for line in said.out.splitlines()]
    assert len(rows) == 96 and {"text", "label", "prediction", "score"} == set(rows[0])
    assert "accuracy:" in said.err


def test_a_checkpoint_predicts_too(at, trained, capsys):
    assert predict(trained / "checkpoint-2", "--data", "reviews.jsonl") == 0
    assert len(capsys.readouterr().out.splitlines()) == 96


def test_texts_are_cut_as_in_training(at, trained, tmp_path, capsys):
    length = json.loads((trained / "recipe.json").read_text())["max_length"]
    texts = ["cat " * 300, "cat " * (length - 2)]  # more than the model has positions for
    kitchen.write_jsonl(tmp_path / "a.jsonl", [{"review": text} for text in texts])
    assert predict(trained, "--data", tmp_path / "a.jsonl") == 0
    long, cut = map(json.loads, capsys.readouterr().out.splitlines())
    assert (long["prediction"], long["score"]) == (cut["prediction"], cut["score"])


def test_the_device_and_the_batches_are_those_asked_for(at, trained, capsys, monkeypatch):
    made = []
    monkeypatch.setattr(prediction, "TrainingArguments", lambda *_, **given: made.append(given) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        predict(trained, "--data", "reviews.jsonl", "--batch_size", "3")
    assert made == [{"per_device_eval_batch_size": 3, "report_to": "none", "device": "cpu"}]


def test_an_output_is_whole_or_not_there(at, trained, tmp_path, capsys):
    (tmp_path / "taken").mkdir()
    assert predict(trained, "--data", "reviews.jsonl", "-o", tmp_path / "taken") == 2
    assert predict(trained, "--data", "reviews.jsonl", "-o", tmp_path / "no" / "where.jsonl") == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["taken"]


def test_bad_rows_are_named_or_left_out(at, trained, tmp_path, capsys):
    kitchen.write_jsonl(tmp_path / "a.jsonl", [{"review": "cat"}, {"review": 7}, {"review": "dog"}])
    assert predict(trained, "--data", tmp_path / "a.jsonl") == 2
    assert "a.jsonl:2: 'review': expected text" in capsys.readouterr().err
    assert predict(trained, "--data", tmp_path / "a.jsonl", "--bad_rows", "skip") == 0
    assert [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()] == ["cat", "dog"]


def test_labels_of_some_rows_are_not_used(at, trained, tmp_path, capsys):
    rows = [{"review": "the cat sat", "sentiment": "animal"}, {"review": "a red dog"}, {"review": "dog"}]
    kitchen.write_jsonl(tmp_path / "a.jsonl", rows)
    assert predict(trained, "--data", tmp_path / "a.jsonl") == 0
    said = capsys.readouterr()
    assert [json.loads(line)["text"] for line in said.out.splitlines()] == [row["review"] for row in rows]
    assert "accuracy" not in said.err


def test_columns_that_are_missing(at, trained, tmp_path, capsys):
    kitchen.write_jsonl(tmp_path / "a.jsonl", [{"words": "cat"}])
    assert predict(trained, "--data", tmp_path / "a.jsonl") == 2
    assert "has no column 'review', only 'words'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version is 2, expected 1"),
        ({"task": "cooking"}, "unknown task 'cooking'"),
        ({"task": ["x"]}, "unknown task"),
        ({"columns": {"text": 1}}, "columns are not names by role"),
        ({"columns": {"texts": "a"}}, "columns are not names by role"),
        ({"columns": {"words": "a", "tags": "b"}}, "the columns are not those of classification"),
        ({"labels": {"a": 1}}, "labels are not a list of words"),
        ({"labels": None}, "there are no labels"),
        ({"max_length": -1}, "max_length is not a number of tokens"),
        ({"max_length": 1e9}, "max_length is not a number of tokens"),
        ({"max_new_tokens": True}, "max_new_tokens is not a number of tokens"),
        ({"framework": "../../evil"}, "unknown framework"),
    ],
)
def test_a_damaged_recipe_is_refused(change, message, at, trained, tmp_path, capsys):
    stored = json.loads((trained / "recipe.json").read_text())
    (tmp_path / "recipe.json").write_text(json.dumps({**stored, **change}))
    assert predict(tmp_path, "--data", "reviews.jsonl") == 2
    assert message in capsys.readouterr().err


def test_labels_that_do_not_fit_the_model(at, trained, tmp_path, capsys):
    folder = shutil.copytree(trained, tmp_path / "model")
    stored = json.loads((folder / "recipe.json").read_text())
    (folder / "recipe.json").write_text(json.dumps({**stored, "labels": ["animal", "thing", "plant"]}))
    assert predict(folder, "--data", "reviews.jsonl") == 2


def test_directories_that_are_no_model(at, tmp_path, capsys):
    assert predict(tmp_path / "none", "--data", "reviews.jsonl") == 2
    assert "there is no directory" in capsys.readouterr().err
    assert predict(tmp_path, "--data", "reviews.jsonl") == 2
    assert "has no recipe.json" in capsys.readouterr().err
    for text in ("", "[1", "[]", "[" * 100_000):
        (tmp_path / "recipe.json").write_text(text)
        assert predict(tmp_path, "--data", "reviews.jsonl") == 2
