"""Who divides the loss for accumulation, as a subclass says it in transformers' words."""

import pytest

from oneloop import Trainer
from tests.backends.support import largest_difference, tagged

LENGTHS = [7, 1, 5, 2]  # two micro-batches of two rows, with different numbers of labels
ONE_UPDATE = {
    "optim": "sgd", "learning_rate": 0.5, "max_steps": 1, "lr_scheduler_type": "constant", "max_grad_norm": 0.0,
    "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "train_sampling_strategy": "sequential",
    "logging_steps": 1,
}  # fmt: skip


class Recorded(Trainer):
    """Keeps the mean of every micro-batch, which it also returns."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs)
        self.__dict__.setdefault("means", []).append(loss)
        return loss


class Scaled(Recorded):
    loss_is_scaled_for_ga = True


class Unscaled(Recorded):
    loss_is_scaled_for_ga = False


class Told(Recorded):
    """As older libraries say it."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.model_accepts_loss_kwargs = False


@pytest.fixture
def update(backend, trained):
    """Train one update: (the logged loss, the means of its micro-batches, how far the weights went)."""

    def run(trainer_class):
        model = backend.tagger()
        before = backend.weights(model)
        trainer = trained(model, tagged(LENGTHS), trainer_class=trainer_class, **ONE_UPDATE)
        logged = next(entry["loss"] for entry in trainer.state.log_history if "loss" in entry)
        means = [float(backend.numpy(mean)) for mean in getattr(trainer, "means", [])]
        after = backend.weights(model)
        return logged, means, {name: after[name] - before[name] for name in after}

    return run


def test_a_loss_that_is_scaled_is_used_as_it_is(update):
    logged, means, _ = update(Scaled)
    assert len(means) == 2
    assert logged == pytest.approx(sum(means), rel=1e-5)


@pytest.mark.parametrize("trainer_class", [Unscaled, Told], ids=["loss_is_scaled_for_ga", "model_accepts_loss_kwargs"])
def test_a_loss_that_is_not_scaled_is_divided_by_the_number_of_micro_batches(update, trainer_class):
    logged, means, moved = update(trainer_class)
    assert logged == pytest.approx(sum(means) / 2, rel=1e-5)
    _, _, twice = update(Scaled)
    assert largest_difference(twice, {name: 2 * change for name, change in moved.items()}) < 2e-6


def test_without_a_word_items_weigh_equally(update):
    logged, means, _ = update(Recorded)
    items = [LENGTHS[0] + LENGTHS[1], LENGTHS[2] + LENGTHS[3]]
    assert logged == pytest.approx(sum(mean * n for mean, n in zip(means, items)) / sum(items), rel=1e-5)
    assert abs(logged - sum(means) / 2) > 1e-4


def test_the_models_own_loss_is_divided_too_if_it_is_said(update):
    class Own(Trainer):
        model_accepts_loss_kwargs = False

    logged, _, _ = update(Own)
    _, means, _ = update(Recorded)
    assert logged == pytest.approx(sum(means) / 2, rel=1e-5)
