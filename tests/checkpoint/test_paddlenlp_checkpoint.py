"""Runs that the Trainer of PaddleNLP or PaddleFormers began and oneloop goes on with.

The checkpoints in old_runs were written by these libraries themselves (old_runs/make_paddle.py), together with the
weights and losses that their own runs ended with.
"""

import json
import logging
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

paddle = pytest.importorskip("paddle")

from paddle import nn  # noqa: E402

from oneloop import Trainer, TrainerCallback, TrainingArguments  # noqa: E402
from oneloop.backends.paddle import weights as paddle_weights  # noqa: E402
from oneloop.checkpoint import listing, store  # noqa: E402
from oneloop.converters import paddlenlp_checkpoint, plain_pickle  # noqa: E402
from oneloop.errors import CheckpointError  # noqa: E402
from oneloop.formats.safetensors_io import read, write  # noqa: E402

OLD = Path(__file__).parent / "old_runs"
FIXTURES = sorted(str(path.parent.relative_to(OLD)) for path in OLD.glob("paddle*/*/expected.json"))
CLASSIC, UNIFIED, FLEX = "paddlenlp/classic", "paddlenlp/unified", "paddleformers/flex"
SAMPLES, BATCH, SAVED, STEPS = 12, 2, 8, 11
WORDS, SIZE, CLASSES = 7, 4, 3
FIELDS = ("moment1", "moment2", "beta1_pow_acc", "beta2_pow_acc")
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
    "train_sampling_strategy": "sequential",  # as in the old runs
    "remove_unused_columns": False,
}


class Model(nn.Layer):
    """The layers of the old runs. They are made in the order of their names, so Paddle numbers them differently."""

    transpose_weight_keys = ["dense"]

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, SIZE)
        self.dense = nn.Linear(SIZE, SIZE)
        self.norm = nn.LayerNorm(SIZE)
        self.head = nn.Linear(SIZE, CLASSES)

    def forward(self, words, labels=None):
        scores = self.head(self.norm(paddle.tanh(self.dense(self.embedding(words).mean(axis=1)))))
        return scores if labels is None else (nn.functional.cross_entropy(scores, labels), scores)


def rows():
    words = np.random.RandomState(3).randint(0, WORDS, size=(SAMPLES, 5)).astype(np.int64)
    return [{"words": row, "labels": np.int64(row.sum() % CLASSES)} for row in words]


def batch(step):
    """The samples of an update, counted from 1."""
    first = (step - 1) * BATCH % SAMPLES
    picked = rows()[first : first + BATCH]
    return {key: paddle.to_tensor(np.stack([row[key] for row in picked])) for key in picked[0]}


class StopAtOnce(TrainerCallback):
    """Leaves the run as it was loaded."""

    def on_train_begin(self, args, state, control, **kwargs):
        control.should_training_stop = True


@pytest.fixture
def copy(tmp_path):
    """A copy of an old run's checkpoint, in an output directory of its own."""

    def make(name):
        target = tmp_path / "out" / f"checkpoint-{SAVED}"
        shutil.copytree(OLD / name / target.name, target)
        return target

    return make


def resume(path, *callbacks, model=None, **given):
    args = TrainingArguments(str(path.parent), device="cpu", **ARGUMENTS | given)
    trainer = Trainer(model or Model(), args=args, train_dataset=rows(), callbacks=list(callbacks))
    trainer.train(resume_from_checkpoint=str(path))
    return trainer


def values(model):
    return {name: value.numpy() for name, value in model.state_dict().items()}


def paddle_names(state):
    """The names of the parameters in Paddle. In the old runs the head was made first."""
    layers = sorted({key.split(".")[0] for key in state})
    embedding, norm, head, dense = layers
    return {"embedding.weight": f"{embedding}.w_0"} | {
        f"{name}.{long}": f"{layer}.{short}_0"
        for name, layer in {"dense": dense, "norm": norm, "head": head}.items()
        for long, short in {"weight": "w", "bias": "b"}.items()
    }


