"""A loss that a step returns in memory that the next step writes to, as captured graphs do."""

import pytest

from oneloop import Trainer
from tests.backends.support import rows, same_bytes


class Reusing(Trainer):
    """Each loss is written into the same tensor."""

    held = None

    def training_step(self, *given, **named):
        loss = super().training_step(*given, **named)
        framework = self._oneloop.backend.NAME
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
