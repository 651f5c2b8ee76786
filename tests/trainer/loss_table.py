"""Who divides the loss: one row for each kind of override and loss function that scripts have.

`test_loss_table.py` trains each row in one process, `loss_table` of tests/distributed/cases.py on several.
"""

from functools import partial
from itertools import islice

from oneloop import Trainer
from tests.backends.support import tagged

LENGTHS = [1 + (7 * i) % 9 for i in range(21)]  # the last update of an epoch is short
UNLABELLED = (3, 4, 5, 11, 16, 17, 18, 19)
GLOBAL_BATCH = 8
# What the updates of a row are: UPDATE, those of the undivided batch; SAME, those of the first row, bit for bit; WORLD,
# others, but the same on any number of processes; None, they depend on how the batch is divided into micro-batches.
UPDATE, SAME, WORLD = "update", "same", "world"


def data(name):
    """Of a row. Without the rule of items, a micro-batch without labels has a loss of 0/0."""
    return tagged(LENGTHS, unlabelled=() if name in _spelling_of(None) else UNLABELLED)


def arguments(processes=1, accumulation=2):
    return {
        "per_device_train_batch_size": GLOBAL_BATCH // processes // accumulation,
        "gradient_accumulation_steps": accumulation,
        "num_train_epochs": 2,
        "optim": "sgd",
        "learning_rate": 0.3,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "logging_steps": 1,
    }


def table(kit):
    """{name: (trainer class, options of the Trainer and its arguments, what it is compared with)}"""
    return {"default": (Trainer, {}, UPDATE), **_losses(kit), **_functions(kit), **_spelling_of(kit), **_steps(kit)}


def _share(kit, model, inputs, num_items):
    outputs = model(**inputs)
    if num_items is None:
        return outputs["loss"], outputs
    return kit.cross_entropy(outputs["logits"], inputs["labels"], "sum") / num_items, outputs


