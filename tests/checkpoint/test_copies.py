"""What a save copies, it copies before code of the user runs again: that code may change anything, by any way."""

import threading
import time
from importlib import import_module

import numpy as np
import pytest

from oneloop import Trainer, TrainerCallback
from oneloop.checkpoint import capture
from oneloop.formats.safetensors_io import from_numpy
from tests.backends.support import rows, same_bytes
from tests.checkpoint.job import contents
from tests.internals import backend_of

SAVED = 2  # the step of the checkpoint; the state is changed right after it


def moments(optimizer, framework):
    """The first moments, as the framework keeps them."""
    if framework == "mindspore":
        return list(optimizer.exp_avg)
    if framework == "paddle":
        return list(optimizer._accumulators["moment1"].values())
    return [state["exp_avg"] for state in optimizer.state.values()]


def halve(tensor, framework):
    """Through memory that is shared with the tensor, which knows nothing of it."""
    if framework == "mindspore":
        tensor.asnumpy()[...] *= 0.5
    elif framework == "paddle":
        tensor.detach().scale_(0.5)
    elif tensor.ndim > 1:
        tensor.data.mul_(0.5)
    else:
        tensor.detach().cpu().numpy()[...] *= 0.5


class Rows:
    """Samples that tell somebody when they are read."""

    def __init__(self, told):
        self.rows, self.told = rows(12), told

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        self.told("dataset")
        return self.rows[index]


class Halving(Trainer):
    """Its code in one place, of those that run between two updates, halves weights and moments after the save."""

    place = None
    has_halved = False

    def reached(self, place):
        if place == self.place and self.state.global_step == SAVED and not self.has_halved:
            self.has_halved = True
            framework = backend_of(self).NAME
            weights = self.model.trainable_params() if framework == "mindspore" else self.model.parameters()
            if place == "compute_loss_func":  # the forward pass has read them, and the backward pass needs them
                weights = ()
            for tensor in (*moments(self.optimizer, framework), *weights):
                halve(tensor, framework)

    def get_batch_samples(self, *given):
        self.reached("get_batch_samples")
        return super().get_batch_samples(*given)

    def _get_train_sampler(self, *given):
        return Sampler(self)

    def training_step(self, *given, **named):
        self.reached("training_step")
        return super().training_step(*given, **named)

    def compute_loss(self, *given, **named):
        self.reached("compute_loss")
        return super().compute_loss(*given, **named)


class Told(TrainerCallback):
    def __init__(self, told):
        self.told = told

    def on_step_begin(self, args, state, control, **kwargs):
        self.told("callback")


class Sampler:
    def __init__(self, trainer):
        self.trainer = trainer

    def __len__(self):
        return 12

    def __iter__(self):
        for index in range(12):
            self.trainer.reached("sampler")
            yield index


def build(backend, arguments, output, place, **more):
    """A Trainer with code of the user in all these places; that of one of them changes the moments."""
    trainer = None

    def told(where):
        if trainer is not None:
            trainer.reached(where)

    def loss_func(outputs, labels, num_items_in_batch=None):
        told("compute_loss_func")
        return backend.cross_entropy(outputs["logits"] if isinstance(outputs, dict) else outputs, labels)

    def collate(samples):
        told("collator")
        return {
            "x": backend.tensor(np.stack([sample["x"] for sample in samples])),
            "labels": backend.tensor(np.array([sample["labels"] for sample in samples], np.int64)),
        }

    options = {"max_steps": 3, "save_strategy": "steps", "save_steps": SAVED, "per_device_train_batch_size": 2} | more
    model = backend.classifier()
    if place == "hook":
        model.register_forward_pre_hook(lambda *given: told("hook"))
    trainer = Halving(
        model,
        arguments(output, seed=3, learning_rate=0.05, lr_scheduler_type="constant", **options),
        collate,
        Rows(told),
        callbacks=[Told(told)] if place == "callback" else None,
        **({"compute_loss_func": loss_func} if place == "compute_loss_func" else {}),
    )
    trainer.place = place
    return trainer


@pytest.fixture
def slow_threads(backend, monkeypatch):
    """Copies that a thread makes take so long that training would overtake them; small ones are made by threads too."""
    weights = import_module(f"oneloop.backends.{backend.name}.weights")
    copy_to, threads = weights.copy_to, set()

    def slowly(tensor, buffer):
        if threading.current_thread() is not threading.main_thread():
            threads.add(threading.get_ident())
            time.sleep(0.005)
        return copy_to(tensor, buffer)

    monkeypatch.setattr(weights, "copy_to", slowly)
    monkeypatch.setattr(capture, "_cores", lambda: 2)
    monkeypatch.setattr(capture.Buffers, "WORTH_THREADS", 0)
    return threads


def saved(output):
    """What the checkpoint has, without what tells how the run went on and where it is."""
    found = contents(output / f"checkpoint-{SAVED}")
    return found | dict.fromkeys(("run.json", "trainer_state.json"))


