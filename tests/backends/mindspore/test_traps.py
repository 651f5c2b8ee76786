"""What goes wrong in silence with MindSpore, and must not here."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mindspore")

import mindspore as ms
from mindspore import nn, ops
from mindspore.experimental import optim

from oneloop import Trainer, TrainerCallback
from oneloop.backends.mindspore import bootstrap, dropout, randomness, tensors, weights
from oneloop.errors import ModelError, UnsupportedError
from tests.backends.kits.mindspore_kit import Kit
from tests.backends.support import names, rows, same_bytes

ROOT = Path(__file__).resolve().parents[3]
RUN = {"learning_rate": 0.1, "per_device_train_batch_size": 4, "max_steps": 6, "logging_steps": 1}
kit = Kit()


def losses(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


# -- an optimizer that goes on with stale tensors


VALUES = {"weight": np.array([[3.0, 4.0]], np.float32), "bias": np.array([5.0], np.float32)}


def moved_after(load, make):
    """How far each weight moves in the step after a load. A layer with one parameter alone would not show the trap."""
    cell = nn.Dense(2, 1)
    optimizer = make(cell.trainable_params(), 0.5)
    gradients = tuple(ops.ones_like(p) for p in cell.trainable_params())
    optimizer(gradients)
    load(cell)
    assert all((p.asnumpy() == VALUES[name]).all() for name, p in cell.parameters_and_names())
    optimizer(gradients)
    return [float(np.abs(p.asnumpy() - VALUES[name]).min()) for name, p in cell.parameters_and_names()]


def by_set_data(cell):
    for name, p in cell.parameters_and_names():
        p.set_data(ms.Tensor(VALUES[name]))


def by_load_param_into_net(cell):
    ms.load_param_into_net(cell, {name: ms.Parameter(ms.Tensor(value), name=name) for name, value in VALUES.items()})


STALE = pytest.mark.parametrize("make", [optim.AdamW, optim.SGD, nn.Adam], ids=["AdamW", "SGD", "nn.Adam"])


@STALE
def test_weights_are_loaded_into_the_memory_that_an_optimizer_knows(make):
    """MindSpore's optimizers compile their step for the tensors of the first one."""
    moved = moved_after(lambda cell: weights.load_model(cell, dict(VALUES), {}, "a test"), make)
    assert all(distance > 0.1 for distance in moved), "the update is seen"


@STALE
@pytest.mark.parametrize("load", [by_set_data, by_load_param_into_net])
def test_the_trap_is_there(load, make):
    """When this fails, MindSpore has mended it: docs/mindspore.md can say so, and this test can go."""
    assert moved_after(load, make) == [0.0, 0.0]


def test_the_best_model_is_loaded_and_training_can_go_on(arguments, tmp_path):
    args = arguments(
        save_strategy="steps", save_steps=2, eval_strategy="steps", eval_steps=2, load_best_model_at_end=True,
        lr_scheduler_type="constant", **RUN,
    )  # fmt: skip
    model = kit.classifier()
    optimizer = optim.AdamW(model.trainable_params(), lr=0.1)
    trainer = Trainer(model, args, train_dataset=rows(16), eval_dataset=rows(8, 1), optimizers=(optimizer, None))
    trainer.train()
    loaded = kit.weights(model)
    trainer.train()
    assert not same_bytes(loaded, kit.weights(model))


# -- dropout


def test_masks_of_dropout_are_part_of_the_state(arguments, tmp_path):
    layer = nn.Dropout(p=0.5)
    layer.set_train(True)
    dropout.install(layer)
    ones = ms.Tensor(np.ones((4, 50), np.float32))
    layer(ones)
    state = randomness.get_state()
    first, second = layer(ones).asnumpy().copy(), layer(ones).asnumpy().copy()
    randomness.set_state(state)
    assert (layer(ones).asnumpy() == first).all() and not (first == second).all()
    assert set(np.unique(first)) == {0.0, 2.0} and 60 < (first == 0).sum() < 140


@pytest.mark.parametrize("layer", [nn.Dropout1d, nn.Dropout2d, nn.Dropout3d])
def test_whole_channels_are_dropped(layer):
    axes = {nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}[layer]
    cell = nn.SequentialCell(layer(p=0.5))
    cell.set_train(True)
    dropout.install(cell)
    dropout.seed(3)
    x = ms.Tensor(np.ones((8, 16, *[2] * axes), np.float32))
    out = cell(x).asnumpy().reshape(8 * 16, -1)
    assert (out == out[:, :1]).all() and set(np.unique(out)) == {0.0, 2.0}
    cell.set_train(False)
    assert (cell(x).asnumpy() == 1).all()


