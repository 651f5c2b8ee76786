"""A backend that oneloop knows nothing of: tests/backends/toy trains, evaluates, is killed, resumes and refuses."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from oneloop import Trainer, TrainerCallback, TrainingArguments
from oneloop.arguments import support
from oneloop.backends import base, loading, registry
from oneloop.data.collators import DefaultDataCollator
from oneloop.errors import ArgumentError, UnsupportedError
from tests.backends.toy import data
from tests.backends.toy.framework import SGD, Linear, Tensor
from tests.backends.toy.spec import SPEC

ROOT = Path(__file__).parents[2]


@pytest.fixture
def toy():
    registry.register(SPEC)
    yield SPEC
    registry.unregister("toy")


@pytest.fixture
def make(toy, tmp_path):
    def make(model=None, trainer_options=None, **given):
        options = {"optim": "sgd", "learning_rate": 0.02, "report_to": "none", "disable_tqdm": True, "max_steps": 4}
        args = TrainingArguments(str(tmp_path / "out"), **options | {"save_strategy": "no"} | given)
        collator = DefaultDataCollator(return_tensors="toy")
        return Trainer(
            model or Linear(data.WIDTH),
            args,
            data_collator=collator,
            train_dataset=data.rows(24, 1),
            eval_dataset=data.rows(8, 2),
            **trainer_options or {},
        )

    return make


def child(*words, extra_path="", **variables):
    path = os.pathsep.join(filter(None, [extra_path, str(ROOT)]))
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, env=os.environ | {"PYTHONPATH": path} | variables, capture_output=True, text=True)


def test_it_is_found_from_the_model_and_is_gone_again(toy):
    assert loading.name_of(Linear(2)) == "toy"
    assert loading.of_model(Linear(2)).NAME == loading.of_optimizer(SGD([], 0.1)).NAME == "toy"
    assert "toy" in registry.names() and "toy" not in registry.released()
    registry.unregister("toy")
    assert loading.name_of(Linear(2)) is None
    with pytest.raises(UnsupportedError, match="unknown backend 'toy'; oneloop has torch, paddle, mindspore"):
        loading.load("toy")


def test_it_has_every_name_of_the_protocol(toy):
    backend = loading.load("toy")
    for name, protocol in base.MODULES.items():
        module = getattr(backend, name)
        if module is not None:
            assert [each for each in base.names_of(protocol) if not hasattr(module, each)] == []
    assert [name for name in base.MODULES if getattr(backend, name) is None] == list(base.OPTIONAL)


def test_it_learns_evaluates_and_predicts(make):
    trainer = make(max_steps=-1, num_train_epochs=100, per_device_train_batch_size=4, max_grad_norm=0.0)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before / 100
    predicted = trainer.predict(data.rows(8, 2))
    assert predicted.predictions.shape == (8,)
    assert np.abs(predicted.predictions - predicted.label_ids).max() < 0.5


def test_accumulation_is_the_undivided_batch(make):
    """And the framework's own stream is where it would be: the noise of two halves is that of the whole."""
    whole = make(per_device_train_batch_size=6)
    whole.train()
    halves = make(per_device_train_batch_size=3, gradient_accumulation_steps=2)
    halves.train()
    for name, p in whole.model.parameters().items():
        np.testing.assert_allclose(halves.model.parameters()[name].array, p.array, rtol=1e-6)


def test_callbacks_are_called(make):
    events = []

    class Listens(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, optimizer=None, **kwargs):
            events.append((state.global_step, type(model), type(optimizer)))
            control.should_training_stop = state.global_step == 3

        def on_evaluate(self, args, state, control, metrics=None, **kwargs):
            events.append(("evaluated", "eval_loss" in metrics))

    make(trainer_options={"callbacks": [Listens()]}, eval_strategy="steps", eval_steps=2).train()
    steps = [(step, Linear, SGD) for step in (1, 2, 3)]
    assert events == [*steps[:2], ("evaluated", True), steps[2]]


