"""Each task from its data file to a trained model, as a script, and to predictions."""

import contextlib
import io
import json
import math
import runpy
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from oneloop.cli.main import main
from tests.recipes import kitchen

FAST = "--report_to none --device cpu --disable_tqdm true --eval_split 0.2 --seed 3".split()
CASES = {
    "one label": "classification --model bert --data reviews.jsonl --learning_rate 1e-2 --num_train_epochs 12",
    "one label, CSV": "classification --model bert --data reviews.csv --max_steps 3",
    "bad rows": "classification --model bert --data odd.jsonl --labels thing animal --bad_rows skip --max_steps 3",
    "several labels": "classification --model bert --data topics.jsonl --learning_rate 1e-2 --max_steps 20",
    "pairs": "classification --model bert --data pairs.jsonl --max_steps 3",
    "decoder as classifier": "classification --model llama --data pairs.jsonl --max_steps 3",
    "no pad token": "classification --model bare --data pairs.jsonl --max_steps 3",
    "regression": "regression --model bert --data stars.csv --max_steps 4",
    "tokens": "token-classification --model bert --data names.jsonl --learning_rate 1e-2 --num_train_epochs 6",
    "pretrain": "pretrain --model llama --data text.jsonl --max_steps 3",
    "from scratch": "pretrain --model llama --data text.jsonl --max_steps 3 --from_scratch --packing false",
    "answers": "sft --model llama --data answers.jsonl --learning_rate 1e-2 --num_train_epochs 20",
    "packed answers": "sft --model llama --data answers.jsonl --packing best_fit --max_length 24 --max_steps 3",
    "chats": "sft --model llama --data chats.jsonl --max_steps 3",
    "seq2seq": "seq2seq --model t5 --data reversed.jsonl --max_steps 3",
    "LoRA": "classification --model bert --data reviews.jsonl --lora --max_steps 3",
    "LoRA of a language model": "sft --model llama --data chats.jsonl --max_steps 3 --lora",
    "mixture": "sft --model llama --data a=answers.jsonl b=answers.jsonl --mixture_weights a=0.75,b=0.25 --max_steps 3",
    "another tokenizer": "classification --model body --tokenizer bert --data reviews.csv --max_steps 3",
    "evaluation data": "regression --model bert --data stars.csv --eval_data stars.csv --max_steps 3",
}


def words(case, folder):
    return ["train", "--task", *CASES[case].split(), *FAST, "--output_dir", str(folder)]


@dataclass
class Trained:
    folder: Path
    said: str


@pytest.fixture(scope="module")
def trained(made, tmp_path_factory):
    """trained(case): the folder of its model, and what was said. Each is trained once."""
    runs = {}

    def get(case):
        if case not in runs:
            folder, said = tmp_path_factory.mktemp("run"), io.StringIO()
            with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
                patch.chdir(made)
                assert main(words(case, folder)) == 0
            runs[case] = Trained(folder, said.getvalue())
        return runs[case]

    return get


def weights(folder):
    names = ("model.safetensors", "adapter_model.safetensors")
    return {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}


def lint(script):
    """Unused and missing names and long lines of a script, where ruff is installed."""
    ruff = shutil.which("ruff")
    command = [ruff, "check", "-q", "--isolated", "--line-length", "120", "--select", "E,F", script]
    return "" if ruff is None else subprocess.run(command, capture_output=True, text=True).stdout


@pytest.mark.parametrize("case", CASES)
def test_a_recipe_and_its_script_give_the_same_weights(case, at, trained, tmp_path, capsys):
    found = weights(trained(case).folder)
    assert len(found) == 1
    assert main([*words(case, tmp_path / "script"), "--script"]) == 0
    script = tmp_path / "script.py"
    script.write_text(capsys.readouterr().out)
    assert lint(script) == ""
    runpy.run_path(str(script), run_name="__main__")
    assert weights(tmp_path / "script") == found


