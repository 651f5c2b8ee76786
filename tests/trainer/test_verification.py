"""verify_steps=: gradients that are computed twice, and what is said if they differ."""

import json
import random

import pytest

from oneloop import Trainer
from oneloop.backends import loading
from oneloop.errors import ArgumentError, ReplayError
from tests.backends.support import kit_module, rows, same_bytes


@pytest.fixture
def verified(backend, trained, tmp_path):
    def train(name="out", **given):
        options = {"max_steps": 4, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2} | given
        return trained(backend.classifier(dropout=0.3, norm=True), rows(32), output_dir=tmp_path / name, **options)

    return train


def test_a_deterministic_run_is_the_same_to_the_byte(backend, verified):
    plain, twice = verified("plain"), verified(verify_steps=2, logging_steps=1)
    assert same_bytes(backend.weights(plain.model), backend.weights(twice.model))


def spoil(model):
    """The second layer draws random numbers that nobody can put back."""
    dice = random.SystemRandom()
    layer = next(each for name, each in _layers(model) if name and not list(_children(each)) and _has_weight(each))
    name = "construct" if hasattr(layer, "construct") else "forward"
    before = getattr(layer, name)
    setattr(layer, name, lambda x: before(x) * (1 + 1e-3 * dice.random()))
    return next(own for own, each in _layers(model) if each is layer)


def _layers(model):
    named = getattr(model, "named_modules", None) or getattr(model, "cells_and_names", None)
    return list(named()) if named else [("", model), *model.named_sublayers()]


def _children(layer):
    return layer.children() if hasattr(layer, "children") else layer.cells()


def _has_weight(layer):
    return getattr(layer, "weight", None) is not None


def test_a_layer_with_dice_is_named(backend, arguments, tmp_path):
    model = backend.classifier()
    place, start = spoil(model), backend.weights(model)
    trainer = Trainer(model, arguments(max_steps=4, verify_steps=2), train_dataset=rows(32))
    with pytest.raises(ReplayError, match=f"step 2: .*in the output of {place} "):
        trainer.train()
    events = [json.loads(line) for line in (tmp_path / "out" / "run.jsonl").read_text().splitlines()]
    (event,) = [each for each in events if each["event"] == "replay_mismatch"]
    assert (event["step"], event["module"], event["what"], event["action"]) == (2, place, "output", "stop")
    assert trainer.state.global_step == 1, "the update was not applied"
    assert not same_bytes(backend.weights(trainer.model), start)


def test_a_warning_goes_on(arguments, caplog):
    model = kit_module("torch").Kit().classifier()
    place = spoil(model)
    Trainer(model, arguments(max_steps=3, verify_steps=1, verify_action="warn"), train_dataset=rows(32)).train()
    assert caplog.text.count(f"the output of {place} ") == 3


def test_a_backward_pass_with_dice_is_named(arguments):
    import torch

    model = kit_module("torch").Kit().classifier()
    name, layer = next((own, each) for own, each in _layers(model) if own and _has_weight(each))
    dice = random.SystemRandom()
    layer.weight.register_hook(lambda gradient: gradient * (1 + dice.random()))
    with pytest.raises(ReplayError, match=f"in the gradient of {name}.weight"):
        Trainer(model, arguments(max_steps=1, verify_steps=1), train_dataset=rows(32)).train()
    assert isinstance(layer.weight, torch.nn.Parameter)


def test_a_buffer_that_the_forward_pass_replaces_is_put_back(arguments):
    """A buffer of its own takes the place of the one before in every pass."""
    import torch

    class Counts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(len(rows(1)[0]["x"]), 3)
            self.register_buffer("passes", torch.zeros(()))

        def forward(self, x, labels):
            self.passes = self.passes + 1
            return {"loss": torch.nn.functional.cross_entropy(self.layer(x), labels % 3)}

    for given in ({"verify_steps": 1}, {"trace_steps": "0-2"}):
        model = Counts()
        Trainer(model, arguments(max_steps=3, **given), train_dataset=rows(8)).train()
        assert model.passes.item() == 3, given


@pytest.mark.parametrize("number", [0, 1])
def test_a_layer_that_only_one_of_the_passes_uses_is_named(arguments, number):
    """Its output is the same for the loss; its parameters have a gradient or none."""
    import torch

    class Sometimes(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.passes = 0
            self.layer, self.other = (torch.nn.Linear(len(rows(1)[0]["x"]), 3) for _ in range(2))

        def forward(self, x, labels):
            logits = self.layer(x)
            if self.passes == number:
                logits = logits + 0 * self.other(x)
            self.passes += 1
            return {"loss": torch.nn.functional.cross_entropy(logits, labels % 3)}

    with pytest.raises(ReplayError, match="step 1: the gradients differ"):
        Trainer(Sometimes(), arguments(max_steps=1, verify_steps=1), train_dataset=rows(8)).train()


def test_an_override_has_to_be_named(arguments):
    class Own(Trainer):
        def compute_loss(self, *args, **kwargs):
            return super().compute_loss(*args, **kwargs)

    model = kit_module("torch").Kit().classifier()
    with pytest.raises(ArgumentError, match=r"replay_overrides=\['compute_loss'\]"):
        Own(model, arguments(max_steps=1, verify_steps=1), train_dataset=rows(8)).train()
    Own(model, arguments(max_steps=1, verify_steps=1, replay_overrides="compute_loss"), train_dataset=rows(8)).train()


def test_memory_that_runs_out_after_the_first_computation_leaves_no_hooks(arguments, monkeypatch):
    """The update is computed again with smaller micro-batches, and verified once more."""
    import torch

    tracing, attached = loading.load("torch").tracing, []
    watch = tracing.watch

    def counted(*given):
        remove = watch(*given)
        attached.append(1)
        return lambda: (attached.pop(), remove())

    monkeypatch.setattr(tracing, "watch", counted)
    model, sizes = kit_module("torch").Kit().classifier(), []

    def fills(layer, args, kwargs):
        sizes.append(len(kwargs["x"]))
        if len(sizes) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")

    model.register_forward_pre_hook(fills, with_kwargs=True)
    given = {"per_device_train_batch_size": 8, "auto_find_batch_size": True, "verify_steps": 1, "max_steps": 1}
    Trainer(model, arguments(**given), train_dataset=rows(8)).train()
    assert sizes == [8, 8, 4, 4, 4, 4] and not attached
