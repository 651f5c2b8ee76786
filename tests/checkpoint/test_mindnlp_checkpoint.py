"""Runs that the Trainer of mindnlp 0.4 began and oneloop goes on with, on MindSpore.

The checkpoint in old_runs was written by mindnlp itself (old_runs/make_mindnlp.py), together with the weights and
losses that its own run ended with.
"""

import json
import logging
import pickle
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore")

from mindspore import nn, ops  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402

from oneloop import Trainer, TrainerCallback, TrainingArguments  # noqa: E402
from oneloop.backends.mindspore import weights as mindspore_weights  # noqa: E402
from oneloop.checkpoint import listing  # noqa: E402
from oneloop.converters import mindnlp_checkpoint, plain_pickle  # noqa: E402
from oneloop.errors import CheckpointError  # noqa: E402

OLD = Path(__file__).parent / "old_runs" / "mindnlp" / "plain"
SAMPLES, BATCH, SAVED, STEPS = 12, 2, 8, 11
WORDS, SIZE, CLASSES = 7, 4, 3
ARGUMENTS = {
    "max_steps": STEPS,
    "per_device_train_batch_size": BATCH,
    "learning_rate": 0.02,
    "warmup_steps": 3,
    "weight_decay": 0.1,
    "max_grad_norm": 0.5,
    "lr_scheduler_type": "linear",
    "logging_steps": 1,
    "save_steps": STEPS,
    "report_to": "none",
    "disable_tqdm": True,
    "train_sampling_strategy": "sequential",  # as in the old run
    "remove_unused_columns": False,
}
# The numbers of the old optimizer: those with weight decay first.
NUMBERS = ["embedding.weight", "dense.weight", "head.weight", "dense.bias", "norm.weight", "norm.bias", "head.bias"]
OWN = {"embedding.weight": "embedding.embedding_table", "norm.weight": "norm.gamma", "norm.bias": "norm.beta"}


class Model(nn.Cell):
    """The layers of the old run under MindSpore's names."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, SIZE)
        self.dense = nn.Dense(SIZE, SIZE)
        self.norm = nn.LayerNorm([SIZE], epsilon=1e-5)
        self.head = nn.Dense(SIZE, CLASSES)

    def construct(self, words, labels=None):
        scores = self.head(self.norm(ops.tanh(self.dense(self.embedding(words).mean(1)))))
        return scores if labels is None else (ops.cross_entropy(scores, labels.astype(mindspore.int32)), scores)


def rows():
    words = np.random.RandomState(3).randint(0, WORDS, size=(SAMPLES, 5)).astype(np.int64)
    return [{"words": row, "labels": np.int64(row.sum() % CLASSES)} for row in words]


class StopAtOnce(TrainerCallback):
    """Leaves the run as it was loaded."""

    def on_train_begin(self, args, state, control, **kwargs):
        control.should_training_stop = True


@pytest.fixture
def old(tmp_path):
    """A copy of the old run's checkpoint, in an output directory of its own."""
    target = tmp_path / "out" / f"checkpoint-{SAVED}"
    shutil.copytree(OLD / target.name, target)
    return target


def resume(path, *callbacks, model=None, **given):
    args = TrainingArguments(str(path.parent), device="cpu", **ARGUMENTS | given)
    trainer = Trainer(model or Model(), args=args, train_dataset=rows(), callbacks=list(callbacks))
    trainer.train(resume_from_checkpoint=str(path))
    return trainer


def values(model):
    tensors, _ = mindspore_weights.model_tensors(model)
    return {name: value.asnumpy() for name, value in tensors.items()}


class Tensor:
    """Stands for MindSpore's class, which the file names, with Python's own unpickler."""


def stored(name, path):
    class Unpickler(pickle.Unpickler):
        def find_class(self, module, name):
            return Tensor if name == "Tensor" else super().find_class(module, name)

    with zipfile.ZipFile(path / name) as archive, archive.open("archive/data.pkl") as file:
        return Unpickler(file).load()


def rewrite(path, data, name="optimizer.ckpt", **options):
    with zipfile.ZipFile(path / name, "w", **options) as archive:
        archive.writestr("archive/data.pkl", data if isinstance(data, bytes) else pickle.dumps(data, 2))


def test_the_run_ends_as_theirs_did(old):
    trainer = resume(old)
    expected = json.loads((OLD / "expected.json").read_text())
    losses = {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}
    assert sorted(losses) == list(range(1, STEPS + 1))
    for step in range(SAVED + 1, STEPS + 1):
        assert losses[step] == pytest.approx(expected["losses"][str(step)], abs=6e-5)  # mindnlp rounds to four digits
    found = values(trainer.model)
    for name, value in expected["weights"].items():
        np.testing.assert_allclose(found[OWN.get(name, name)], np.array(value, np.float32), rtol=0, atol=2e-6)


