"""The second main job: its data and figures are right, and the whole of it runs on a little text."""

import importlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from tests.backends.support import names

JOB = Path(__file__).parents[2] / "examples" / "pretraining"
MODULES = ("data", "baselines", "tokenizer", "train", "model_torch", "model_paddle", "model_mindspore")
TEXTS = ["def f(x):\n    return x\n", "这本书很好，\n我喜欢。", "", "naïve café \U0001f600"]


@pytest.fixture(scope="module")
def job():
    """Imports a module of the job; their names are too common to stay importable."""
    before = {name: sys.modules.pop(name, None) for name in MODULES}
    sys.path.insert(0, str(JOB))
    yield importlib.import_module
    sys.path.remove(str(JOB))
    for name, module in before.items():
        sys.modules.pop(name, None)
        if module is not None:
            sys.modules[name] = module


# -- data -----------------------------------------------------------------------------------------------------------


def test_held_out_documents_are_not_trained_on(job):
    data = job("data")
    sources = data.load()
    for name, source in sources.items():
        assert not {data.opening(text) for text in source.train} & {data.opening(text) for text in source.held_out}
        size = sum(len(text.encode()) for text in source.held_out)
        assert data.HELD_OUT_BYTES[name] <= size < 2 * data.HELD_OUT_BYTES[name]
        assert sum(len(text.encode()) for text in source.train) > 10 * size
    assert any("import" in text for text in sources["python"].train)
    assert all(sources["reviews"].train)


def test_near_copies_go_to_the_same_side(job):
    data = job("data")
    copies = ["This document begins like all of the others, and only then differs: " + str(i) for i in range(20)]
    others = [f"{i} documents of another kind, each with an opening of its own {i}" for i in range(20)]
    source = data.split(sorted(copies + others, key=data.digest), 400)
    sides = [set(copies) <= set(part) for part in (source.train, source.held_out)]
    assert sides in ([True, False], [False, True])
    assert source.held_out and len(source.train) + len(source.held_out) == 40


# -- tokenizer ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer(job):
    return job("tokenizer").BytePairs.train(["def f(x): return x", "这本书很好，我很喜欢这本书"] * 3, 280)


def test_text_survives_the_tokenizer_and_its_bytes_are_counted(tokenizer, tmp_path, job):
    lengths = tokenizer.byte_lengths()
    assert len(tokenizer) == len(lengths) == 280
    tokenizer.save_pretrained(tmp_path)
    again = job("tokenizer").BytePairs.from_pretrained(tmp_path)
    for text, ids in zip(TEXTS, tokenizer.encode(TEXTS)):
        assert ids[0] == 0 and 0 not in ids[1:]
        assert tokenizer.decode(ids) == text
        assert lengths[ids].sum() == len(text.encode())
        assert again.encode([text])[0].tolist() == ids.tolist()


def test_every_held_out_token_is_predicted_once(job):
    documents = [
        np.arange(start, start + length) for start, length in ((0, 1), (100, 2), (200, 8), (300, 9), (400, 30))
    ]
    windows = job("train").windows(documents, 8)
    assert all(len(window["input_ids"]) <= 8 for window in windows)
    predicted = [int(token) for window in windows for token in window["input_ids"][1:]]
    assert sorted(predicted) == sorted(int(token) for document in documents for token in document[1:])


def test_bits_per_byte_of_a_uniform_model(job, tokenizer):
    metric = job("train").BitsPerByte(tokenizer)
    ids = tokenizer.encode(TEXTS[:2])
    labels = np.full((2, max(map(len, ids)) + 3), -100)
    for row, of_text in zip(labels, ids):
        row[1 : len(of_text)] = of_text[1:]
    losses = np.full((2, labels.shape[1] - 1), math.log(280), np.float32)
    tokens, size = sum(map(len, ids)) - 2, sum(len(text.encode()) for text in TEXTS[:2])
    result = metric((losses, labels))["bits_per_byte"]
    assert result == pytest.approx(tokens * math.log2(280) / size, rel=1e-6)


# -- baselines ------------------------------------------------------------------------------------------------------


def slow_ngram_bits_per_byte(train, held_out, order):
    """The same model with dictionaries, byte by byte."""
    known, new = (b"\0".join(text.encode() for text in texts) for texts in (train, held_out))
    counts = [defaultdict(Counter) for _ in range(order)]
    for length, of_length in enumerate(counts):
        for end in range(length, len(known)):
            of_length[known[end - length : end]][known[end]] += 1
    bits = 0.0
    for place, byte in enumerate(new):
        probability = 1 / 256
        for length, of_length in enumerate(counts):
            if length > place:
                break
            seen = of_length.get(new[place - length : place])
            if seen:
                total = sum(seen.values())
                probability = (seen[byte] + len(seen) * probability) / (total + len(seen))
        bits -= math.log2(probability)
    return bits / len(new)