def test_a_script_with_another_seed_gives_other_weights(at, trained, tmp_path, capsys):
    """So that equal weights mean something."""
    assert main([*words("pairs", tmp_path / "script"), "--script"]) == 0
    script = tmp_path / "script.py"
    script.write_text(capsys.readouterr().out.replace("seed=3", "seed=4"))
    runpy.run_path(str(script), run_name="__main__")
    assert weights(tmp_path / "script") != weights(trained("pairs").folder)


def predict(case, trained, file, tmp_path, *more):
    output = tmp_path / "predictions.jsonl"
    assert (
        main(["predict", str(trained(case).folder), "--data", file, "-o", str(output), "--device", "cpu", *more]) == 0
    )
    return kitchen.read_jsonl(output)


def test_what_is_said_and_written(trained):
    run = trained("one label")
    for text in (
        "text is 'review', label is 'sentiment'",
        "reviews.jsonl: 96 rows",
        "by a hash of the input",
        "max_length                   8 tokens (the longest row)",
        "per_device_train_batch_size  16 (usual for short texts)",
        "labels                       animal (",
        "[CLS]        2     1",
    ):
        assert text in run.said
    assert "learning_rate" not in run.said.partition("The first")[0]  # it was given
    assert {"recipe.json", "README.md", "report.html", "eval_results.json", "log.jsonl", "tokenizer.json"} <= {
        path.name for path in run.folder.iterdir()
    }
    card = (run.folder / "README.md").read_text()
    assert "text-classification" in card and "reviews.jsonl" in card and "accuracy" in card
    # The Hub has no model of that name, and the card may be read there.
    assert "fine-tuned from `bert`" in card and "base_model" not in card and "logging_dir" not in card


def test_a_new_model_has_a_card_without_a_base(trained):
    assert "`LlamaForCausalLM`, trained on text.jsonl" in (trained("from scratch").folder / "README.md").read_text()


def test_an_adapter_has_a_card_with_metrics(trained):
    card = (trained("LoRA").folder / "README.md").read_text()
    assert "accuracy" in card and "reviews.jsonl" in card


def test_a_missing_pad_token_is_said(trained):
    assert (
        "pad_token" in trained("no pad token").said and "<eos> (the tokenizer has none" in trained("no pad token").said
    )


def test_labels_are_predicted_as_words(at, trained, tmp_path, capsys):
    found = predict("one label", trained, "reviews.jsonl", tmp_path)
    rows = kitchen.read_jsonl(at / "reviews.jsonl")
    assert [row["text"] for row in found] == [row["review"] for row in rows]
    right = [row["prediction"] == row["label"] for row in found]
    assert sum(right) / len(right) > 0.9
    assert all(0.5 <= row["score"] <= 1 for row in found)
    assert f"accuracy: {sum(right) / len(right):.6g}" in capsys.readouterr().err


def test_rows_without_labels_are_predicted_alike(at, trained, tmp_path, capsys):
    rows = kitchen.read_jsonl(at / "reviews.jsonl")
    kitchen.write_jsonl(tmp_path / "new.jsonl", [{"text": row["review"]} for row in rows])
    kitchen.write_jsonl(
        tmp_path / "half.jsonl", [{k: row[k] for k in list(row)[: 1 + i % 2]} for i, row in enumerate(rows)]
    )
    found = predict("one label", trained, "reviews.jsonl", tmp_path)
    for file, more in (("new.jsonl", ["--columns", "text=text"]), ("half.jsonl", [])):
        capsys.readouterr()
        others = predict("one label", trained, str(tmp_path / file), tmp_path, *more)
        assert [row["prediction"] for row in others] == [row["prediction"] for row in found]
        assert "accuracy" not in capsys.readouterr().err


def test_several_labels_are_predicted(at, trained, tmp_path):
    found = predict("several labels", trained, "topics.jsonl", tmp_path)
    assert all(row["prediction"] == [name for name, score in row["scores"].items() if score > 0.5] for row in found)
    assert list(found[0]["scores"]) == ["animal", "red", "thing"]


