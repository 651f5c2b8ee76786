"""batch_eval_metrics with include_for_metrics: compute_metrics sees the loss of each batch."""

import pytest

from oneloop import Trainer
from tests.backends.support import rows
from tests.emulation import emulate


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


@pytest.mark.parametrize("script", ["", "transformers"], ids=["own", "of_transformers"])
def test_what_is_shown_of_a_batch(backend, arguments, monkeypatch, script):
    """In scripts of transformers the whole batch, and its loss for each sample; else the main input, and one loss."""
    emulate(monkeypatch, {script} - {""})
    seen = []

    def compute(prediction, compute_result):
        found, losses = prediction.inputs, backend.numpy(prediction.losses)
        parts = found if script else {"x": found}
        shapes = {name: tuple(part.shape) for name, part in parts.items()}
        seen.append((shapes, losses.shape, len(set(losses.reshape(-1).tolist()))))
        return {}

    options = {"batch_eval_metrics": True, "include_for_metrics": ["inputs", "loss"]}
    args = arguments(per_device_eval_batch_size=4, **options)
    Trainer(backend.classifier(), args, eval_dataset=rows(6), compute_metrics=compute).evaluate()
    sizes = [4, 2]
    if script:
        assert seen == [({"x": (n, 6), "labels": (n,)}, (n,), 1) for n in sizes]
    else:
        assert seen == [({"x": (n, 6)}, (), 1) for n in sizes]


def test_all_batches_together_have_their_main_input(backend, arguments, monkeypatch):
    emulate(monkeypatch, {"transformers"})
    shapes = []

    def compute(prediction):
        shapes.append((prediction.inputs.shape, prediction.losses.shape))
        return {}

    args = arguments(per_device_eval_batch_size=4, include_for_metrics=["inputs", "loss"])
    Trainer(backend.classifier(), args, eval_dataset=rows(6), compute_metrics=compute).evaluate()
    assert shapes == [((6, 6), (6,))]