def test_the_ngram_model_agrees_with_a_plain_one(job):
    chance = random.Random(0)
    texts = ["".join(chance.choices("abcde é\n", k=chance.randint(1, 60))) for _ in range(30)]
    for order in (1, 2, 4):
        fast = job("baselines").ngram_bits_per_byte(texts[:20], texts[20:], order)
        assert fast == pytest.approx(slow_ngram_bits_per_byte(texts[:20], texts[20:], order), rel=1e-9)


def test_the_compressor_knows_the_training_text(job):
    chance = random.Random(0)
    text = "".join(chance.choices("abcdefgh", k=20_000))
    other = "".join(chance.choices("abcdefgh", k=20_000))
    xz = job("baselines").xz_bits_per_byte
    assert xz([text], [text]) < 0.05
    assert 3 < xz([text], [other]) < 4  # eight letters carry three bits each


# -- models ---------------------------------------------------------------------------------------------------------

TENSORS = {
    "torch": ("torch", lambda module, array: module.tensor(array)),
    "paddle": ("paddle", lambda module, array: module.to_tensor(array)),
    "mindspore": ("mindspore", lambda module, array: module.Tensor(array)),
}


def set_weights(model, framework, weights):
    """Gives the model these weights, which have the names and the layout of PyTorch."""
    framework_module = importlib.import_module(framework)
    if framework == "torch":
        model.load_state_dict({name: framework_module.tensor(value) for name, value in weights.items()})
        return
    named = model.named_parameters() if framework == "paddle" else model.parameters_and_names()
    own = {name.replace("embedding_table", "weight"): parameter for name, parameter in named}
    assert own.keys() == weights.keys()
    for name, value in weights.items():
        if framework == "paddle":
            own[name].set_value(value.T if value.ndim == 2 and "embedding" not in name else value)
        else:
            own[name].set_data(framework_module.Tensor(value))


