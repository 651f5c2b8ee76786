"""The part of `self.accelerator` that overrides written for other trainers use."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ..trainer.gathering import map_leaves
from ..trainer.internals import internals_of

if TYPE_CHECKING:
    from ..trainer import Trainer


class Accelerator:
    """A view of the Trainer's engine with accelerate's names."""

    def __init__(self, trainer: "Trainer") -> None:
        self._trainer = trainer
        self.sync_gradients = True

    @property
    def device(self) -> Any:
        return self._trainer.args.device

    @property
    def num_processes(self) -> int:
        return self._trainer.args.world_size

    @property
    def process_index(self) -> int:
        return self._trainer.args.process_index

    @property
    def is_main_process(self) -> bool:
        return self._trainer.is_world_process_zero()

    @property
    def is_local_main_process(self) -> bool:
        return self._trainer.is_local_process_zero()

    @property
    def gradient_accumulation_steps(self) -> int:
        return self._trainer.args.gradient_accumulation_steps

    def backward(self, loss: Any, **kwargs: Any) -> None:
        """Accumulate the gradients of a loss; the loss is not divided."""
        internals_of(self._trainer).engine.backward(loss, **kwargs)

    def loss_and_gradients(self, compute: Callable[[], Any], divisor: Any = None) -> Any:
        """Run compute and add the gradients of the loss that it returns, divided by divisor, to those held; the loss.

        For frameworks that differentiate functions, where a loss cannot be handed to backward().
        """
        return internals_of(self._trainer).engine.loss_and_gradients(compute, divisor)

    def autocast(self, *args: Any, **kwargs: Any) -> Any:
        return internals_of(self._trainer).engine.autocast()

    def _each(self, value: Any, name: str, *how: Any) -> Any:
        core = internals_of(self._trainer)
        if core.processes.size == 1:
            return value
        one = getattr(core.backend.parallel, name)
        return map_leaves(value, lambda leaf: one(leaf, core.processes, *how))

    def gather(self, value: Any) -> Any:
        """Gather the tensors of all processes, concatenated along the first axis."""
        return self._each(value, "gather")

    def gather_for_metrics(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """The same as gather: loaders never repeat samples, so there are none to drop."""
        return self._each(value, "gather")

    def pad_across_processes(self, value: Any, dim: int = 0, pad_index: float = 0, **kwargs: Any) -> Any:
        return self._each(value, "pad", dim, pad_index)

    def reduce(self, value: Any, reduction: str = "sum", **kwargs: Any) -> Any:
        return self._each(value, "reduce", reduction)

    def unwrap_model(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """The unwrapped model."""
        return internals_of(self._trainer).backend.models.unwrap(model)

    def prepare(self, *objects: Any) -> Any:
        """Returns its arguments: loaders and models of a Trainer are already prepared."""
        return objects[0] if len(objects) == 1 else objects

    def wait_for_everyone(self) -> None:
        """Wait for all processes."""
        internals_of(self._trainer).processes.barrier()

    def print(self, *values: Any, **kwargs: Any) -> None:
        if self.is_main_process:
            print(*values, **kwargs)

    def clip_grad_norm_(self, parameters: Iterable[Any], max_norm: float, norm_type: float = 2.0) -> Any:
        return internals_of(self._trainer).backend.engine.clip_norm(parameters, max_norm, norm_type)

    def free_memory(self, *objects: Any) -> None:
        internals_of(self._trainer).backend.devices.empty_cache(self.device)
