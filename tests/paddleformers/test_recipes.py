"""`oneloop train` with models of PaddleFormers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

WORDS = [f"w{i}" for i in range(16)]
COMMON = (
    "--framework paddle --device cpu --report_to none --disable_tqdm true --eval_split 0.2 --learning_rate 1e-2".split()
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a tiny LLaMA, its tokenizer, and prompts whose answer is their first word."""
    import paddle
    from paddleformers.transformers import LlamaConfig, LlamaForCausalLM
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("recipes")
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<unk>", "<eos>", *WORDS])}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", unk_token="<unk>", eos_token="<eos>", model_max_length=32
    )
    tokenizer.save_pretrained(folder / "llama")
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=32, tie_word_embeddings=False, fuse_rms_norm=False,
        pad_token_id=0, eos_token_id=2, bos_token_id=2,
    )  # fmt: skip
    paddle.seed(0)
    LlamaForCausalLM(config).save_pretrained(str(folder / "llama"))
    rows = [{"prompt": f"{WORDS[i % 5]} {WORDS[8 + i % 7]}", "completion": WORDS[i % 5]} for i in range(60)]
    write(folder / "answers.jsonl", rows)
    write(folder / "text.jsonl", [{"text": " ".join(WORDS[(i + j) % 16] for j in range(6 + i % 5))} for i in range(60)])
    firsts = [row["completion"] in WORDS[:2] for row in rows]
    write(folder / "reviews.jsonl", [{"text": row["prompt"], "label": "ab"[is_a]} for row, is_a in zip(rows, firsts)])
    return folder


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(folder, *words, fails=False, path=None):
    environment = os.environ | ({"PYTHONPATH": f"{path}:{ROOT}"} if path else {})
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500, env=environment)
    assert bool(done.returncode) == fails, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stderr if fails else done.stdout


def test_answers_are_learned_and_the_script_gives_the_same_weights(made):
    words = [
        "train",
        "--task",
        "sft",
        "--model",
        "llama",
        "--data",
        "answers.jsonl",
        "--num_train_epochs",
        "24",
        *COMMON,
    ]
    said = run(made, "-m", "oneloop", *words, "--output_dir", "recipe")
    assert "paddleformers on paddle" in said
    text = run(made, "-m", "oneloop", *words, "--output_dir", "script", "--script")
    (made / "script.py").write_text(text)
    run(made, "script.py")
    weights = list((made / "recipe").glob("*.safetensors"))
    assert weights and all((made / "script" / path.name).read_bytes() == path.read_bytes() for path in weights)
    found = run(made, "-m", "oneloop", "predict", "recipe", "--data", "answers.jsonl", "--device", "cpu").splitlines()
    rows = rows_of(found)
    assert len(rows) == 60
    assert sum(row["prediction"] == row["completion"] for row in rows) / len(rows) > 0.6


def rows_of(lines):
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_pretraining_is_evaluated_and_continues_texts(made):
    words = ["--task", "pretrain", "--model", "llama", "--data", "text.jsonl", "--num_train_epochs", "8", *COMMON]
    run(made, "-m", "oneloop", "train", *words, "--output_dir", "pretrained")
    assert 1 < json.loads((made / "pretrained" / "eval_results.json").read_text())["eval_perplexity"] < 4
    write(made / "starts.jsonl", [{"text": "w2 w3 w4 w5"}, {"text": "w7 w8 w9"}])
    found = run(made, "-m", "oneloop", "predict", "pretrained", "--data", "starts.jsonl", "--device", "cpu")
    assert [row["prediction"].split()[:2] for row in rows_of(found.splitlines())] == [["w6", "w7"], ["w10", "w11"]]


# PaddleFormers has classifiers of Qwen and DeepSeek only. Their modules import classes for many GPUs from PaddleFleet,
# which no package index has; a classifier uses none of them.
WITHOUT_PADDLEFLEET = """
import sys, types
module = types.ModuleType("paddleformers.transformers.gpt_provider")
module.GPTModelProvider = module.GPTModel = type("Unused", (), {})
sys.modules[module.__name__] = module
"""
QWEN = """
import paddle
from paddleformers.transformers import Qwen2Config
from paddleformers.transformers.qwen2.modeling import Qwen2ForSequenceClassification
config = Qwen2Config(vocab_size=19, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=2, max_position_embeddings=32, fuse_rms_norm=False, pad_token_id=0, eos_token_id=2)
paddle.seed(0)
Qwen2ForSequenceClassification(config).save_pretrained("qwen")
"""


def test_a_classifier_is_trained_evaluated_and_predicts(made, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_PADDLEFLEET)
    run(made, "-c", QWEN, path=tmp_path)
    words = ["--task", "classification", "--model", "qwen", "--tokenizer", "llama", "--data", "reviews.jsonl", *COMMON]
    run(made, "-m", "oneloop", "train", *words, "--num_train_epochs", "20", "--output_dir", "classes", path=tmp_path)
    assert json.loads((made / "classes" / "eval_results.json").read_text())["eval_accuracy"] > 0.9
    words = ["predict", "classes", "--data", "reviews.jsonl", "--device", "cpu"]
    rows = rows_of(run(made, "-m", "oneloop", *words, path=tmp_path).splitlines())
    assert len(rows) == 60 and sum(row["prediction"] == row["label"] for row in rows) > 54


def test_a_model_without_a_classifier(made):
    words = ["train", "--task", "classification", "--model", "llama", "--data", "reviews.jsonl", *COMMON]
    said = run(made, "-m", "oneloop", *words, fails=True)
    assert "paddleformers has no AutoModelForSequenceClassification for llama" in said


@pytest.mark.parametrize(
    ("more", "message"),
    [(["--packing", "true"], "packing is not supported"), (["--lora"], "adapters need PEFT")],
)
def test_what_is_not_supported(more, message, made):
    words = ["train", "--task", "sft", "--model", "llama", "--data", "answers.jsonl", *COMMON, *more]
    assert message in run(made, "-m", "oneloop", *words, fails=True)
