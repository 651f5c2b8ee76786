"""How the processes of a run share the work on a model: the seam between the Trainer and the ways to do it.

This strategy is that of one process, which shares nothing. Its methods are all that the Trainer and the engines know;
each backend with several processes derives its own in `backends/*/parallel.py`. Two rules hold for all of them:

- Gradients and losses are **averaged** over the processes. The Trainer has weighed the loss of each so that the mean is
  that of the undivided batch (see losses.py).
- What every process calls, it calls in the same order: these methods may talk to the others.
"""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .collectives import ProcessGroup

if TYPE_CHECKING:
    from ..backends.base import Backend

AS_IT_IS = contextlib.nullcontext()


class Strategy:
    # Whether a forward pass is a meeting of all processes: then all have to run the same number of them.
    lockstep = False
    # Whether each process holds a part of the weights or of the optimizer's state, and writes it.
    in_parts = False
    # Whether each process reads its part of the weights alone, and so after wrap().
    loads_parts = False
    # Whether the model leaves parameters unused; None before the first update has shown it, or where it plays no part.
    unused: bool | None = None

    def __init__(self, args: Any, processes: ProcessGroup, backend: "Backend") -> None:
        self.args = args
        self.processes = processes
        self.backend = backend
        self._stored: dict[str, Any] = {}

    # -- what a resumed run takes over, so that its first update is like any other

    def state(self) -> dict[str, Any]:
        """Plain data that this strategy has found out."""
        return {"unused": self.unused}

    def load_state(self, state: dict[str, Any]) -> None:
        """Comes before wrap(), which uses it up."""
        self._stored = state

    def known_unused(self, asked: bool | None) -> bool | None:
        """What the argument says of unused parameters, or else the run before."""
        stored, self._stored = self._stored.get("unused"), {}
        return stored if asked is None else asked

    # -- what each process has its own of beside the weights: with ddp_broadcast_buffers=False, its running means

    def own_buffers(self, model: Any) -> list[Any]:
        """The tensors that checkpoints have to hold for this process alone; the main one's are among the weights."""
        return []

    def put_buffer(self, target: Any, array: Any) -> None:
        """Write an array into one of them."""
        raise NotImplementedError

    # -- the model and its optimizer

    def agree(self, model: Any) -> None:
        """Give all processes the weights of the main one; called when a model comes, before anything else."""

    def wrap(self, model: Any) -> Any:
        """Make the model ready for training: what training_step calls. Weights are loaded; no optimizer is there."""
        return model

    def rewrap(self) -> Any:
        """The same again in the middle of a run, when finish() has asked for it."""
        raise NotImplementedError

    def build_optimizer(self, cls: Any, groups: list[dict[str, Any]], options: dict[str, Any]) -> Any:
        """The optimizer over groups of the wrapped model's parameters."""
        return self.backend.optimizers.build(cls, groups, options)

    def engine_class(self, default: Any) -> Any:
        """The class of the engine that computes gradients and updates."""
        return default

    def take_optimizer(self, optimizer: Any) -> Any:
        """The optimizer that training uses, built here or by the user: it fits the wrapped model, or is refused."""
        return optimizer

    def class_of(self, model: Any) -> type:
        """The model's own class, which wrapping may have changed."""
        return type(model)

    # -- an update

    def begin(self, all_take_part: bool) -> None:
        """An update starts. Unless all take part, some process has no micro-batch with an item in it."""

    def called(self, wrapped: Any) -> Any:
        """What the micro-batches of this update go through."""
        return wrapped

    def micro_batch(self, last: bool) -> contextlib.AbstractContextManager:
        """Around forward and backward of a micro-batch; `last`: it is this process's last one in the update."""
        return AS_IT_IS

    def muted(self, wrapped: Any) -> contextlib.AbstractContextManager:
        """Around a micro-batch that is computed only because the others compute one: it adds no gradient."""
        return AS_IT_IS

    def finish(self, parameters: list[Any]) -> bool:
        """After the last micro-batch: on return the gradients are those of the update. True: wrap the model anew."""
        return False

    # -- an update in which nobody waits for the others' word: they are known to have all their micro-batches

    @property
    def goes_ahead(self) -> bool:
        """Whether the strategy can do that now."""
        return False

    def closing(self, so_far: Any, counts: bool) -> None:
        """The next backward pass closes the update: the loss goes to the others with it. `so_far`: that of the passes
        before; `counts`: the next one's is part of it."""

    # Whether every backward pass starts in the engine: no training_step is overridden.
    sees_losses = False

    @property
    def carries(self) -> bool:
        """Whether a few numbers of each process can travel with the gradients."""
        return False

    def carry(self, numbers: list[float], expected: float | None) -> None:
        """Send these along in the next update. The first is how many items this process has; unless `expected` is None,
        losses are weighed for that mean of it, and gradients and loss are corrected when the real one is known."""

    def carried(self) -> list[float]:
        """The means of these numbers over all processes, once finish() has returned."""
        raise NotImplementedError

    def add_nothing(self) -> None:
        """Instead of passes, where none of this process's micro-batches counts: let the others' gradients through."""

    def mean(self, loss: Any) -> Any:
        """The mean over the processes of a loss: a scalar on the device, or None where nothing was computed."""
        return loss

    # -- evaluations and checkpoints

    def settle(self, model: Any) -> None:
        """Before an evaluation: what every process has its own of, such as running means, is that of the main one."""

    def generation_options(self) -> dict[str, Any]:
        """What a model's generate has to be told of the processes, where it takes such arguments."""
        return {}

    def unsettle(self, model: Any) -> None:
        """After an evaluation."""

    def model_tensors(self, model: Any) -> tuple[dict[str, Any], dict[str, str]]:
        """Whole weights by name, and which names are tied; needed only in processes that write."""
        return self.backend.weights.model_tensors(model)

    def load_tensors(self, path: Path) -> dict[str, Any]:
        """The tensors of a safetensors file, for load_model and load_optimizer."""
        return self.backend.weights.load_tensors(path)

    def load_model(self, model: Any, tensors: dict[str, Any], tied: dict[str, str], source: str) -> None:
        """The other way round, before or after wrap()."""
        self.backend.weights.load_model(model, tensors, tied, source)

    def optimizer_state(self, optimizer: Any, model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Whole state by name, and the options of the groups; needed only in processes that write."""
        return self.backend.weights.optimizer_state(optimizer, model)

    def load_optimizer(self, optimizer: Any, model: Any, tensors: dict[str, Any], data: Any, source: str) -> None:
        self.backend.weights.load_optimizer(optimizer, model, tensors, data, source)

    # -- the same by parts: every tensor whole in one of the processes, which writes it

    def model_part(self, model: Any) -> tuple[dict[str, Any], dict[str, str]]:
        """Like model_tensors, but each process has the tensors that it writes."""
        raise NotImplementedError

    def optimizer_part(self, optimizer: Any, model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Like optimizer_state, but each process has the tensors that it writes."""
        raise NotImplementedError
