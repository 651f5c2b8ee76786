"""ema_decay and swa_start: the average of the weights in training, evaluations, files and resumed runs."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from oneloop import Trainer, TrainerCallback
from oneloop.checkpoint import store
from oneloop.errors import ArgumentError, CheckpointError
from tests.backends.support import rows, same_bytes
from tests.internals import backend_of, weight_average

RUN = {"max_steps": 4, "per_device_train_batch_size": 4, "learning_rate": 0.05, "save_strategy": "no"}
EMA = {"ema_decay": 0.75}
SWA = {"swa_start": 0.5}


class Weights(TrainerCallback):
    """The weights after each step."""

    def __init__(self, backend):
        self.backend, self.seen = backend, []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.seen.append(self.backend.weights(model))


def run(backend, arguments, resume=None, model=None, **given):
    watch = Weights(backend)
    model = model or backend.classifier(dropout=0.1)
    data = {"train_dataset": rows(24), "eval_dataset": rows(8, 1)}
    trainer = Trainer(model, arguments(**RUN | given), callbacks=[watch], **data)
    trainer.train(resume_from_checkpoint=resume)
    return trainer, watch.seen


def average_of(backend, trainer):
    values = weight_average(trainer).tensors()
    to_numpy = backend_of(trainer).tensors.to_numpy
    return {name: np.asarray(to_numpy(value)).copy() for name, value in values.items()}


def test_an_average_is_that_of_the_weights(backend, arguments):
    """EMA of all steps; SWA of the second half, of less, or of every second step; training is that without one."""
    plain, _ = run(backend, arguments)
    for given, expected in (
        (EMA, lambda w: ((w[0] * 0.75 + w[1] * 0.25) * 0.75 + w[2] * 0.25) * 0.75 + w[3] * 0.25),
        (SWA, lambda w: (w[1] + w[2] + w[3]) / 3),
        ({"swa_start": 0.6}, lambda w: (w[2] + w[3]) / 2),
        ({"swa_start": 1, "averaging_steps": 2}, lambda w: (w[1] + w[3]) / 2),
        ({"swa_start": 9}, None),
    ):
        trainer, seen = run(backend, arguments, **given)
        assert same_bytes(backend.weights(plain.model), backend.weights(trainer.model))
        found = average_of(backend, trainer)
        assert set(found) == (set(seen[0]) if expected else set())
        for name, value in found.items():
            np.testing.assert_allclose(value, expected([step[name] for step in seen]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("given", [EMA, SWA], ids=["ema", "swa"])
def test_it_resumes_to_the_same_bits(backend, arguments, tmp_path, given):
    saves = given | {"save_strategy": "steps", "save_steps": 3}
    whole, _ = run(backend, arguments, **saves)
    path = tmp_path / "out" / "checkpoint-3"
    assert "average.safetensors" in json.loads((path / "manifest.json").read_text())["files"]
    assert set(load_file(path / "average.safetensors")) == set(average_of(backend, whole))
    again, _ = run(backend, arguments, str(path), backend.classifier(dropout=0.1, seed=5), **saves)
    assert same_bytes(average_of(backend, whole), average_of(backend, again))
    assert same_bytes(backend.weights(whole.model), backend.weights(again.model))


def test_evaluations_and_save_model_use_it_if_asked(backend, arguments, tmp_path):
    plain, _ = run(backend, arguments, eval_strategy="steps", eval_steps=2)
    both = {"eval_with_average": True, "save_average": True}
    trainer, _ = run(backend, arguments, **EMA, **both, eval_strategy="steps", eval_steps=2)
    assert same_bytes(backend.weights(plain.model), backend.weights(trainer.model)), "as without evaluations of it"
    losses = [[line["eval_loss"] for line in t.state.log_history if "eval_loss" in line] for t in (plain, trainer)]
    assert all(one != other for one, other in zip(*losses, strict=True))
    found = average_of(backend, trainer)
    before = backend.weights(trainer.model)
    trainer.save_model(str(tmp_path / "saved"))
    assert same_bytes(before, backend.weights(trainer.model))
    assert same_bytes(load_file(tmp_path / "saved" / "model.safetensors"), found)
    with weight_average(trainer).in_model():
        assert same_bytes(backend.weights(trainer.model), found)
    other = Trainer(trainer.model, arguments(**RUN), eval_dataset=rows(8, 1))
    with weight_average(trainer).in_model():
        assert other.evaluate()["eval_loss"] == losses[1][-1] == trainer.evaluate()["eval_loss"]


@pytest.mark.parametrize("asked", ["eval_with_average", "save_average"])
def test_each_is_asked_for_separately(backend, arguments, tmp_path, asked):
    trainer, _ = run(backend, arguments, **EMA, **{asked: True}, eval_strategy="steps", eval_steps=2)
    plain, _ = run(backend, arguments, eval_strategy="steps", eval_steps=2)
    trainer.save_model(str(tmp_path / "saved"))
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert same_bytes(saved, average_of(backend, trainer)) is (asked == "save_average")
    assert (trainer.evaluate()["eval_loss"] != plain.evaluate()["eval_loss"]) is (asked == "eval_with_average")


def test_the_best_model_has_its_average(backend, arguments):
    given = {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True, "eval_with_average": True}
    scores = iter([0, 1, 0, 0, 0])
    trainer = Trainer(
        backend.classifier(),
        arguments(**RUN, **EMA, **given, greater_is_better=True, metric_for_best_model="score"),
        train_dataset=rows(24),
        eval_dataset=rows(8, 1),
        compute_metrics=lambda _: {"score": next(scores)},
    )
    trainer.train()
    losses = [line["eval_loss"] for line in trainer.state.log_history if "eval_loss" in line]
    assert trainer.state.best_global_step == 2 and len(set(losses)) == 4
    assert trainer.evaluate()["eval_loss"] == losses[1]


def test_it_goes_to_another_framework(backend, arguments, tmp_path):
    """With the weights: under the names there, and with turned matrices where linear layers are the other way round."""
    pytest.importorskip("torch")
    from tests.backends.kits.torch_kit import Kit

    if backend.name == "torch":
        pytest.skip("it is the one that writes")
    wrote, _ = run(Kit(), arguments, **EMA, save_strategy="steps", save_steps=4)
    trainer, _ = run(backend, arguments, str(tmp_path / "out" / "checkpoint-4"), **EMA)
    source, found = average_of(Kit(), wrote), average_of(backend, trainer)
    layout = backend_of(trainer).framework_layout.layout(trainer.model)
    assert {layout[name].name for name in found} == set(source)
    for name, value in found.items():
        place = layout[name]
        expected = source[place.name].T if place.axes == "io" else source[place.name]
        assert np.array_equal(value, expected), name


def changed(path, change):
    """The same checkpoint with another average, and a manifest that fits."""
    tensors = load_file(path / "average.safetensors")
    tensors = change(dict(tensors))
    save_file(tensors, path / "average.safetensors")
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"]["average.safetensors"] = store.file_facts(path / "average.safetensors")
    (path / "manifest.json").write_text(json.dumps(manifest))


def test_an_average_that_does_not_fit_is_an_error(arguments, tmp_path):
    pytest.importorskip("torch")
    from tests.backends.kits.torch_kit import Kit

    backend = Kit()
    saves = EMA | {"save_strategy": "steps", "save_steps": 3}
    path = tmp_path / "out" / "checkpoint-3"
    for change, words in (
        (lambda t: {k: v for k, v in t.items() if k != "head.bias"}, "missing: head.bias"),
        (lambda t: t | {"extra": t["head.bias"]}, "not in the model: extra"),
        (lambda t: t | {"head.bias": t["head.bias"][:1].copy()}, "head.bias has shape"),
        (lambda t: t | {"head.bias": t["head.bias"].astype("float64")}, "head.bias is F64, expected F32"),
    ):
        run(backend, arguments, **saves)
        changed(path, change)
        with pytest.raises(CheckpointError, match=f"averaged weights.*{words}"):
            run(backend, arguments, str(path), **saves)
    (path / "average.safetensors").unlink()
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["files"]["average.safetensors"]
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="describes an average of the weights"):
        run(backend, arguments, str(path), **saves)


def test_another_average_than_before_is_told(arguments, tmp_path, caplog):
    pytest.importorskip("torch")
    from tests.backends.kits.torch_kit import Kit

    backend, path = Kit(), str(tmp_path / "out" / "checkpoint-2")
    saves = {"save_strategy": "steps", "save_steps": 2}
    for before, now, words in (
        ({}, EMA, "has no average of the weights, and this run keeps an EMA of the weights: it starts here"),
        (EMA, {"swa_start": 0}, "has an EMA of the weights, and this run keeps an SWA of the weights: it starts here"),
        (EMA, {}, "and this run keeps none: it is not continued"),
    ):
        run(backend, arguments, **saves, **before)
        caplog.clear()
        trainer, seen = run(backend, arguments, path, **saves, **now)
        assert words in caplog.text
        assert weight_average(trainer).count == (len(seen) if now else 0)


@pytest.mark.parametrize("given", [{"bf16": True}, {"bf16": True, "fp16_opt_level": "O3"}], ids=["O1", "O3"])
def test_an_average_is_in_float32(arguments, tmp_path, given):
    torch = pytest.importorskip("torch")
    from tests.backends.kits.torch_kit import Kit

    saves = EMA | given | {"save_strategy": "steps", "save_steps": 2, "eval_with_average": True}
    backend = Kit()

    def train(resume=None):
        trainer = Trainer(backend.classifier(), arguments(**RUN | saves), train_dataset=rows(24), eval_dataset=rows(8))
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    whole, again = train(), train(str(tmp_path / "out" / "checkpoint-2"))
    values = weight_average(whole).values
    assert {value.dtype for value in values} == {torch.float32}
    assert same_bytes(average_of(backend, whole), average_of(backend, again))
    assert whole.evaluate() and {p.dtype for p in whole.model.parameters()} == {
        torch.bfloat16 if len(given) > 1 else torch.float32
    }


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (EMA | SWA, "a run has one"),
        ({"eval_with_average": True}, "eval_with_average=True needs an average"),
        ({"save_average": True}, "save_average=True needs an average"),
        ({"ema_decay": 1.0}, "ema_decay"),
        ({"averaging_steps": 0}, "averaging_steps"),
    ],
)
def test_arguments_that_contradict_each_other(arguments, given, words):
    with pytest.raises(ArgumentError, match=words):
        arguments(**given)


def test_without_an_average_nothing_is_kept_or_stored(backend, arguments, tmp_path):
    trainer, _ = run(backend, arguments, save_strategy="steps", save_steps=4)
    assert weight_average(trainer).values == []
    path = Path(tmp_path / "out" / "checkpoint-4")
    assert "average" not in json.loads((path / "run.json").read_text())
    assert "ema_decay" not in json.loads((path / "run.json").read_text())["course"]
    assert not (path / "average.safetensors").exists()