@pytest.mark.once_on("mindspore", "paddle")
@pytest.mark.parametrize(
    "place",
    [
        "dataset",
        "collator",
        "sampler",
        "get_batch_samples",
        "callback",
        "hook",
        "compute_loss_func",
        "training_step",
        "compute_loss",
    ],
)
def test_state_that_the_user_changes_right_after_a_save(backend, arguments, tmp_path, slow_threads, place):
    """The checkpoint has that of its step, and a resume from it does what the run did."""
    calm = build(backend, arguments, tmp_path / "calm", place, max_steps=SAVED, save_async=False)
    calm.train()
    assert not calm.has_halved
    trainer = build(backend, arguments, tmp_path / "run", place)
    trainer.train()
    assert trainer.has_halved
    assert bool(slow_threads) == (backend.name == "torch"), "threads share the copies where they can"
    assert saved(tmp_path / "run") == saved(tmp_path / "calm")
    resumed = build(backend, arguments, tmp_path / "resumed", place)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / f"checkpoint-{SAVED}"))
    assert resumed.has_halved
    assert same_bytes(backend.weights(trainer.model), backend.weights(resumed.model))


def test_a_copy_that_fails_in_a_thread_leaves_nothing(backend, arguments, tmp_path, slow_threads, monkeypatch):
    weights = import_module(f"oneloop.backends.{backend.name}.weights")
    copy_to, copied = weights.copy_to, []

    def failing(tensor, buffer):
        copied.append(tensor)
        if len(copied) == 3:
            raise MemoryError("no room")
        return copy_to(tensor, buffer)

    monkeypatch.setattr(weights, "copy_to", failing)
    with pytest.raises(MemoryError, match="no room"):
        build(backend, arguments, tmp_path / "run", None, max_steps=SAVED).train()
    assert [path.name for path in (tmp_path / "run").iterdir() if "checkpoint" in path.name] == []
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("oneloop")] == []


class Weights:
    """Of a backend in NumPy whose tensors of two elements threads may copy."""

    def __init__(self):
        self.by_threads, self.by_this = [], []

    raw, empty_like_host = staticmethod(from_numpy), staticmethod(np.empty_like)

    def allows_threaded_copy(self, tensor):
        return tensor.size == 2

    def copy_to(self, tensor, buffer):
        is_this = threading.current_thread() is threading.main_thread()
        (self.by_this if is_this else self.by_threads).append(tensor.size)
        if buffer is None or buffer.shape != tensor.shape:
            buffer = np.empty_like(tensor)
        np.copyto(buffer, tensor)
        return buffer


@pytest.mark.parametrize(
    ("worth", "cores", "by_threads", "by_this"),
    [(32, 2, [2, 2], [3]), (33, 2, [], [2, 3, 2]), (0, 1, [], [2, 3, 2])],
    ids=["in threads", "too small", "one core"],
)
def test_who_copies(monkeypatch, worth, cores, by_threads, by_this):
    """Whoever copies, names stay in order, and the next save copies into the same buffers."""
    monkeypatch.setattr(capture.Buffers, "WORTH_THREADS", worth)
    monkeypatch.setattr(capture, "_cores", lambda: cores)
    weights = Weights()
    buffers = capture.Buffers(weights)
    tensors = {"b": np.arange(2.0), "c": np.arange(3.0), "a": np.arange(2.0) + 5}
    first = buffers.copy(tensors)
    assert (weights.by_threads, weights.by_this) == (by_threads, by_this)
    assert list(first) == ["b", "c", "a"]
    for tensor in tensors.values():
        tensor += 1
    assert [copy.tolist() for copy in first.values()] == [[0.0, 1.0], [0.0, 1.0, 2.0], [5.0, 6.0]]
    second = buffers.copy(tensors)
    assert all(second[name] is first[name] for name in tensors)
    assert [copy.tolist() for copy in second.values()] == [[1.0, 2.0], [1.0, 2.0, 3.0], [6.0, 7.0]]


def test_tensors_of_a_device_are_copied_by_the_training_thread():
    """Its stream has the kernels that a copy must wait for."""
    torch = pytest.importorskip("torch")
    from oneloop.backends.torch.weights import allows_threaded_copy

    assert allows_threaded_copy(torch.zeros(1))
    assert not allows_threaded_copy(torch.zeros(1, device="meta"))


def test_a_save_waits_for_memory_that_is_being_found(monkeypatch):
    """Finding it writes zeros."""
    touch, threads = capture._touch, []

    def slowly(arrays):
        threads.append(threading.current_thread())
        time.sleep(0.05)
        touch(arrays)

    monkeypatch.setattr(capture, "_touch", slowly)
    monkeypatch.setattr(capture.Buffers, "WORTH_PREPARING", 1)
    buffers = capture.Buffers(Weights())
    tensor = np.full(2, np.pi)
    buffers.prepare({"a": tensor})
    copied = buffers.copy({"a": tensor})
    for thread in threads:
        thread.join()
    assert copied["a"].tolist() == [np.pi, np.pi]
