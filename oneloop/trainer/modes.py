"""Training and evaluation mode of the model's layers, and of optimizers that have modes of their own."""

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .. import behaviour
from ..backends._common.helpers import preview

if TYPE_CHECKING:
    from .core import Core

logger = logging.getLogger(__name__)


class Modes:
    """Created for each run.

    An evaluation leaves the model in evaluation mode until training continues: `log`, `on_evaluate`
    and `on_save` of the same step can tell from `model.training` that an evaluation came before. Layers that were in
    evaluation mode before it, such as a frozen batch norm, stay in it.
    """

    def __init__(self, core: "Core") -> None:
        self.trainer, self.models = core.trainer, core.backend.models
        self.paused: list[Any] = []  # layers that return to training mode when training goes on
        self.waiting = True  # train() has to be called before the next micro-batch
        self.begun = False

    def evaluate(self, model: Any) -> None:
        """Switch to evaluation mode; within train(), until the next micro-batch."""
        training = self.models.eval_mode(model)
        if self.trainer.is_in_train:
            known = {id(layer) for layer in self.paused}
            self.paused = self.paused + [layer for layer in training if id(layer) not in known]
            self.waiting = True
        _switch(self.trainer.optimizer, "eval")

    def train(self) -> None:
        """Training continues. Called, if it is waiting, before each micro-batch, and before the callbacks at the start
        of a step or an epoch, which may freeze layers by their mode."""
        self.restore()
        if not self.begun:
            self._begin()
        # An optimizer with modes is switched each time: a callback may have changed its mode.
        self.waiting = _switch(self.trainer.optimizer, "train")

    def _begin(self) -> None:
        """Before the first micro-batch: every layer is put into training mode if that is the behaviour, or if the whole
        model is in evaluation mode, as a pretrained one is when it is loaded. Otherwise layers stay as they are, and
        those that look forgotten are named."""
        self.begun = True
        models, trainer = self.models, self.trainer
        # The wrapper of an adapter around it is in training mode.
        is_pretrained = not models.base_of(trainer.model).training
        if is_pretrained or behaviour.current().every_layer_trains:
            models.train_mode(trainer.model_wrapped, every_layer=True)
        elif layers := models.layers_in_eval(trainer.model):
            logger.warning(
                "These layers are trained in evaluation mode, without dropout: %s. from_pretrained returns models "
                "in that mode. Call model.train() before train(), unless that is intended.",
                preview(layers),
            )

    def finish(self) -> None:
        """After the last step: an optimizer with modes leaves the weights in the model that it evaluates."""
        _switch(self.trainer.optimizer, "eval")

    @contextlib.contextmanager
    def evaluated_weights(self) -> Iterator[None]:
        """A context in which the model has the weights that a schedule-free optimizer evaluates. Those that it trains
        are back afterwards, bit for bit: switching the mode alone would round them."""
        optimizer, models = self.trainer.optimizer, self.models
        groups = getattr(optimizer, "param_groups", ())
        if not any(group.get("train_mode") is True for group in groups):
            yield
            return
        before = models.copy_values(self.trainer.model)
        optimizer.eval()
        try:
            yield
        finally:
            optimizer.train()
            models.restore_values(self.trainer.model, before)

    def restore(self) -> None:
        """The layers as they were before the evaluation; the optimizer stays as it is."""
        paused, self.paused = self.paused, []
        if paused:
            self.models.restore_mode(paused)


def _switch(optimizer: Any, mode: str) -> bool:
    """Call train() or eval() of an optimizer that has it: a schedule-free one evaluates other weights than it
    trains."""
    switch = getattr(optimizer, mode, None)
    if not callable(switch):
        return False
    switch()
    return True