def test_numbers_are_predicted(at, trained, tmp_path, capsys):
    found = predict("regression", trained, "stars.csv", tmp_path)
    error = sum((row["prediction"] - row["number"]) ** 2 for row in found) / len(found)
    assert f"rmse: {error**0.5:.4g}"[:10] in capsys.readouterr().err


def test_tags_are_predicted_for_words(at, trained, tmp_path):
    rows = [{"words": "the cat eats a pear".split()}, {"words": ["fish"]}]
    kitchen.write_jsonl(tmp_path / "new.jsonl", rows)
    found = predict("tokens", trained, str(tmp_path / "new.jsonl"), tmp_path)
    assert [row["prediction"] for row in found] == [["O", "B-ANIMAL", "O", "O", "O"], ["B-ANIMAL"]]
    long = {"words": ["cat"] * 40}  # beyond max_length
    kitchen.write_jsonl(tmp_path / "new.jsonl", [long])
    (row,) = predict("tokens", trained, str(tmp_path / "new.jsonl"), tmp_path)
    assert len(row["prediction"]) == 40 and row["prediction"][-1] is None and row["prediction"][0] == "B-ANIMAL"


def test_answers_are_written(at, trained, tmp_path):
    found = predict("answers", trained, "answers.jsonl", tmp_path, "--batch_size", "5")
    assert sum(row["prediction"] == row["completion"] for row in found) / len(found) > 0.6
    samples = kitchen.read_jsonl(trained("answers").folder / "samples.jsonl")
    assert len(samples) == 3 and all({"prompt", "completion", "prediction"} == set(sample) for sample in samples)
    results = json.loads((trained("answers").folder / "eval_results.json").read_text())
    assert results["eval_perplexity"] == pytest.approx(math.exp(results["eval_loss"]), rel=1e-9)


def test_prompts_of_several_lengths_share_a_batch(at, trained, tmp_path):
    rows = [{"prompt": " ".join(kitchen.tiny.WORDS[i : i + 1 + i % 4])} for i in range(8)]
    kitchen.write_jsonl(tmp_path / "new.jsonl", rows)
    alone, together = (
        predict("answers", trained, str(tmp_path / "new.jsonl"), tmp_path, "--batch_size", size) for size in ("1", "8")
    )
    assert together == alone and len({row["prediction"] for row in alone}) > 2


@pytest.mark.parametrize(
    ("case", "file"),
    [
        ("pretrain", "text.jsonl"),
        ("chats", "chats.jsonl"),
        ("seq2seq", "reversed.jsonl"),
        ("LoRA", "reviews.csv"),
        ("LoRA of a language model", "chats.jsonl"),
        ("pairs", "pairs.jsonl"),
    ],
)
def test_each_kind_of_model_predicts(case, file, at, trained, tmp_path):
    found = predict(case, trained, file, tmp_path)
    assert len(found) > 40 and all(isinstance(row["prediction"], str) for row in found)


def test_an_adapter_is_used_in_predictions(at, trained, tmp_path):
    """The head and the adapter that were trained: with those of the base model, other scores come out."""
    found = predict("LoRA", trained, "reviews.jsonl", tmp_path)
    assert predict("LoRA", trained, "reviews.jsonl", tmp_path) == found  # no weight is drawn at random
    other = shutil.copytree(trained("LoRA").folder, tmp_path / "other")
    from safetensors.numpy import load_file, save_file

    path = other / "adapter_model.safetensors"
    save_file({name: value * 3 for name, value in load_file(path).items()}, path)
    output = tmp_path / "others.jsonl"
    assert main(["predict", str(other), "--data", "reviews.jsonl", "-o", str(output), "--device", "cpu"]) == 0
    assert [row["score"] for row in kitchen.read_jsonl(output)] != [row["score"] for row in found]
