"""batch_eval_metrics with include_for_metrics: compute_metrics sees the loss of each batch."""

import pytest

from oneloop import Trainer
from tests.backends.support import rows


def test_losses_batch_by_batch_make_up_the_mean(backend, arguments):
    losses = []

    def compute(prediction, compute_result):
        losses.append((float(backend.numpy(prediction.losses).mean()), len(prediction.label_ids)))
        return {}

    args = arguments(per_device_eval_batch_size=4, batch_eval_metrics=True, include_for_metrics=["loss"])
    trainer = Trainer(backend.classifier(), args, eval_dataset=rows(10), compute_metrics=compute)
    mean = trainer.evaluate()["eval_loss"]
    assert [count for _, count in losses] == [4, 4, 2] and len({loss for loss, _ in losses}) == 3
    assert sum(loss * count for loss, count in losses) / 10 == pytest.approx(mean, rel=1e-6)
