"""A loss that a step returns in memory that the next step writes to, as captured graphs do."""

import pytest

from oneloop import Trainer
from oneloop.backends._common.engines import TapeEngine
from tests.backends.support import DEVICE, rows, same_bytes
from tests.internals import backend_of


class Reusing(Trainer):
    """Each loss is written into the same tensor."""

    held = None

    def training_step(self, *given, **named):
        loss = super().training_step(*given, **named)
        framework = backend_of(self).NAME
        if framework == "mindspore":
            return self._into_parameter(loss)
        loss = loss.detach()
        if self.held is None:
            self.held = loss.clone()
        elif framework == "paddle":
            self.held.copy_(loss, False)
        else:
            self.held.copy_(loss)
        return self.held

    def _into_parameter(self, loss):
        from mindspore import Parameter, ops

        if self.held is None:
            self.held = Parameter(loss.copy(), name="held", requires_grad=False)
        else:
            ops.assign(self.held, loss)
        return self.held


@pytest.mark.once_on("mindspore")
@pytest.mark.parametrize("accumulation", [1, 3])
def test_every_step_counts_with_its_own_loss(backend, arguments, accumulation):
    found = []
    for cls in (Trainer, Reusing):
        options = {"max_steps": 6, "per_device_train_batch_size": 2, "gradient_accumulation_steps": accumulation}
        args = arguments(logging_steps=3, learning_rate=0.05, seed=3, **options)
        trainer = cls(backend.classifier(), args, train_dataset=rows(24))
        output = trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        found.append((losses, output.training_loss, backend.weights(trainer.model)))
    (losses, mean, weights), (reused, reused_mean, reused_weights) = found
    assert len(losses) == 2
    assert reused == pytest.approx(losses, rel=1e-6)
    assert reused_mean == pytest.approx(mean, rel=1e-6)
    assert same_bytes(weights, reused_weights)


@pytest.mark.once_on("mindspore")
def test_a_loss_of_compute_loss_in_memory_that_it_reuses(backend, arguments):
    """What compute_loss returned is written to after its backward pass, by the next call."""
    if backend.name == "mindspore":
        pytest.skip("compute_loss is differentiated as a function, whose result is new")
    found = []

    class Overwriting(Trainer):
        last = None

        def compute_loss(self, *given, **named):
            if self.last is not None:
                self.last.data.fill_(100.0) if backend.name == "torch" else self.last.detach().fill_(100.0)
            self.last = super().compute_loss(*given, **named)
            return self.last

    for cls in (Trainer, Overwriting):
        args = arguments(max_steps=4, per_device_train_batch_size=2, logging_steps=4, learning_rate=0.05, seed=3)
        trainer = cls(backend.classifier(), args, train_dataset=rows(24))
        found.append(trainer.train().training_loss)
    assert found[1] == pytest.approx(found[0], rel=1e-6)


@pytest.mark.slow
@pytest.mark.skipif(DEVICE != "cpu", reason="torch.compile cannot trace tensors of a simulated device")
def test_a_loss_of_a_compiled_model(arguments, monkeypatch):
    """Its graph may write to the memory of the loss of the step before. Here that is done for it."""
    pytest.importorskip("torch")
    from tests.backends.kits.torch_kit import Kit

    compute, found = TapeEngine.loss_and_gradients, []
    for overwrites in (False, True):
        losses = []

        def watched(*given, losses=losses, overwrites=overwrites):
            if losses and overwrites:
                losses[-1].fill_(100.0)
            losses.append(compute(*given))
            return losses[-1]

        monkeypatch.setattr(TapeEngine, "loss_and_gradients", watched)
        options = {"torch_compile": True, "torch_compile_backend": "eager", "max_steps": 4, "logging_steps": 4}
        trainer = Trainer(Kit().classifier(), arguments(seed=3, **options), train_dataset=rows(24))
        found.append(trainer.train().training_loss)
        assert len(losses) == 4
    assert found[1] == pytest.approx(found[0], rel=1e-6)
