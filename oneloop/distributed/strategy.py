"""How the processes of a run work on one model: the interface between the Trainer and parallel training.

This class is the strategy of a single process. Its methods are all that the Trainer and the engines use; each backend
with several processes derives its own in `backends/*/parallel.py`. Two rules hold for all of them:

- Gradients and losses are **averaged** over the different batches, along the axes of the mesh that split the batch.
  The Trainer weights each batch's loss so that the mean is that of the undivided batch (see trainer/loss.py). With
  world_invariant=True they are added up, since x * 3 / 3 is not always x.
- All processes call these methods in the same order: they may be collectives.
"""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..formats.digests import Positions
from .collectives import ProcessGroup
from .mesh import SINGLE, Mesh, Splits

if TYPE_CHECKING:
    from ..backends.base import Backend, EngineClass

AS_IT_IS = contextlib.nullcontext()


class Strategy:
    # Whether a forward pass is a collective: then all processes must run the same number of them.
    forward_is_collective = False
    # Whether a process may join with a micro-batch that adds no gradient, where an override calls a collective.
    can_join_without_grad = False
    # Whether each process holds a shard of the weights or of the optimizer state, and writes it.
    is_sharded = False
    # Whether each process reads only its shard of the weights, and therefore after wrap().
    loads_sharded = False
    # Whether gradients that parameters have are parts of them.
    divides_gradients = False
    # Whether a loss may be computed without whole outputs: only then, outputs_for_loss and smoothed_loss are asked.
    computes_loss_in_parts = False
    # Whether gradients and losses of an update are added up in a fixed order, and not averaged over processes
    # (world_invariant): only then, the methods about it are asked.
    sums_gradients = False
    # Whether tensors have values, as everywhere but in simulated steps: for checks, and for random streams.
    has_values = True
    # When this process came to the last exchange of gradients (time.perf_counter), if that is while they are computed.
    reached_exchange = 0.0
    # Whether the model leaves parameters unused; None before the first update, or where it does not matter.
    has_unused_parameters: bool | None = None

    def __init__(self, args: Any, processes: ProcessGroup, backend: "Backend", mesh: Mesh = SINGLE) -> None:
        self.args = args
        self.processes = processes
        self.mesh = mesh
        # Those with different batches, those whose gradients are averaged, and those that are given the same model.
        self.batches = processes.along(mesh, *mesh.axes_that_split(Splits.BATCH))
        self.replicas = self.batches
        self.equals = processes.along(mesh, *mesh.axes_of_equal_models)
        self.backend = backend
        self._stored: dict[str, Any] = {}

    # -- state for a resumed run, so that its first update is like any other

    def state(self) -> dict[str, Any]:
        """What this strategy has detected, as plain data."""
        return {"unused": self.has_unused_parameters}

    def load_state(self, state: dict[str, Any]) -> None:
        """Called before wrap(), which consumes it."""
        self._stored = state

    def expects_unused_parameters(self, asked: bool | None) -> bool | None:
        """Whether there are unused parameters: from the argument, or otherwise from the previous run."""
        stored, self._stored = self._stored.get("unused"), {}
        return stored if asked is None else asked

    # -- per-process buffers: with ddp_broadcast_buffers=False, the running means

    def local_buffers(self, model: Any) -> list[Any]:
        """The tensors that checkpoints store for this process; those of the main process are among the weights."""
        return []

    def load_buffer(self, target: Any, array: Any) -> None:
        """Copy an array into one of them."""
        raise NotImplementedError

    # -- the model and its optimizer

    def divide(self, model: Any) -> None:
        """Divide the weights of a model in place, along axes that keep the batch whole; called first when a model is
        set, before it is moved to the device."""

    def broadcast_weights(self, model: Any) -> None:
        """Broadcast the main process's weights; called when a model is set, and on its device."""

    def wrap(self, model: Any) -> Any:
        """Wrap the model for training, as training_step calls it. Weights are loaded; there is no optimizer yet."""
        return model

    def rewrap(self) -> Any:
        """Wrap again during a run, after finish() returned True."""
        raise NotImplementedError

    def build_optimizer(self, cls: Any, groups: list[dict[str, Any]], options: dict[str, Any]) -> Any:
        """Build the optimizer for groups of the wrapped model's parameters."""
        return self.backend.optimizers.build(cls, groups, options)

    def engine_class(self, default: "EngineClass") -> "EngineClass":
        """The class of the engine that computes gradients and updates."""
        return default

    def prepare_optimizer(self, optimizer: Any) -> Any:
        """The optimizer for training, built here or by the user; refused if it does not match the wrapped model."""
        return optimizer

    def with_optimizer(self, wrapped: Any) -> Any:
        """The wrapped model, now that the optimizer is known."""
        return wrapped

    def class_of(self, model: Any) -> type:
        """The class of the unwrapped model."""
        return type(model)

    # -- an update; `called`, `micro_batch`, `finish` and `mean` are asked only on several processes

    def begin(self, all_take_part: bool) -> None:
        """Start an update. `all_take_part` is False if some process has no micro-batch with an item."""

    def forward_module(self, wrapped: Any) -> Any:
        """The callable for the micro-batches of this update."""
        return wrapped

    def outputs_for_loss(self, model: Any, inputs: Any) -> Any:
        """What the model returns for a micro-batch, where only the loss in it is used."""
        return self.backend.models.invoke(model, inputs)

    def smoothed_loss(self, model: Any, inputs: Any, labels: Any, epsilon: float, shift: bool) -> Any:
        """The loss of a micro-batch with label smoothing, if it can be computed without whole logits; else None."""
        return None

    def micro_batch(self, last: bool) -> contextlib.AbstractContextManager:
        """Around forward and backward of a micro-batch; `last`: this process's last one in the update."""
        return AS_IT_IS

    def discard_gradients(self, wrapped: Any) -> contextlib.AbstractContextManager:
        """Around a micro-batch that is computed only because the other processes compute one: adds no gradient."""
        return AS_IT_IS

    def finish(self, parameters: list[Any]) -> bool:
        """After the last micro-batch: completes the gradients of the update. Returns True to wrap the model again."""
        return False

    # -- world_invariant

    def fix_threads(self, threads: int | None) -> int:
        """Compute with this number of threads; None: with that which the environment asks for. Returns it."""
        raise NotImplementedError

    def processor(self) -> str:
        """What else the bits of a result depend on: the kind of processor, and the version of the framework."""
        raise NotImplementedError

    def begin_sums(self, model: Any, parameters: list[Any], micro_batches: int) -> None:
        """Before the first micro-batch of an update, of which every process has so many."""
        raise NotImplementedError

    def take_micro_batch(self, index: int, loss: Any) -> None:
        """After a micro-batch, by its place in those of this process: takes its gradients, and its loss."""
        raise NotImplementedError

    # -- updates without a collective at the start: all processes are known to have all their micro-batches

    @property
    def skips_presync(self) -> bool:
        """Whether the strategy supports that now."""
        return False

    def attach_loss_to_last_backward(self, so_far: Any, counts: bool) -> None:
        """The next backward pass ends the update, and the loss is sent along with it. `so_far`: the loss of the passes
        before; `counts`: whether the next one's is part of it."""

    # Whether every backward pass runs in the engine: training_step is not overridden.
    engine_runs_backward = False

    @property
    def can_piggyback(self) -> bool:
        """Whether a few numbers per process can be sent along with the gradients."""
        return False

    def piggyback(self, numbers: list[float], expected: float | None) -> None:
        """Send these numbers along with the next update. The first is this process's item count; unless `expected` is
        None, losses are weighted for that mean count; gradients and loss are corrected when the actual one is known."""

    def piggybacked(self) -> list[float]:
        """The means of these numbers over all processes, after finish()."""
        raise NotImplementedError

    def contribute_zero_grads(self) -> None:
        """If none of this process's micro-batches counts: contribute zero gradients to the all-reduce."""

    def mean(self, loss: Any) -> Any:
        """The mean of a loss over the processes: a scalar on the device, or None if nothing was computed."""
        return loss

    def positions_in(self, layer: Any) -> tuple[Positions, ...]:
        """Which positions of the sequences activations of this layer may have in the current forward pass; () for
        all of them."""
        return ()

    # -- evaluations and checkpoints

    def prepare_eval(self, model: Any) -> None:
        """Prepare the model for an evaluation: for example, broadcast the main process's running means."""

    def generation_options(self) -> dict[str, Any]:
        """Arguments about the processes for the model's generate, if it accepts them."""
        return {}

    def finish_eval(self, model: Any) -> None:
        """Undo prepare_eval() after an evaluation."""

    def model_tensors(self, model: Any) -> tuple[dict[str, Any], dict[str, str]]:
        """The full weights by name, and the tied names; needed only in processes that write."""
        return self.backend.weights.model_tensors(model)

    def load_tensors(self, path: Path) -> dict[str, Any]:
        """The tensors of a safetensors file, for load_model and load_optimizer."""
        return self.backend.weights.load_tensors(path)

    def load_model(self, model: Any, tensors: dict[str, Any], tied: dict[str, str], source: str) -> None:
        """Load what model_tensors returned, before or after wrap()."""
        self.backend.weights.load_model(model, tensors, tied, source)

    def part_of(self, parameter: Any, value: Any) -> Any:
        """The part of a whole tensor, or of one of load_tensors(), that this process has of a parameter."""
        return value

    def adapter_tensors(self, model: Any) -> dict[str, Any] | None:
        """The full tensors that the files of an adapter need, by name; None if the model itself has them."""
        return None

    def load_adapter(self, model: Any, directory: Path) -> None:
        """Load the files of an adapter, before or after wrap()."""
        self.backend.weights.load_adapter(model, directory)

    def weight_shapes(self, model: Any) -> dict[str, tuple[int, ...]]:
        """The shapes of the full weights by name, tied ones too."""
        tensors, tied = self.backend.weights.model_tensors(model)
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        return shapes | {name: shapes[first] for name, first in tied.items()}

    def gather_named(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """The full tensors of those that parts of a run have for weights, by their names; needed only in processes that
        write."""
        return tensors

    def take_parts(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """What this process has of full tensors, by the names of weights."""
        return tensors

    def optimizer_state(self, optimizer: Any, model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The full state by name, and the options of the groups; needed only in processes that write."""
        return self.backend.weights.optimizer_state(optimizer, model)

    def load_optimizer(self, optimizer: Any, model: Any, tensors: dict[str, Any], data: Any, source: str) -> None:
        self.backend.weights.load_optimizer(optimizer, model, tensors, data, source)

    # -- sharded saving: each tensor is complete in one process, which writes it

    def local_model_tensors(self, model: Any) -> tuple[dict[str, Any], dict[str, str]]:
        """Like model_tensors, but each process gets only the tensors that it writes."""
        raise NotImplementedError

    def local_optimizer_state(self, optimizer: Any, model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Like optimizer_state, but each process gets only the tensors that it writes."""
        raise NotImplementedError