def test_functions_that_draw_resume_too():
    """ops.dropout and its like count their calls in a table of MindSpore's."""
    randomness.seed(5)
    ones = ms.Tensor(np.ones((4, 50), np.float32))
    ops.dropout(ones, p=0.5)
    state = randomness.get_state()
    first = ops.dropout(ones, p=0.5).asnumpy().copy(), ops.rand(3).asnumpy().copy()
    ops.dropout(ones, p=0.5)
    randomness.set_state(state)
    second = ops.dropout(ones, p=0.5).asnumpy(), ops.rand(3).asnumpy()
    assert all((a == b).all() for a, b in zip(first, second))


def test_seeding_leaves_numpy_alone():
    import mindspore.dataset  # noqa: F401  it has a seed of its own

    np.random.seed(1)
    expected = np.random.rand()
    np.random.seed(1)
    randomness.seed(99)
    randomness.seed_pipelines(98)
    assert np.random.rand() == expected


class Blocks(nn.Cell):
    def __init__(self, rate=0.4):
        super().__init__()
        make = [nn.SequentialCell(nn.Dense(6, 6), nn.Tanh(), nn.Dropout(p=rate)) for _ in range(3)]
        self.blocks = nn.CellList(make)
        self.head = nn.Dense(6, 3)

    def construct(self, x, labels=None):
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return {"loss": kit.cross_entropy(logits, labels), "logits": logits}


def blocks():
    from tests.backends.kits.mindspore_models import fill

    return fill(Blocks(), 0)


@pytest.mark.parametrize("how", ["argument", "by-hand"])
def test_layers_that_are_computed_again_have_the_same_masks(trained, how):
    plain, again = blocks(), blocks()
    if how == "by-hand":
        for block in again.blocks:
            block.recompute()
    first = trained(plain, rows(16), **RUN)
    second = trained(again, rows(16), gradient_checkpointing=how == "argument", **RUN)
    assert all(block._recompute_cell is not None for block in again.blocks)
    assert losses(first) == losses(second) and same_bytes(kit.weights(plain), kit.weights(again))


def test_a_model_without_blocks_cannot_be_recomputed(arguments):
    with pytest.raises(UnsupportedError, match="nn.CellList"):
        Trainer(kit.classifier(), arguments(gradient_checkpointing=True))


# -- the silent backward, and the recorder after an exception