def _losses(kit):
    """Overrides of compute_loss."""

    class PassesOn(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    class PassesKwargs(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
            return super().compute_loss(model, inputs, return_outputs=return_outputs, **kwargs)

    class PassesAnotherNumber(Trainer):
        """super() divides by the items that were counted, whatever number it is given."""

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            items = None if num_items_in_batch is None else 2.0 * num_items_in_batch
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch=items)

    class CallsTwice(Trainer):
        """A second loss that is only looked at."""

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            found = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            super().compute_loss(model, inputs)
            return found

    class Adds(Trainer):
        """Something that is not divided."""

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
            loss = loss + 0.01 * (outputs["logits"] ** 2).mean()
            return (loss, outputs) if return_outputs else loss

    class Divides(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss, outputs = _share(kit, model, inputs, num_items_in_batch)
            return (loss, outputs) if return_outputs else loss

    class DividesForTheWorld(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss, outputs = _share(kit, model, inputs, num_items_in_batch)
            if num_items_in_batch is not None:
                loss = loss * self.args.world_size
            return (loss, outputs) if return_outputs else loss

    class Ignores(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            outputs = model(**inputs)
            return (outputs["loss"], outputs) if return_outputs else outputs["loss"]

    class IgnoresKwargs(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
            outputs = model(**inputs)
            return (outputs["loss"], outputs) if return_outputs else outputs["loss"]

    class TakesNoItems(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False):
            return super().compute_loss(model, inputs, return_outputs)

    class CallsWithoutItems(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return super().compute_loss(model, inputs, return_outputs)

    class LooksAndIgnores(Trainer):
        loss_is_divided = False

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            self.items = num_items_in_batch
            return super().compute_loss(model, inputs, return_outputs)

    return {
        "loss passes on": (PassesOn, {}, SAME),
        "loss passes kwargs": (PassesKwargs, {}, SAME),
        "loss passes another number": (PassesAnotherNumber, {}, SAME),
        "loss calls twice": (CallsTwice, {}, SAME),
        "loss adds": (Adds, {}, None),
        "loss divides": (Divides, {}, UPDATE),
        "loss divides for the world": (DividesForTheWorld, {}, UPDATE),
        "loss ignores": (Ignores, {}, UPDATE),
        "loss ignores kwargs": (IgnoresKwargs, {}, UPDATE),
        "loss takes no items": (TakesNoItems, {}, UPDATE),
        "loss calls without items": (CallsWithoutItems, {}, UPDATE),
        "loss looks and ignores": (LooksAndIgnores, {}, UPDATE),
        "loss passes on, smoothed": (PassesOn, {"label_smoothing_factor": 0.1}, WORLD),
        "loss passes on, of a sum": (PassesOn, {"criterion": _summed(kit), "learning_rate": 0.01}, WORLD),
    }


def _summed(kit):
    return partial(kit.cross_entropy, reduction="sum")


def _functions(kit):
    """Loss functions that are passed to the Trainer."""

    def divides(outputs, labels, num_items_in_batch=None):
        if num_items_in_batch is None:
            return kit.cross_entropy(outputs["logits"], labels)
        return kit.cross_entropy(outputs["logits"], labels, "sum") / num_items_in_batch

    def ignores(outputs, labels, num_items_in_batch=None):
        return kit.cross_entropy(outputs["logits"], labels)

    class PassesOn(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    return {
        "function divides": (Trainer, {"compute_loss_func": divides}, UPDATE),
        "function ignores": (Trainer, {"compute_loss_func": ignores}, UPDATE),
        "function divides, loss passes on": (PassesOn, {"compute_loss_func": divides}, UPDATE),
        "criterion": (Trainer, {"criterion": kit.cross_entropy}, UPDATE),
        "criterion sums": (Trainer, {"criterion": _summed(kit), "learning_rate": 0.01}, WORLD),
        "smoothed": (Trainer, {"label_smoothing_factor": 0.1}, WORLD),
    }


def _spelling_of(kit):
    """What a subclass says in transformers' words."""

    class Mean(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
            return (loss, outputs) if return_outputs else loss

    class Scaled(Mean):
        loss_is_scaled_for_ga = True

    class Unscaled(Mean):
        loss_is_scaled_for_ga = False

    class NoKwargs(Trainer):
        model_accepts_loss_kwargs = False

    return {
        "said to be scaled": (Scaled, {}, None),
        "said not to be scaled": (Unscaled, {}, None),
        "said to take no items": (NoKwargs, {}, None),
    }


def _steps(kit):
    """Overrides of training_step and get_batch_samples."""

    class Steps(Trainer):
        def stepped(self, loss):
            self.accelerator.backward(loss)
            return loss.detach() if hasattr(loss, "detach") else loss

    class PassesOn(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            return super().training_step(model, inputs, num_items_in_batch)

    class TakesNoItems(Trainer):
        def training_step(self, model, inputs):
            return super().training_step(model, inputs)

    class DropsItems(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            return super().training_step(model, inputs)

    class Counts(Trainer):
        """As transformers 4.46 does."""

        def get_batch_samples(self, epoch_iterator, num_batches, device=None):
            batches = [
                batch for batch in islice(epoch_iterator, num_batches) if "labels" in getattr(batch, "keys", list)()
            ]
            return batches, sum(int((kit.numpy(batch["labels"]) != -100).sum()) for batch in batches) or None

    class CallsTheLoss(Steps):
        def training_step(self, model, inputs, num_items_in_batch=None):
            inputs = self._prepare_inputs(inputs)
            return self.stepped(self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch))

    class Divides(Steps):
        def training_step(self, model, inputs, num_items_in_batch=None):
            loss, _ = _share(kit, model, self._prepare_inputs(inputs), num_items_in_batch)
            return self.stepped(loss)

    class DividesForTheWorld(Steps):
        def training_step(self, model, inputs, num_items_in_batch=None):
            loss, _ = _share(kit, model, self._prepare_inputs(inputs), num_items_in_batch)
            return self.stepped(loss * self.args.world_size)

    class Sums(Steps):
        """It is given no number of items, so nothing of it is corrected by them."""

        def training_step(self, model, inputs):
            inputs = self._prepare_inputs(inputs)
            loss = kit.cross_entropy(model(**inputs)["logits"], inputs["labels"], "sum")
            return self.stepped(loss * (self.args.world_size / 50))

    class BothDivide(Steps):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss, outputs = _share(kit, model, inputs, num_items_in_batch)
            return (loss, outputs) if return_outputs else loss

        def training_step(self, model, inputs, num_items_in_batch=None):
            inputs = self._prepare_inputs(inputs)
            return self.stepped(self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch))

    class BothPassOn(PassesOn):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    return {
        "step passes on": (PassesOn, {}, SAME),
        "step takes no items": (TakesNoItems, {}, SAME),
        "step drops the items": (DropsItems, {}, SAME),
        "batches are counted by the script": (Counts, {}, SAME),
        "step calls the loss": (CallsTheLoss, {}, UPDATE),
        "step divides": (Divides, {}, UPDATE),
        "step divides for the world": (DividesForTheWorld, {}, UPDATE),
        "step sums": (Sums, {}, WORLD),
        "step and loss divide": (BothDivide, {}, UPDATE),
        "step and loss pass on": (BothPassOn, {}, SAME),
    }
