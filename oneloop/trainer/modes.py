"""Training and evaluation mode of the model's layers, and of optimizers that have modes of their own."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .internals import Internals


class Modes:
    """Created for each run.

    As in transformers, an evaluation leaves the model in evaluation mode until training goes on: `log`, `on_evaluate`
    and `on_save` of the same step can tell from `model.training` that an evaluation came before. Layers that were in
    evaluation mode before it, such as a frozen batch norm, stay in it.
    """

    def __init__(self, core: "Internals") -> None:
        self.core = core
        # Layers that return to training mode when training goes on; None while it does. A run starts with [].
        self.paused: list[Any] | None = []
        self.has_optimizer_modes = False

    def evaluate(self, model: Any) -> None:
        """Switch to evaluation mode; within train(), until the next micro-batch."""
        training = self.core.backend.models.eval_mode(model)
        if self.core.trainer.is_in_train:
            before = self.paused or []
            known = {id(layer) for layer in before}
            self.paused = before + [layer for layer in training if id(layer) not in known]
        _switch(self.core.trainer.optimizer, "eval")

    def train(self) -> None:
        """Training goes on. Called before each micro-batch, and before the callbacks at the start of a step or an
        epoch, which may freeze layers by their mode."""
        if self.paused is not None:
            self.restore()
            self.has_optimizer_modes = _switch(self.core.trainer.optimizer, "train")
        elif self.has_optimizer_modes:  # a callback may have switched it
            _switch(self.core.trainer.optimizer, "train")

    def restore(self) -> None:
        """The layers as they were before the evaluation; the optimizer stays as it is."""
        if self.paused:
            self.core.backend.models.restore_mode(self.paused)
        self.paused = None


def _switch(optimizer: Any, mode: str) -> bool:
    """Call train() or eval() of an optimizer that has it: a schedule-free one evaluates other weights than it
    trains."""
    switch = getattr(optimizer, mode, None)
    if not callable(switch):
        return False
    switch()
    return True