def test_the_forward_pass_may_fail_and_the_next_step_is_whole(trained):
    calls = []

    class Fails(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            found = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            calls.append(1)
            if len(calls) in (2, 4):
                raise RuntimeError("out of memory: tried to allocate 8 GiB")
            return found

    plain, failing = kit.classifier(), kit.classifier()
    first = trained(plain, rows(24), optim="sgd", **RUN)
    second = trained(failing, rows(24), Fails, optim="sgd", auto_find_batch_size=True, **RUN)
    assert len(calls) > 8
    np.testing.assert_allclose(losses(first), losses(second), rtol=1e-5)


def test_a_loss_that_no_parameter_takes_part_in(arguments):
    class Cut(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return ops.stop_gradient(super().compute_loss(model, inputs))

    with pytest.raises(ModelError, match="cannot be differentiated: it is a Tensor"):
        Cut(kit.classifier(), arguments(**RUN), train_dataset=rows(8)).train()


# -- memory that asnumpy shares


def test_arrays_are_copies():
    p = ms.Parameter(ms.Tensor(np.zeros(3, np.float32)))
    kept, buffer = tensors.to_numpy(p), weights.copy_to(p, None)
    ops.assign(p, ms.Tensor(np.ones(3, np.float32)))
    assert kept.tolist() == buffer.tolist() == [0, 0, 0]


def test_predictions_of_a_first_evaluation_stay_what_they_were(arguments):
    model = kit.classifier()
    trainer = Trainer(model, arguments(**RUN), train_dataset=rows(16), eval_dataset=rows(8))
    before = trainer.predict(rows(8)).predictions
    copy = before.copy()
    trainer.train()
    trainer.predict(rows(8))
    assert (before == copy).all()


# -- the environment


def run(code, cwd, **environment):
    given = {name: value for name, value in os.environ.items() if name != "GLOG_v"}
    given |= {"PYTHONPATH": str(ROOT)} | environment
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, env=given, capture_output=True, text=True)


def test_nothing_is_written_into_the_current_directory_and_nothing_is_said(tmp_path):
    """Among other things a model that the graph compiler fails at."""
    ended = run(
        "import oneloop.backends.mindspore.backend\n"
        "from tests.backends.kits.mindspore_kit import Kit\n"
        "from tests.backends.kits.mindspore_models import fill, Classifier\n"
        "from tests.backends.support import rows\n"
        "from oneloop import Trainer, TrainingArguments\n"
        "class Leaves(Classifier):\n"
        "    def construct(self, x, labels=None):\n"
        "        return super().construct(x * float(x.asnumpy().size > 0), labels)\n"
        "args = TrainingArguments('out', max_steps=2, report_to='none', disable_tqdm=True, fp16=True,\n"
        "                         torch_compile=True, save_steps=1)\n"
        "Trainer(fill(Leaves(), 0), args, train_dataset=rows(8)).train()\n",
        tmp_path,
    )
    assert ended.returncode == 0, ended.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    assert "[WARNING]" not in ended.stderr + ended.stdout, ended.stderr
    assert "mindspore.jit is not used for training" in ended.stderr


@pytest.mark.skipif("paddle" not in names(), reason="Paddle is not installed")
def test_paddle_beside_it_stays_quiet(tmp_path):
    """The variable that silences MindSpore makes Paddle tell of every operation. In this order both can be imported."""
    ended = run(
        "import oneloop.backends.mindspore.backend, paddle\n(paddle.ones([2]) * 2).mean()\n"
        "import oneloop.backends.loading as b\nb.load('mindspore')\nb.load('paddle')",
        tmp_path,
    )
    assert ended.returncode == 0, ended.stderr
    assert "mean" not in ended.stderr + ended.stdout


def test_importing_mindspore_after_paddle_is_an_error_in_words(tmp_path):
    pytest.importorskip("paddle")
    ended = run("import paddle\nimport oneloop.backends.loading as b\nb.load('mindspore')", tmp_path)
    if ended.returncode == 0:  # a release of both that get along
        return
    assert "Move `import mindspore` before `import paddle`" in ended.stderr


def test_numpy_2_is_refused_where_it_breaks():
    def breaks():
        raise SystemError("error return without exception set")

    bootstrap.check_numpy("1.26.4", breaks)
    bootstrap.check_numpy("2.4.0", lambda: None)
    with pytest.raises(UnsupportedError, match=r"does not work with NumPy 2\.4\.0.*pip install 'numpy<2'"):
        bootstrap.check_numpy("2.4.0", breaks)


def test_fp16_is_o2_and_says_so(trained, caplog):
    caplog.set_level(logging.WARNING)
    trained(kit.classifier(), rows(8), fp16=True, **RUN)
    assert "fp16_opt_level='O1': mindspore has no autocast; the closest level, O2" in caplog.text
    caplog.clear()
    trained(kit.classifier(), rows(8), fp16=True, fp16_opt_level="O2", **RUN)
    assert "fp16_opt_level" not in caplog.text


def test_norms_stay_in_float32_under_fp16(trained):
    seen = {}

    class Look(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            seen["norm"], seen["hidden"] = model.norm.fp16, model.hidden.fp16

    model = kit.classifier(norm=True)
    trained(model, rows(16), fp16=True, callbacks=[Look()], **RUN)
    assert seen == {"norm": False, "hidden": True}
    assert kit.dtypes(model) == {"float32"}


def test_what_full_determinism_cannot_promise_is_said(caplog):
    randomness._warn_about_nondeterminism.cache_clear()
    with kit.undone_determinism():
        randomness.deterministic()
        randomness.deterministic()
    assert caplog.text.count("may change the last bits") == 1


def test_the_loss_of_the_kits_is_free_of_it():
    """log_softmax gives the same bits in each of its launches; so that the exact tests of this suite can be exact."""
    random = np.random.RandomState(0)
    batches = [(random.randn(5, 3).astype(np.float32), random.randint(0, 3, 5)) for _ in range(8)]
    rounds = [
        [kit.cross_entropy(ms.Tensor(logits), ms.Tensor(labels)).asnumpy().tobytes() for logits, labels in batches]
        for _ in range(6)
    ]
    assert all(each == rounds[0] for each in rounds)
