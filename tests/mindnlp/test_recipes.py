"""`oneloop train` with models of transformers on MindSpore."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORDS = [f"w{i}" for i in range(16)]
COMMON = "--framework mindspore --device cpu --report_to none --disable_tqdm true --eval_split 0.2".split()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a tiny BERT and a tiny LLaMA, their tokenizer, and data whose answer is in the first word."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("recipes")
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<unk>", "<eos>", *WORDS])}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "<eos>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, model_max_length=32, **names)
    sizes = {"vocab_size": len(vocabulary), "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "max_position_embeddings": 32, "pad_token_id": 0}
    llama = LlamaConfig(**sizes, num_key_value_heads=2, eos_token_id=2, bos_token_id=2)
    torch.manual_seed(0)
    for name, model in (("bert", BertForMaskedLM(BertConfig(**sizes))), ("llama", LlamaForCausalLM(llama))):
        tokenizer.save_pretrained(folder / name)
        model.save_pretrained(folder / name)
    first, second = [WORDS[i % 5] for i in range(60)], [WORDS[8 + i % 7] for i in range(60)]
    texts = [f"{a} {b}" for a, b in zip(first, second)]
    write(folder / "answers.jsonl", [{"prompt": text, "completion": word} for text, word in zip(texts, first)])
    write(folder / "reviews.jsonl", [{"text": t, "label": "ab"[w in WORDS[:2]]} for t, w in zip(texts, first)])
    return folder


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(folder, *words):
    command, environment = [sys.executable, *words], os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900, env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


def predict(folder, model, data):
    said = run(folder, "-m", "oneloop", "predict", model, "--data", f"{data}.jsonl", "--device", "cpu")
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def test_labels_are_learned_and_the_script_gives_the_same_weights(made):
    words = ["--task", "classification", "--model", "bert", "--data", "reviews.jsonl", *COMMON]
    words += ["--num_train_epochs", "6", "--learning_rate", "1e-2"]
    said = run(made, "-m", "oneloop", "train", *words, "--output_dir", "recipe")
    assert "mindnlp on mindspore" in said
    assert json.loads((made / "recipe" / "eval_results.json").read_text())["eval_accuracy"] > 0.9
    (made / "script.py").write_text(run(made, "-m", "oneloop", "train", *words, "--output_dir", "script", "--script"))
    run(made, "script.py")
    assert (made / "recipe/model.safetensors").read_bytes() == (made / "script/model.safetensors").read_bytes()
    rows = predict(made, "recipe", "reviews")
    assert len(rows) == 60 and sum(row["prediction"] == row["label"] for row in rows) > 54


def test_an_adapter_is_trained_evaluated_and_answers(made):
    words = ["--task", "sft", "--model", "llama", "--data", "answers.jsonl", *COMMON, "--lora", "true"]
    words += ["--num_train_epochs", "2", "--max_new_tokens", "3", "--samples", "1", "--output_dir", "adapter"]
    run(made, "-m", "oneloop", "train", *words)
    assert json.loads((made / "adapter" / "eval_results.json").read_text())["eval_perplexity"] > 1
    assert (made / "adapter" / "adapter_model.safetensors").is_file()
    assert not (made / "adapter" / "model.safetensors").exists()
    rows = [{"prompt": "w1 w8"}, {"prompt": "w2 w9"}]
    write(made / "asked.jsonl", rows)
    assert [row["prompt"] for row in predict(made, "adapter", "asked")] == ["w1 w8", "w2 w9"]