def stored_state(path):
    """The weights and the optimizer state of a checkpoint by Paddle's and NumPy's own readers, by name in the model."""
    from safetensors.numpy import load_file

    def load(name):
        return paddle.load(str(path / name), return_numpy=True)

    weights, moments = {}, {}
    if (path / "optimizer_state").is_dir():
        state = load("optimizer_state/0_0.distcp")
        moments = {":".join(key[:-2].rsplit(".", 1)): value for key, value in state.items()}
        return load("model_state/0_0.distcp"), moments
    for file in path.glob("model*.safetensors"):
        weights |= load_file(file)
        if (path / "trainer_state.bin").is_file():  # of PaddleFormers, which transposes
            weights["dense.weight"] = np.ascontiguousarray(weights["dense.weight"].T)
    for file in path.glob("optimizer*.safetensors"):
        moments |= {key.replace("/", ":")[:-2]: value for key, value in load_file(file).items()}
    if moments:
        return weights, moments
    weights = weights or load("model_state.pdparams")
    state = load("optimizer.pdopt")
    state.pop("LR_Scheduler")
    for name, own in paddle_names(state).items():
        moments |= {f"{name}:{field}": state.pop(f"{own}_{field}_0") for field in FIELDS}
    assert not state
    return weights, moments


@pytest.mark.parametrize("name", FIXTURES)
def test_the_run_ends_as_theirs_did(name, copy):
    trainer = resume(copy(name))
    expected = json.loads((OLD / name / "expected.json").read_text())
    assert trainer.state.global_step == STEPS
    losses = {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}
    kept = 1 if name.startswith("paddlenlp") else SAVED + 1  # PaddleFormers keeps no history
    assert sorted(losses) == list(range(kept, STEPS + 1))
    for step in range(SAVED + 1, STEPS + 1):
        assert losses[step] == pytest.approx(expected["losses"][str(step)], abs=2e-6)
    for key, value in values(trainer.model).items():
        np.testing.assert_allclose(value, np.array(expected["weights"][key], np.float32), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", FIXTURES)
def test_weights_and_optimizer_state_are_those_of_the_files(name, copy):
    path = copy(name)
    weights, moments = stored_state(path)
    trainer = resume(path, StopAtOnce())
    assert trainer.state.global_step == SAVED
    assert {key: value.tobytes() for key, value in values(trainer.model).items()} == {
        key: value.tobytes() for key, value in weights.items()
    }
    tensors, _ = paddle_weights.optimizer_state(trainer.optimizer, trainer.model)
    assert {key: value.numpy().tobytes() for key, value in tensors.items()} == {
        key: value.tobytes() for key, value in moments.items()
    }
    assert len(moments) == 4 * len(weights)


@pytest.mark.parametrize("name", FIXTURES)
def test_the_run_goes_on_as_paddle_itself_would(name, copy):
    """The same bytes as updates that Paddle's optimizer makes with the files' state."""
    path = copy(name)
    weights, moments = stored_state(path)
    model = Model()
    model.set_state_dict(weights)
    own = dict(model.named_parameters())
    decayed = {p.name for key, p in own.items() if not key.endswith("bias") and "norm" not in key}
    optimizer = paddle.optimizer.AdamW(
        0.02, parameters=list(own.values()), weight_decay=0.1, apply_decay_param_fun=decayed.__contains__, epsilon=1e-8
    )
    optimizer.set_state_dict({f"{own[key.split(':')[0]].name}_{key.split(':')[1]}_0": v for key, v in moments.items()})
    for step in range(SAVED + 1, STEPS + 1):
        optimizer.set_lr(0.02 * (STEPS - (step - 1)) / (STEPS - 3))
        loss, _ = model(**batch(step))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
    found = values(resume(path, max_grad_norm=0.0).model)  # clipping sums in another order
    for key, value in values(model).items():
        assert found[key].tobytes() == value.tobytes(), key


def test_the_warning_says_what_is_restored(copy, caplog):
    with caplog.at_level(logging.WARNING):
        resume(copy(CLASSIC), StopAtOnce())
    (text,) = [r.getMessage() for r in caplog.records if "written by the Trainer of" in r.getMessage()]
    assert "the Trainer of paddlenlp: weights, optimizer state (by the rule of: the names in the file)" in text
    assert "in epoch 1 (counted from 0) after step 2 of 6, which is step 8 of the whole run" in text
    assert "Different from the old run" not in text


def test_another_learning_rate_is_noted(copy, caplog):
    with caplog.at_level(logging.WARNING):
        trainer = resume(copy(CLASSIC), StopAtOnce(), learning_rate=0.01)
    assert trainer.lr_scheduler.get_last_lr()[0] == pytest.approx(0.00375)
    assert "the learning rate at this step was 0.0075, and is 0.00375 by the arguments of this run" in caplog.text


def test_their_checkpoints_are_kept_and_listed(copy):
    path = copy(UNIFIED)
    resume(path, save_steps=1, save_total_limit=1, max_steps=SAVED + 1)
    assert paddlenlp_checkpoint.wrote(path) and not (path / store.MANIFEST).exists()
    found, _ = listing.list_checkpoints(path.parent, contents=True)
    assert [(e.name, e.writer, e.framework, e.state) for e in found] == [
        ("checkpoint-8", "paddlenlp", "paddle", "foreign"),
        ("checkpoint-9", "oneloop", "paddle", "whole"),
    ]
    resume(path, save_steps=1, max_steps=SAVED + 1)
    trainer = resume(path.parent / "checkpoint-9")
    assert trainer.state.global_step == STEPS


def test_the_newest_one_in_a_directory_is_found(copy):
    path = copy(CLASSIC)
    args = TrainingArguments(str(path.parent), device="cpu", **ARGUMENTS)
    trainer = Trainer(Model(), args=args, train_dataset=rows())
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.log_history[-1]["step"] == STEPS and trainer.state.log_history[0]["step"] == 1


def test_without_names_the_order_of_the_parameters_is_used(copy):
    """As when the weights are in safetensors files and the optimizer state is not."""
    path = copy(CLASSIC)
    weights, moments = stored_state(path)
    paddle.save(dict(weights), str(path / "model_state.pdparams"))
    assert (
        paddlenlp_checkpoint.optimizer(path, {k: v.shape for k, v in weights.items()})[0]
        == "the order of the parameters"
    )
    trainer = resume(path, StopAtOnce())
    tensors, _ = paddle_weights.optimizer_state(trainer.optimizer, trainer.model)
    assert {key: value.numpy().tobytes() for key, value in tensors.items()} == {
        key: value.tobytes() for key, value in moments.items()
    }
    with pytest.raises(CheckpointError, match="Their order and their shapes are not those of the parameters"):
        paddlenlp_checkpoint.optimizer(path, {"head.weight": (4, 3)})


def test_master_weights_and_half_precision(tmp_path):
    """The names of a run with fp16 or bf16 at O2, whose optimizer has float32 copies of the weights."""
    path = tmp_path / "checkpoint-1"
    path.mkdir()
    half = np.array([1, 2], np.uint16)  # how paddle.save stores bfloat16
    table = {"a.weight": "linear_0.w_0"}
    pickle.dump({"a.weight": half, plain_name(): table}, (path / "model_state.pdparams").open("wb"), 4)
    state = {f"linear_0.w_0_fp32_master_0_{field}_0": np.ones(2, np.float32) for field in ("moment1", "moment2")}
    state |= {"master_weights": {"linear_0.w_0": ("linear_0.w_0_fp32_master_0", np.array([3, 4], np.float32))}}
    pickle.dump(state, (path / "optimizer.pdopt").open("wb"), 4)
    assert paddlenlp_checkpoint.weights(path)["a.weight"].dtype == "BF16"
    _, found = paddlenlp_checkpoint.optimizer(path, {"a.weight": (2,)})
    assert set(found) == {"a.weight:moment1", "a.weight:moment2", "a.weight:master_weight"}
    assert found["a.weight:master_weight"].array().tolist() == [3, 4]
    write(path / "optimizer.safetensors", {"a.weight/moment1_0": found["a.weight:moment1"]})
    write(path / "master_weights.safetensors", {"a.weight": found["a.weight:master_weight"]})
    _, found = paddlenlp_checkpoint.optimizer(path, {"a.weight": (2,)})
    assert set(found) == {"a.weight:moment1", "a.weight:master_weight"}


def plain_name():
    return paddlenlp_checkpoint.NAMES


def test_the_loss_scaler_is_read(tmp_path):
    scaler = paddle.amp.GradScaler(init_loss_scaling=512.0)
    state = scaler.state_dict()
    if not state:  # Paddle disables it on a CPU
        state = {"scale": np.array([512.0], np.float32), "incr_ratio": 2.0, "incr_count": 3, "decr_count": 0}
    paddle.save(state, str(tmp_path / "scaler.pdparams"))
    found = paddlenlp_checkpoint.scaler(tmp_path)
    assert found["scale"] == [512.0] and found["incr_ratio"] == 2.0
    assert paddlenlp_checkpoint.scaler(tmp_path / "nothing") is None


# -- what is refused


class Command:
    def __reduce__(self):
        import os

        return os.system, ("touch hacked",)


def changed_state(path, change):
    """optimizer.pdopt after a change of its contents."""
    state = pickle.loads((path / "optimizer.pdopt").read_bytes())
    change(state)
    (path / "optimizer.pdopt").write_bytes(pickle.dumps(state, 4))


@pytest.mark.parametrize("name", ["model_state.pdparams", "optimizer.pdopt", "scheduler.pdparams", "scaler.pdparams"])
@pytest.mark.parametrize("damage", ["hostile", "truncated", "empty", "nonsense"])
def test_damaged_and_hostile_pickles_are_errors(name, damage, copy, monkeypatch):
    path = copy(CLASSIC)
    monkeypatch.chdir(path.parent)
    whole = (path / name).read_bytes() if (path / name).exists() else pickle.dumps({"scale": np.ones(1)})
    data = {
        "hostile": pickle.dumps({"a": Command()}),
        "truncated": whole[: len(whole) // 2],
        "empty": b"",
        "nonsense": b"x" * 50,
    }
    (path / name).write_bytes(data[damage])
    with pytest.raises(CheckpointError, match=f"{name}"):
        resume(path)
    assert not Path("hacked").exists()


@pytest.mark.parametrize("name", ["trainer_state.bin", "model_state/0_0.distcp", "optimizer_state/0_0.distcp"])
@pytest.mark.parametrize("damage", ["hostile", "truncated", "another state"])
def test_damaged_and_hostile_files_of_paddleformers_are_errors(name, damage, copy, monkeypatch):
    path = copy(FLEX)
    monkeypatch.chdir(path.parent)
    whole = (path / name).read_bytes()
    data = {"hostile": pickle.dumps([Command()]), "truncated": whole[:-9], "another state": pickle.dumps([1])}
    (path / name).write_bytes(data[damage])
    with pytest.raises(CheckpointError, match=name.split("/")[-1]):
        resume(path)
    assert not Path("hacked").exists()


def test_what_is_missing_in_a_flex_checkpoint_is_named(copy):
    path = copy(FLEX)
    state = plain_pickle.read(path / "optimizer_state" / "0_0.distcp")
    state.pop("dense.weight.moment1_0")
    (path / "optimizer_state" / "0_0.distcp").write_bytes(pickle.dumps(state, 4))
    with pytest.raises(CheckpointError, match="0_0.distcp is incomplete: dense.weight.moment1_0 are missing"):
        resume(path)
    shutil.copy(path / "model_state" / "0_0.distcp", path / "model_state" / "1_0.distcp")
    with pytest.raises(CheckpointError, match="model_state has the parts of 2 processes"):
        resume(path)
    shutil.rmtree(path / "model_state")
    with pytest.raises(CheckpointError, match="model_state/0_0.distcp is missing"):
        resume(path)


MOMENT = "linear_1.w_0_moment1_0"
CHANGES = {
    "a moment is missing": (lambda s: s.pop(MOMENT), "is incomplete: linear_1.w_0_moment1_0 are missing"),
    "a moment is missing everywhere": (
        lambda s: (s.pop(MOMENT), s[paddlenlp_checkpoint.NAMES].pop(MOMENT)),
        "has moment1 too",
    ),
    "another shape": (
        lambda s: s.update({MOMENT: np.zeros((4, 5), np.float32)}),
        r"dense.weight:moment1 is .*\(4, 5\)",
    ),
    "another type": (lambda s: s.update({MOMENT: np.zeros((4, 4), np.int64)}), "dense.weight:moment1"),
    "no tensor": (lambda s: s.update({MOMENT: "x"}), "is not a tensor"),
    "another field": (
        lambda s: s.update({"linear_1.w_0_sum_0": np.zeros(4)}),
        "no state of an optimizer that can be resumed",
    ),
    "another parameter": (lambda s: s.update({"linear_9.w_0_moment1_0": np.zeros(4)}), "not among the weights"),
    "another optimizer": (
        lambda s: s.update({"linear_1.w_0_velocity_0": np.zeros((4, 4), np.float32)}),
        "it has velocity, which this run's AdamW does not have",
    ),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_state_that_does_not_fit_is_an_error(kind, copy):
    path, (change, reason) = copy(CLASSIC), CHANGES[kind]
    changed_state(path, change)
    with pytest.raises(CheckpointError, match=reason):
        resume(path)


def test_a_unified_checkpoint_has_what_its_index_names(copy):
    path = copy(UNIFIED)
    (file,) = path.glob("optimizer-*.safetensors")
    tensors = read(file)
    tensors.pop("dense.weight/moment1_0")
    write(file, tensors)
    with pytest.raises(CheckpointError, match="do not have the same tensors: dense.weight/moment1_0"):
        resume(path)
    file.unlink()
    with pytest.raises(CheckpointError, match=f"{file.name} is missing"):
        resume(path)


@pytest.mark.parametrize("name, reason", [
    ("optimizer.pdopt", r"optimizer.pdopt is missing \(was it saved with ignore_save_lr_and_optim=True\?\)"),
    ("model_state.pdparams", "model_state.pdparams and model.safetensors are missing"),
    ("scheduler.pdparams", "scheduler.pdparams is missing"),
])  # fmt: skip
def test_a_missing_file_is_named(name, reason, copy):
    path = copy(CLASSIC)
    (path / name).unlink()
    with pytest.raises(CheckpointError, match=reason):
        resume(path)


def test_parts_of_sharded_runs_are_named(copy):
    path = copy(CLASSIC)
    (path / "optimizer.pdopt").rename(path / "optimizer.shard00.pdopt")
    with pytest.raises(CheckpointError, match="write one more checkpoint with unified_checkpoint=True"):
        resume(path)


def test_another_model_is_an_error(copy):
    model = Model()
    model.head = nn.Linear(SIZE, CLASSES + 1)
    with pytest.raises(CheckpointError, match="head.weight"):
        resume(copy(CLASSIC), model=model)


def test_models_of_other_frameworks_cannot_resume_from_them(copy):
    torch = pytest.importorskip("torch")
    path = copy(CLASSIC)
    args = TrainingArguments(str(path.parent), **ARGUMENTS)
    with pytest.raises(CheckpointError, match="Trainer of paddlenlp on paddle, and this is a model of torch"):
        Trainer(torch.nn.Linear(2, 2), args=args, train_dataset=rows()).train(resume_from_checkpoint=str(path))


def test_a_schedule_without_a_step_is_an_error(copy):
    path = copy(CLASSIC)
    (path / "scheduler.pdparams").write_bytes(pickle.dumps({"last_epoch": -1, "last_lr": 0.1}))
    with pytest.raises(CheckpointError, match="has no last_epoch"):
        resume(path)
    assert plain_pickle.read(path / "scheduler.pdparams")["last_lr"] == 0.1