def weights_of(width, layers, vocabulary):
    chance = np.random.RandomState(0)
    shapes = {"embedding.weight": (vocabulary, width), "norm.weight": (width,), "head.weight": (vocabulary, width)}
    for layer in range(layers):
        for name, shape in {
            "attention_norm": (width,),
            "mlp_norm": (width,),
            "attention_in": (3 * width, width),
            "attention_out": (width, width),
            "gate": (3 * width, width),
            "up": (3 * width, width),
            "down": (width, 3 * width),
        }.items():
            shapes[f"blocks.{layer}.{name}.weight"] = shape
    return {name: (0.3 * chance.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}


def expected_logits(weights, ids, positions, allowed, heads):
    """The model in NumPy, with 64 bits."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}

    def norm(x, name):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * w[name]

    def turn(x):
        half = x.shape[-1] // 2
        angle = positions[:, None, :, None] * 10_000.0 ** (-np.arange(half) / half)
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)

    x = w["embedding.weight"][ids]
    rows, tokens, width = x.shape
    for layer in range(2):
        name = f"blocks.{layer}."
        qkv = norm(x, name + "attention_norm.weight") @ w[name + "attention_in.weight"].T
        q, k, v = qkv.reshape(rows, tokens, 3, heads, width // heads).transpose(2, 0, 3, 1, 4)
        scores = turn(q) @ turn(k).swapaxes(2, 3) / math.sqrt(width // heads)
        scores = np.where(allowed, scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        seen = (shares / shares.sum(-1, keepdims=True)) @ v
        x = x + seen.transpose(0, 2, 1, 3).reshape(rows, tokens, width) @ w[name + "attention_out.weight"].T
        y = norm(x, name + "mlp_norm.weight")
        gate = y @ w[name + "gate.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ w[name + "up.weight"].T)) @ w[name + "down.weight"].T
    return norm(x, "norm.weight") @ w["head.weight"].T


@pytest.mark.parametrize("framework", names())
def test_the_model_is_the_same_on_every_framework(job, framework):
    module = importlib.import_module(TENSORS[framework][0])
    models = job(f"model_{framework}")
    weights = weights_of(width=16, layers=2, vocabulary=30)
    model = models.GPT(30, width=16, layers=2, heads=2)
    set_weights(model, framework, weights)
    ids = np.random.RandomState(1).randint(0, 30, (2, 9))
    documents = np.array([[0] * 4 + [1] * 5, [0] * 9])
    positions = np.array([[0, 1, 2, 3, 0, 1, 2, 3, 4], list(range(9))])
    allowed = (documents[:, None, :, None] == documents[:, None, None, :]) & np.tri(9, dtype=bool)
    labels = np.where((np.arange(9) == 4) & (documents == 1), -100, ids)
    inputs = {"input_ids": ids, "position_ids": positions, "attention_mask": allowed, "labels": labels}
    outputs = model(**{name: TENSORS[framework][1](module, array) for name, array in inputs.items()})
    as_array = (lambda x: x.detach().numpy()) if framework == "torch" else lambda x: x.numpy()
    logits = as_array(outputs["logits"])
    expected = expected_logits(weights, ids, positions, allowed, heads=2)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)

    wide = expected[:, :-1] - expected[:, :-1].max(-1, keepdims=True)
    logs = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    wanted = labels[:, 1:]
    losses = np.where(wanted == -100, 0, -np.take_along_axis(logs, np.maximum(wanted, 0)[..., None], -1)[..., 0])
    made = as_array(models.token_losses(outputs["logits"], TENSORS[framework][1](module, labels)))
    np.testing.assert_allclose(made, losses, rtol=1e-4, atol=1e-4)
    assert float(as_array(outputs["loss"])) == pytest.approx(losses.sum() / (wanted != -100).sum(), rel=1e-5)
    alone = expected_logits(weights, ids[1:], positions[1:], np.tri(9, dtype=bool), heads=2)
    np.testing.assert_allclose(models.next_token_logits(model, ids[1].tolist()), alone[0, -1], rtol=1e-4, atol=1e-4)


# -- the whole job --------------------------------------------------------------------------------------------------

SMALL = ("--bytes", "60000", "--vocabulary", "320", "--width", "32", "--layers", "1", "--warmup_steps", "1")
SMALL += ("--lr_scheduler_kwargs", '{"num_decay_steps": 2}', "--eval_steps", "4", "--save_steps", "2")


def command(folder, *options):
    return [sys.executable, str(JOB / "train.py"), "--output_dir", str(folder), *SMALL, *options]


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def run_job(folder, *options):
    done = subprocess.run(command(folder, *options), capture_output=True, text=True, env=environment(), timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.rare_on("mindspore")
@pytest.mark.rare_on("paddle")
@pytest.mark.parametrize("framework", names())
def test_the_job_trains_writes_a_sample_and_stands_beside_its_baselines(framework, tmp_path):
    out = run_job(tmp_path / "out", "--framework", framework, "--max_steps", "8")
    results = json.loads((tmp_path / "out" / "all_results.json").read_text())
    assert all(1 < results[f"{name}_bits_per_byte"] < 8 for name in ("python", "reviews"))
    for expected in ("6-gram model", "xz after training text", "-- reviews, a sample\n这本书", "report.html"):
        assert expected in out
    assert (tmp_path / "out" / "report.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "out" / "model.safetensors").is_file() and (tmp_path / "out" / "tokenizer.json").is_file()
    history = json.loads((tmp_path / "out" / "trainer_state.json").read_text())["log_history"]
    found = [entry["eval_python_bits_per_byte"] for entry in history if "eval_python_bits_per_byte" in entry]
    assert len(found) == 2 and found[1] < found[0] and found[1] == results["python_bits_per_byte"]


@pytest.mark.slow
@pytest.mark.parametrize("framework", names())
def test_a_killed_job_goes_on_and_ends_with_the_same_weights(framework, tmp_path):
    options = ("--framework", framework, "--max_steps", "40", "--baselines", "false")
    run_job(tmp_path / "whole", *options)
    started = subprocess.Popen(
        command(tmp_path / "killed", *options), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment()
    )
    while not (tmp_path / "killed" / "checkpoint-4").is_dir():
        assert started.poll() is None
        time.sleep(0.01)
    started.send_signal(signal.SIGKILL)
    started.wait()
    assert not (tmp_path / "killed" / "model.safetensors").exists()
    run_job(tmp_path / "killed", *options)
    whole, killed = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "killed"))
    assert whole == killed


def test_another_vocabulary_in_the_same_folder_is_an_error(job, tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(SystemExit, match="280 tokens, not 300; use another --output_dir"):
        job("train").find_tokenizer({}, 300, tmp_path)