def test_weights_moments_and_counts_are_those_of_the_files(old):
    trainer = resume(old, StopAtOnce())
    assert trainer.state.global_step == SAVED
    weights = {OWN.get(name, name): value.tobytes() for name, value in load_file(old / "model.safetensors").items()}
    assert {name: value.tobytes() for name, value in values(trainer.model).items()} == weights
    tensors, data = mindspore_weights.optimizer_state(trainer.optimizer, trainer.model)
    states = stored("optimizer.ckpt", old)["state"]
    for number, name in enumerate(NUMBERS):
        for key in ("exp_avg", "exp_avg_sq"):
            found = tensors.pop(f"{OWN.get(name, name)}:{key}").asnumpy()
            assert found.tobytes() == states[number][key].value[0].tobytes(), (name, key)
        assert tensors.pop(f"{OWN.get(name, name)}:step") == states[number]["step"] == SAVED
    assert not tensors
    decay = {name: group["weight_decay"] for group in data["groups"] for name in group["names"]}
    assert {name for name, rate in decay.items() if rate} == {OWN.get(name, name) for name in NUMBERS[:3]}
    assert trainer.lr_scheduler.state_dict() == {"last_epoch": SAVED, "base_lrs": [0.02] * 2}


def test_the_warning_says_what_is_restored(old, caplog):
    with caplog.at_level(logging.WARNING):
        resume(old, StopAtOnce(), learning_rate=0.01, weight_decay=0.2)
    assert "written by the Trainer of mindnlp: weights, optimizer state (by the rule of: " in caplog.text
    assert "in epoch 1 (counted from 0) after step 2 of 6, which is step 8 of the whole run" in caplog.text
    assert "learning_rate was 0.02, and is kept (the arguments have 0.01)" in caplog.text
    assert "weight decay was 0.1, and is 0.2, for embedding.weight" in caplog.text


def test_it_is_listed(old):
    (entry,), _ = listing.list_checkpoints(old.parent, contents=True)
    assert (entry.writer, entry.framework, entry.state, entry.step) == ("mindnlp", "mindspore", "foreign", SAVED)


def test_tensors_of_older_releases_are_tuples():
    data = b"\x80\x02cmindspore.common.tensor\nTensor\n)\x81" + pickle.dumps((np.arange(3),), 2)[2:-1] + b"b."
    found = plain_pickle.loads(data, mindnlp_checkpoint._TENSORS)
    assert found["value"].tolist() == [0, 1, 2]


# -- what is refused


class Command:
    def __reduce__(self):
        import os

        return os.system, ("touch hacked",)


DAMAGE = {
    "hostile": lambda path, name: rewrite(path, {"state": Command()}, name),
    "hostile tensor": lambda path, name: rewrite(path, b"\x80\x02cmindspore.common.api\njit\n)\x81.", name),
    "truncated": lambda path, name: (path / name).write_bytes((path / name).read_bytes()[:-30]),
    "compressed": lambda path, name: rewrite(path, b"\x80\x02]." * 1000, name, compression=zipfile.ZIP_DEFLATED),
    "not a dict": lambda path, name: rewrite(path, [1], name),
    "no archive": lambda path, name: (path / name).write_text("{}"),
    "missing": lambda path, name: (path / name).unlink(),
}


@pytest.mark.parametrize("name", ["optimizer.ckpt", "scheduler.json"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_and_hostile_files_are_errors(damage, name, old, monkeypatch):
    monkeypatch.chdir(old.parent)
    DAMAGE[damage](old, name)
    with pytest.raises(CheckpointError, match=name):
        resume(old)
    assert not Path("hacked").exists()


def plain(state):
    return {n: {k: v.value[0] if isinstance(v, Tensor) else v for k, v in each.items()} for n, each in state.items()}


CHANGES = {
    "a moment is missing": (lambda s: s[1].pop("exp_avg"), "another optimizer, or is incomplete: parameter 1 has"),
    "another shape": (lambda s: s[1].update(exp_avg=np.zeros((4, 5), np.float32)), "does not fit this model"),
    "no tensor": (lambda s: s[1].update(exp_avg="x"), "neither a tensor nor a number"),
    "a negative count": (lambda s: s[1].update(step=-1), "neither a tensor nor a number"),
    "another number": (lambda s: s.update({99: {}}), "is not the state of an optimizer"),
    "another type": (lambda s: s[1].update(exp_avg=np.zeros((4, 4), np.int64)), "dense.weight:exp_avg"),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_state_that_does_not_fit_is_an_error(kind, old):
    change, reason = CHANGES[kind]
    data = stored("optimizer.ckpt", old)
    data["state"] = plain(data["state"])
    change(data["state"])
    rewrite(old, data)
    with pytest.raises(CheckpointError, match=reason):
        resume(old)


def test_another_optimizer_is_an_error(old):
    with pytest.raises(CheckpointError, match="parameter 0 has exp_avg, exp_avg_sq, step; this run's SGD has"):
        resume(old, optim="sgd")
    with pytest.raises(CheckpointError, match="this run's optimizer is Adagrad"):
        resume(old, optim="adagrad")


def test_weights_have_to_be_in_one_safetensors_file(old):
    (old / "model.safetensors").rename(old / "mindspore_model.ckpt")
    with pytest.raises(CheckpointError, match="save_safetensors=True, in one file"):
        resume(old)


def test_models_of_other_frameworks_cannot_resume_from_them(old):
    torch = pytest.importorskip("torch")
    args = TrainingArguments(str(old.parent), **ARGUMENTS)
    with pytest.raises(CheckpointError, match="Trainer of mindnlp on mindspore, and this is a model of torch"):
        Trainer(torch.nn.Linear(2, 2), args=args, train_dataset=rows()).train(resume_from_checkpoint=str(old))
