"""AdamW and SGD of this backend against PyTorch's."""

import mmap
from pathlib import Path

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")
torch = pytest.importorskip("torch")

from oneloop.backends.mindspore import optimizers, weights  # noqa: E402
from oneloop.backends.mindspore.optimizer_kernels import SGD, AdamW  # noqa: E402
from oneloop.errors import ArgumentError, CheckpointError  # noqa: E402
from tests.backends.kits.mindspore_kit import Kit  # noqa: E402

SHAPES = [(5, 4), (4,), (3, 5), (1,)]


def both(own, other, steps=30, dtype=np.float32, scale=0.1, **options):
    """The same weights, updated by both with the same gradients; the largest difference."""
    random = np.random.RandomState(0)
    start = [random.randn(*shape).astype(dtype) for shape in SHAPES]
    ours = [ms.Parameter(ms.Tensor(value), name=f"p{i}") for i, value in enumerate(start)]
    theirs = [torch.nn.Parameter(torch.tensor(value)) for value in start]
    decay = options.pop("weight_decay", 0.0)
    groups = [
        [{"params": each[:2], "weight_decay": decay}, {"params": each[2:], "weight_decay": 0.0}]
        for each in (ours, theirs)
    ]
    first, second = own(groups[0], **options), other(groups[1], **options)
    for step in range(steps):
        rate = options["lr"] * (1 - step / steps)
        gradients = [random.randn(*shape).astype(dtype) * scale for shape in SHAPES]
        optimizers.set_learning_rates(first, [rate, rate / 2])
        assert optimizers.learning_rates(first) == [rate, rate / 2]
        for group, value in zip(second.param_groups, (rate, rate / 2)):
            group["lr"] = value
        for p, gradient in zip(theirs, gradients):
            p.grad = torch.tensor(gradient)
        first(tuple(ms.Tensor(gradient) for gradient in gradients))
        second.step()
    return max(float(np.abs(a.asnumpy().astype(np.float64) - b.detach().numpy()).max()) for a, b in zip(ours, theirs))


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adamw(decay):
    assert both(AdamW, torch.optim.AdamW, lr=0.01, weight_decay=decay) < 1e-6
    assert both(AdamW, torch.optim.AdamW, lr=0.01, weight_decay=decay, betas=(0.8, 0.95), eps=1e-4) < 1e-6


@pytest.mark.parametrize(
    "given", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "dampening": 0.5}]
)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_sgd(given, decay):
    assert both(SGD, torch.optim.SGD, lr=0.05, weight_decay=decay, **given) < 1e-6


def test_a_parameter_without_a_gradient_is_left_out():
    ours = [ms.Parameter(ms.Tensor(np.ones(2, np.float32)), name=f"p{i}") for i in range(2)]
    optimizer = AdamW(ours, lr=0.1, weight_decay=0.5)
    optimizer((ms.Tensor(np.ones(2, np.float32)), None))
    assert ours[0].asnumpy()[0] < 0.9 and ours[1].asnumpy()[0] == 1.0
    assert optimizer.steps == [1, 0]


def test_options_that_make_no_sense():
    one = [ms.Parameter(ms.Tensor(np.ones(2, np.float32)), name="p")]
    with pytest.raises(ArgumentError, match="nesterov"):
        optimizers.build(SGD, [{"params": one}], {"lr": 0.1, "nesterov": True})
    with pytest.raises(ArgumentError, match="betas"):
        optimizers.build(AdamW, [{"params": one}], {"lr": 0.1, "betas": (1.0, 0.9)})
    with pytest.raises(ArgumentError, match="AdamW does not accept momentum"):
        optimizers.build(AdamW, [{"params": one}], {"lr": 0.1, "momentum": 0.9})


def test_the_state_of_another_optimizer_is_an_error():
    model = Kit().classifier()
    adam, sgd = AdamW(model.trainable_params(), lr=0.1), SGD(model.trainable_params(), lr=0.1, momentum=0.9)
    tensors, data = weights.optimizer_state(adam, model)
    assert "head.weight:exp_avg" in tensors and tensors["head.weight:step"] == 0
    values = {name: weights.copy_to(value, None) for name, value in tensors.items()}
    with pytest.raises(CheckpointError, match="is that of AdamW, but this run's optimizer is SGD"):
        weights.load_optimizer(sgd, model, values, data, "a test")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_another_learning_rate_in_every_step_keeps_no_memory():
    """MindSpore keeps a kernel for every plain number that it is given: 130 kB an update, for good."""
    members = [ms.Parameter(ms.Tensor(np.ones((64, 32 + i), np.float32)), name=f"w{i}") for i in range(4)]
    optimizer = AdamW(members, lr=1e-3)
    gradients = tuple(ms.Tensor(np.ones(p.shape, np.float32)) for p in members)

    def held():
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    for _ in range(20):
        optimizer(gradients)
    before = held()
    for step in range(150):
        optimizer.param_groups[0]["lr"] = 1e-3 / (step + 1)
        optimizer(gradients)
    assert held() - before < 30e6, "600 updates with the numbers themselves take 80 MB"
