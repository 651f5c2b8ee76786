"""`oneloop train` with models of PaddleNLP."""

import json
import subprocess
import sys

import pytest

WORDS = [f"w{i}" for i in range(16)]
COMMON = (
    "--framework paddle --device cpu --report_to none --disable_tqdm true --eval_split 0.2 --learning_rate 1e-2".split()
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a tiny BERT and a tiny LLaMA, their tokenizer, and data whose answer is in the first word."""
    import paddle
    from paddlenlp.transformers import BertConfig, BertForMaskedLM, BertTokenizer, LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("recipes")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    tokenizer = BertTokenizer(str(folder / "vocab.txt"), model_max_length=32)
    sizes = {"vocab_size": len(vocabulary), "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "max_position_embeddings": 32}
    llama = LlamaConfig(**sizes, num_key_value_heads=2, seq_length=32, pad_token_id=0, eos_token_id=3, bos_token_id=2)
    paddle.seed(0)
    for name, model in (("bert", BertForMaskedLM(BertConfig(**sizes))), ("llama", LlamaForCausalLM(llama))):
        tokenizer.save_pretrained(str(folder / name))
        model.save_pretrained(str(folder / name))
    first, second = [WORDS[i % 5] for i in range(60)], [WORDS[8 + i % 7] for i in range(60)]
    texts = [f"{a} {b}" for a, b in zip(first, second)]
    write(folder / "answers.jsonl", [{"prompt": text, "completion": word} for text, word in zip(texts, first)])
    write(folder / "reviews.jsonl", [{"text": t, "label": "ab"[w in WORDS[:2]]} for t, w in zip(texts, first)])
    topics = [{"text": t, "labels": [w, "x"][: 1 + i % 2]} for i, (t, w) in enumerate(zip(texts, first))]
    write(folder / "topics.jsonl", topics)
    write(folder / "stars.jsonl", [{"text": t, "score": i % 5} for i, t in enumerate(texts)])
    write(folder / "text.jsonl", [{"text": f"{t} {t} {t}"} for t in texts])
    write(folder / "names.jsonl", [{"words": t.split(), "tags": ["A", "O"]} for t in texts])
    return folder


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(folder, *words, fails=False):
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=500)
    assert bool(done.returncode) == fails, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stderr if fails else done.stdout


def train(folder, task, model, data, *more, **options):
    words = ["--task", task, "--model", model, "--data", f"{data}.jsonl", *COMMON, *more]
    return run(folder, "-m", "oneloop", "train", *words, **options)


def predict(folder, model, data):
    said = run(folder, "-m", "oneloop", "predict", model, "--data", f"{data}.jsonl", "--device", "cpu")
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


@pytest.mark.parametrize(
    ("task", "model", "data"),
    [("classification", "bert", "reviews"), ("sft", "llama", "answers")],
    ids=["bert", "llama"],
)
def test_the_script_gives_the_same_weights(made, task, model, data):
    given = ["--num_train_epochs", "3"]
    assert "paddlenlp on paddle" in train(made, task, model, data, *given, "--output_dir", f"{data}-recipe")
    text = train(made, task, model, data, *given, "--output_dir", f"{data}-script", "--script")
    (made / f"{data}.py").write_text(text)
    run(made, f"{data}.py")
    weights = list((made / f"{data}-recipe").glob("*.safetensors"))
    assert weights and all((made / f"{data}-script" / path.name).read_bytes() == path.read_bytes() for path in weights)


def test_labels_are_learned_and_predicted(made):
    train(made, "classification", "bert", "reviews", "--num_train_epochs", "30", "--output_dir", "learned")
    assert json.loads((made / "learned" / "eval_results.json").read_text())["eval_accuracy"] > 0.9
    rows = predict(made, "learned", "reviews")
    assert len(rows) == 60 and sum(row["prediction"] == row["label"] for row in rows) > 54


def test_answers_begin_with_what_was_learned(made):
    """The tokenizer has no end-of-text token, so the texts go on."""
    train(made, "sft", "llama", "answers", "--num_train_epochs", "30", "--output_dir", "answered")
    rows = predict(made, "answered", "answers")
    assert sum(row["prediction"].split()[:1] == [row["completion"]] for row in rows) > 40


@pytest.mark.parametrize(
    ("task", "model", "data", "metric"),
    [
        ("classification", "bert", "topics", "eval_f1"),
        ("regression", "bert", "stars", "eval_rmse"),
        ("pretrain", "llama", "text", "eval_perplexity"),
    ],
    ids=["several labels", "regression", "pretrain"],
)
def test_other_tasks_are_trained_evaluated_and_predicted(made, task, model, data, metric):
    train(made, task, model, data, "--num_train_epochs", "2", "--output_dir", data)
    assert json.loads((made / data / "eval_results.json").read_text())[metric] >= 0
    assert all("prediction" in row for row in predict(made, data, data))


@pytest.mark.parametrize(
    ("task", "data", "more", "message"),
    [
        ("sft", "answers", ["--packing", "true"], "packing is not supported"),
        ("sft", "answers", ["--lora"], "adapters need PEFT"),
        ("token-classification", "names", [], "needs a tokenizer that knows the word of each token"),
    ],
)
def test_what_is_not_supported(made, task, data, more, message):
    assert message in train(made, task, "llama" if task == "sft" else "bert", data, *more, fails=True)