def test_an_argument_that_it_refuses(make):
    with pytest.raises(UnsupportedError) as caught:
        make(bf16=True)
    assert str(caught.value) == (
        "bf16=True cannot be used on toy with the device cpu: the toy computes in float32. Instead: leave it out."
    )
    with pytest.raises(UnsupportedError, match=r"optim='adamw_torch' cannot be used on toy.*Instead: optim=\"sgd\""):
        make(optim="adamw_torch")
    with pytest.raises(UnsupportedError, match="deepspeed=.* cannot be used on toy.*DeepSpeed supports torch only"):
        make(deepspeed={"zero_optimization": {"stage": 1}})
    assert support.find_unsupported("bf16", "toy") and not support.find_unsupported("bf16", "torch")


def test_several_processes_are_refused(toy, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    args = TrainingArguments("out", optim="sgd", report_to="none")
    with pytest.raises(UnsupportedError, match="2 processes were launched, but on toy"):
        args.check_backend("toy", "cpu")
    args.bind("toy")
    with pytest.raises(UnsupportedError, match="2 processes were launched, and toy runs on one alone"):
        _ = args.processes


def test_collators_make_its_tensors(toy):
    batch = DefaultDataCollator(return_tensors="toy")(data.rows(3, 1))
    assert {type(column) for column in batch.values()} == {Tensor} and batch["x"].shape == (3, data.WIDTH)
    stacked = DefaultDataCollator(return_tensors="np")([{"x": Tensor(np.ones(2))}, {"x": Tensor(np.zeros(2))}])
    assert type(stacked["x"]) is np.ndarray and stacked["x"].tolist() == [[1, 1], [0, 0]]
    with pytest.raises(ArgumentError, match=r"'ms' \(MindSpore\), 'toy' \(Toy\), or None"):
        DefaultDataCollator(return_tensors="tf")(data.rows(3, 1))


# -- killed and resumed


def contents(folder):
    """The last checkpoint's tensors, which include the random streams, as bytes, and what was logged."""
    files = sorted((Path(folder) / "checkpoint-15").glob("*.safetensors"))
    return {file.name: file.read_bytes() for file in files}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    done = child("-m", "tests.backends.toy.job", folder)
    assert done.returncode == 0, done.stderr
    found = contents(folder)
    assert len(found) >= 2
    return found


@pytest.mark.parametrize("write", [1, 8, 14])
def test_a_run_that_was_killed_resumes_to_the_same_bytes(write, whole, tmp_path):
    """Killed with half of a checkpoint's file on the disk."""
    killed = child("-m", "tests.backends.toy.job", tmp_path, KILL_AT=str(write))
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "checkpoint-15").exists()
    done = child("-m", "tests.backends.toy.job", tmp_path, "latest")
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path) == whole
    resumed = (tmp_path / "run.jsonl").read_text().count('"resumed"')
    assert resumed == (write > 1), "with a checkpoint to resume from it does not start anew"


# -- as a package of its own


def test_a_package_brings_it_by_an_entry_point(tmp_path):
    installed = tmp_path / "oneloop_toy-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: oneloop-toy\nVersion: 1.0\n")
    points = ("toy = tests.backends.toy.spec:SPEC", "broken = tests.backends.toy.nothing:SPEC", "odd = sys:path")
    (installed / "entry_points.txt").write_text("[oneloop.backends]\n" + "\n".join(points) + "\n")
    done = child(
        "-c",
        "from oneloop.backends import loading, registry\n"
        "from tests.backends.toy.framework import Linear\n"
        "print(loading.of_model(Linear(2)).NAME, registry.names(), loading.guess())",
        extra_path=str(tmp_path),
    )
    assert done.stdout.strip() == "toy ('torch', 'paddle', 'mindspore', 'toy') toy", done.stderr
    assert "Cannot load the backend 'broken' (tests.backends.toy.nothing:SPEC)" in done.stderr
    assert "Skipping the backend 'odd' (sys:path)" in done.stderr


def test_a_name_that_oneloop_has_cannot_be_taken():
    with pytest.raises(ValueError, match="oneloop has a built-in backend of this name"):
        registry.register(registry.get("torch"))
