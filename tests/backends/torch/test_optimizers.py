"""The optimizers that oneloop has of its own on torch."""

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from oneloop import Trainer
from oneloop.backends.torch.adafactor import Adafactor
from oneloop.backends.torch.anyprecision import AnyPrecisionAdamW
from oneloop.errors import ArgumentError
from tests.backends.kits.torch_kit import Kit
from tests.backends.support import rows, same_bytes

KIT = Kit()
SHAPES = [(5, 4), (7,), (2, 3, 4), ()]


def course(optimizer, steps=12, dtype=torch.float32, **options):
    """Parameters of many shapes after some steps along random gradients, all of which bfloat16 can hold."""
    made = torch.Generator().manual_seed(3)

    def numbers(shape):
        return torch.randn(shape, generator=made).bfloat16().to(dtype)

    parameters = [torch.nn.Parameter(numbers(shape)) for shape in SHAPES]
    used = optimizer(parameters, **options)
    for _ in range(steps):
        for p in parameters:
            p.grad = numbers(p.shape) * 4
        used.step()
    return [p.detach().float().numpy() for p in parameters]


@pytest.mark.parametrize(
    "options",
    [{}, {"weight_decay": 0.1}, {"beta1": 0.9}, {"scale_parameter": True}, {"clip_threshold": 0.5, "decay_rate": -0.5}],
    ids=lambda options: "-".join(options) or "defaults",
)
def test_adafactor_is_the_one_of_transformers(options):
    """Which its trainer builds with relative_step and scale_parameter off."""
    theirs = pytest.importorskip("transformers.optimization").Adafactor
    given = {"beta1": None, "scale_parameter": False, **options, "lr": 0.01}
    ours = course(Adafactor, **options, lr=0.01)
    for mine, other in zip(ours, course(theirs, relative_step=False, **given), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-7)


def test_a_step_of_adafactor_is_as_long_as_the_learning_rate():
    p = torch.nn.Parameter(torch.full((4, 4), 0.01))
    optimizer = Adafactor([p], lr=0.001)
    p.grad = torch.ones(4, 4)
    optimizer.step()
    np.testing.assert_allclose(p.detach().numpy(), 0.009, rtol=1e-5)


@pytest.mark.parametrize("options", ["decay_rate=0.5", "beta1=1.0", "clip_threshold=0"])
def test_options_of_adafactor_that_mean_nothing(arguments, options):
    with pytest.raises(ArgumentError, match=options.partition("=")[0]):
        Trainer(KIT.classifier(), arguments(optim="adafactor", optim_args=options)).create_optimizer()


def test_anyprecision_in_float32_is_adamw():
    whole = {"momentum_dtype": torch.float32, "variance_dtype": torch.float32}
    given = {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1}
    for mine, other in zip(
        course(AnyPrecisionAdamW, **whole, **given), course(torch.optim.AdamW, **given), strict=True
    ):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-7)


def test_kahan_summation_keeps_what_bfloat16_would_lose():
    """200 steps of 1e-4 down from 1, where the next number of bfloat16 is 4e-3 away."""
    found = []
    for summation in (False, True):
        p = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
        optimizer = AnyPrecisionAdamW([p], lr=1e-4, use_kahan_summation=summation)
        for _ in range(200):
            p.grad = torch.ones_like(p)
            optimizer.step()
        found.append(p.detach().float().tolist())
    assert found[0] == [1.0] * 3
    assert all(abs(value - 0.98) < 4e-3 for value in found[1])


@pytest.mark.parametrize(
    "options",
    [
        {"optim": "adafactor", "optim_args": "beta1=0.9"},
        {"optim": "adamw_anyprecision", "optim_args": "use_kahan_summation=True,momentum_dtype=bfloat16"},
    ],
    ids=lambda options: options["optim"],
)
def test_they_resume_to_the_bit(arguments, options):
    def run(steps, **more):
        model = KIT.classifier(dropout=0.2)
        given = options | {"max_steps": 8, "save_steps": 4, "weight_decay": 0.01, "learning_rate": 0.01} | more
        args = arguments(save_strategy="steps", **given)
        Trainer(model, args, train_dataset=rows(32)).train(resume_from_checkpoint=steps)
        return KIT.weights(model)

    whole = run(None)
    assert same_bytes(whole, run(f"{arguments().output_dir}/checkpoint-4"))


def test_an_option_that_a_checkpoint_cannot_store_is_named_once(arguments, caplog):
    """A function is the same in a new optimizer, and an empty dict has nothing to lose."""

    class Scheduled(torch.optim.SGD):
        def __init__(self, parameters, lr):
            super().__init__(parameters, lr=lr)
            for group in self.param_groups:
                group |= {"factor": range(3), "closure": len, "seen": {}, "betas": (0.9, 0.99)}

    args = arguments(max_steps=2, save_strategy="steps", save_steps=1)
    Trainer(KIT.classifier(), args, train_dataset=rows(), optimizer_cls_and_kwargs=(Scheduled, {"lr": 0.1})).train()
    told = [record.getMessage() for record in caplog.records if "parameter group" in record.getMessage()]
    assert len(told) == 1 and told[0].startswith("The option 'factor' in a parameter group of Scheduled is a range")
