"""Who divides the loss, row by row: accumulation, micro-batches of many sizes, some without any label."""

import numpy as np
import pytest

from oneloop import Trainer, TrainerCallback
from tests.backends.support import largest_difference, same_bytes
from tests.trainer import loss_table

ROUNDING = 2e-6


@pytest.fixture
def train(backend, trained):
    def run(name, accumulation=2):
        trainer_class, options, _ = loss_table.table(backend)[name]
        model = backend.tagger()
        options = loss_table.arguments(1, accumulation) | options
        trainer = trained(model, loss_table.data(name), trainer_class, **options)
        return backend.weights(model), [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    return run


def test_every_row(backend, train):
    (whole, losses), (weights, _) = train("default", accumulation=1), train("default")
    for name, (_, _, compared) in loss_table.table(backend).items():
        if compared not in (loss_table.UPDATE, loss_table.SAME):
            continue
        found, logged = train(name)
        assert largest_difference(found, whole) < ROUNDING, name
        np.testing.assert_allclose(logged, losses, rtol=1e-5, err_msg=name)
        assert compared != loss_table.SAME or same_bytes(found, weights), name


class Evaluates(TrainerCallback):
    """Between the micro-batches of an update."""

    def __init__(self):
        self.losses = []

    def on_substep_end(self, args, state, control, **kwargs):
        self.losses.append(self.trainer.evaluate()["eval_loss"])


def test_an_evaluation_between_micro_batches_is_no_part_of_an_update(backend, arguments):
    """compute_loss is given the items of an evaluation too, and must not take its batches for shares of the update."""
    trainer_class, callback = loss_table.table(backend)["loss passes on"][0], Evaluates()
    args = arguments(**loss_table.arguments() | {"learning_rate": 0.0, "max_steps": 1})
    data = loss_table.data("loss passes on")
    trainer = trainer_class(backend.tagger(), args, train_dataset=data, eval_dataset=data[6:10], callbacks=[callback])
    callback.trainer = trainer
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert callback.losses == [before]


def test_an_evaluation_after_a_step_that_failed(backend, arguments):
    passes_on = loss_table.table(backend)["loss passes on"][0]

    class Fails(passes_on):
        def training_step(self, model, inputs, num_items_in_batch=None):
            super().training_step(model, inputs, num_items_in_batch)
            raise ValueError("after the micro-batch")

    data = loss_table.data("loss passes on")
    args = arguments(**loss_table.arguments())
    trainer = Fails(backend.tagger(), args, train_dataset=data, eval_dataset=data[6:10])
    before = trainer.evaluate()["eval_loss"]
    with pytest.raises(ValueError, match="after the micro-batch"):
        trainer.train()
    assert trainer.evaluate()["eval_loss"] == before


def test_means_of_micro_batches_that_were_split(backend, trained):
    """Each part of a micro-batch that does not fit into memory is a micro-batch, and weighs as much as the others."""

    class Unscaled(Trainer):
        loss_is_scaled_for_ga = False
        means = ()

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            if len(inputs["labels"]) > 2:
                raise MemoryError("more than two rows")
            loss = super().compute_loss(model, inputs)
            self.means = (*self.means, loss)
            return loss

    options = {"per_device_train_batch_size": 4, "max_steps": 2, "auto_find_batch_size": True, "logging_steps": 1}
    trainer = trained(backend.tagger(), loss_table.data("said not to be scaled"), Unscaled, **options)
    means = [float(backend.numpy(mean)) for mean in trainer.means]
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert logged == pytest.approx([sum(means[:2]) / 2, sum(means[2:]) / 2], rel=1e-5)
