"""The interface of a backend: one Protocol for each of its modules, and Backend, which has them as attributes.

The modules of a backend are plain modules of functions. mypy compares them with these protocols (conformance.py), so a
function that is missing or has other parameters is a type error. Values of a framework (models, tensors, devices,
optimizers) are Any here: the core passes them from one function to another without inspecting them.

Vocabulary: `kind` is that of a device (cpu, cuda, ...) or, for half precision, "fp16" or "bf16"; `source` is the name
of a file for error messages; `tied` maps names of tensors to the name under which the same tensor is stored.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from ..converters.framework_layout import Place
    from ..data.loader_options import LoaderOptions
    from ..distributed.collectives import ProcessGroup
    from ..distributed.mesh import Mesh
    from ..distributed.strategy import Strategy
    from ..formats.digests import ProjectionFactors
    from ..formats.safetensors_io import Raw
    from ._common.buffers import Buffer
    from .step_memory import StepMemory


class Devices(Protocol):
    """Devices: which are available, and how models and batches are moved to them."""

    def available(self, kind: str) -> int:
        """The number of devices of that kind on this machine."""

    def resolve(self, spec: str | None) -> Any:
        """The device for a name such as "cpu" or "gpu:1"; None: the best available."""

    def kind(self, device: Any) -> str:
        """The kind of a device: one of BackendSpec.devices."""

    def title(self, device: Any) -> str | None:
        """The product name of an accelerator; None for a CPU."""

    def move_model(self, model: Any, device: Any) -> Any:
        """The model on that device."""

    def move(self, batch: Any, device: Any, non_blocking: bool = True) -> Any:
        """Move every tensor and array of a nested batch to the device; other values are unchanged."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether an exception means that the device or the host ran out of memory."""

    def empty_cache(self, device: Any) -> None:
        """Free cached memory of the device."""

    def allow_tf32(self, on: bool) -> None:
        """TF32 matrix products and convolutions on NVIDIA devices."""


class Models(Protocol):
    """The functions on models that the core uses."""

    @property
    def HALF_LEVELS(self) -> tuple[str, ...]:
        """The supported values of fp16_opt_level; the others are mapped to the closest, with a warning."""

    @property
    def NEAREST_HALF(self) -> str:
        """What is not supported and the closest level, for that warning."""

    def unwrap(self, model: Any) -> Any:
        """The user's model without wrappers of compilers and of data parallelism."""

    def is_adapter(self, model: Any) -> bool:
        """Whether it trains and saves only an adapter."""

    def base_of(self, model: Any) -> Any:
        """The user's model without wrappers and adapters: the one whose forward has the names of the inputs."""

    def tensor_parallel_size(self, model: Any) -> int:
        """The number of processes over which its layers are divided already; 1 for a whole model."""

    def config_of(self, model: Any) -> Any:
        """The model's configuration object, or None."""

    def forward_of(self, model: Any) -> Callable:
        """The method that calling the model runs."""

    def forward_parameters(self, model: Any) -> list[str] | None:
        """Names that forward accepts; None if it accepts anything."""

    def label_names(self, model: Any) -> list[str]:
        """The names of the model's labels."""

    def shifts_labels(self, model: Any) -> bool | None:
        """Whether the model's loss compares position i with label i+1, as causal language models do. None: it does not
        say so, and the Trainer computes it."""

    def guess_label_shift(self, model: Any) -> bool:
        """A guess, where shifts_labels returns None and it cannot be computed."""

    def counts_ignored(self, criterion: Any) -> bool:
        """Whether a criterion's mean includes ignored labels."""

    def train_mode(self, model: Any, every_layer: bool = False) -> None:
        """Switch to training mode. A model in training mode keeps its layers in evaluation mode, unless
        `every_layer`."""

    def layers_in_eval(self, model: Any) -> list[str]:
        """Names of the outermost layers that have weights to train, and are in evaluation mode although the model is in
        training mode; not norms, whose statistics are frozen like this."""

    def eval_mode(self, model: Any) -> list[Any]:
        """Switch to evaluation mode; returns the layers that were in training mode, for restore_mode."""

    def restore_mode(self, training: list[Any]) -> None:
        """Switch these layers back to training mode; the others were in evaluation mode before."""

    def invoke(self, model: Callable, inputs: Any) -> Any:
        """Call the model with a batch: by keyword for a mapping, by position for a tuple."""

    def named_parameters(self, model: Any) -> list[tuple[str, Any]]:
        """Trainable parameters, each once."""

    def num_parameters(self, model: Any, trainable: bool = False) -> int:
        """The number of elements in all parameters."""

    def num_matrix_parameters(self, model: Any) -> int:
        """The number of those in matrix products: without embeddings, which are look-ups."""

    def embedding_rows(self, model: Any) -> dict[str, tuple[int, int | None]]:
        """Rows of every embedding by its name, and the row that is reserved for padding, or None."""

    def decay_names(self, model: Any) -> list[str]:
        """Parameters that weight decay applies to: all except biases and the weights of norms."""

    def recompute(self, model: Any, options: dict[str, Any] | None) -> None:
        """Discard activations in the forward pass and recompute them in the backward pass."""

    def add_embedding_noise(self, model: Any, alpha: float) -> Callable[[], None]:
        """NEFTune: uniform noise on the embeddings in training mode. The returned function removes it."""

    def compiled(self, model: Any, backend: str | None, mode: str | None) -> Any:
        """The model compiled by the framework's compiler."""

    def check_compiler(self, backend: str | None) -> None:
        """Raise an error before training if the compiler is unknown."""

    def to_half(self, model: Any, kind: str) -> Any:
        """The model with weights in half precision."""

    def with_master_weights(self, model: Any, kind: str) -> Any:
        """The model in half precision with float32 copies of its weights; called if HALF_LEVELS has O2."""

    def buffers(self, model: Any) -> "list[Buffer]":
        """Its buffers, and running statistics that the framework keeps as parameters."""

    def copy_values(self, model: Any) -> list[Any]:
        """Copies of all weights and buffers."""

    def restore_values(self, model: Any, values: list[Any]) -> None:
        """Restore the values from copy_values, with their dtypes."""


class Tensors(Protocol):
    """Conversion of tensors to and from NumPy, and the few operations on them that the core uses."""

    @property
    def Tensor(self) -> Any:
        """The class of the framework's tensors."""

    def is_tensor(self, value: Any) -> bool:
        """Whether it is such a tensor."""

    def from_numpy(self, array: np.ndarray) -> Any:
        """A tensor on the host; it may share memory with the array."""

    def to_numpy(self, tensor: Any) -> np.ndarray:
        """An array on the host; types that NumPy lacks become float32."""

    def stack(self, values: Sequence[Any]) -> Any:
        """One tensor with a new first axis."""

    def detach(self, value: Any) -> Any:
        """Nested values, detached from the graph."""

    def in_half(self, value: Any, kind: str) -> Any:
        """Nested values with every floating-point tensor in half precision."""

    def copy_into(self, target: np.ndarray, tensor: Any) -> None:
        """Write a tensor into an array of the same shape."""

    def scalars(self, values: Sequence[Any]) -> np.ndarray:
        """The values of scalar tensors in float64, with a single host sync if the framework can."""

    def total(self, values: np.ndarray) -> float:
        """The sum of what `scalars` returned."""

    def keep(self, tensors: Sequence[Any], copies: Sequence[Any]) -> list[Any]:
        """Copies of tensors on their device, in the copies of before if they are not None."""

    def restore_copies(self, tensors: Sequence[Any], copies: Sequence[Any], where: Any = True) -> None:
        """Write copies into their tensors, if the flag `where` is set; it may be on the device, and is not read."""

    def float32_copies(self, tensors: Sequence[Any]) -> list[Any]:
        """Copies in float32 on their device, which a checkpoint can store."""

    def lerp(self, targets: Sequence[Any], tensors: Sequence[Any], weight: float) -> None:
        """Move each target by this share of its distance to the tensor, in place and without a host sync."""

    def assign(self, targets: Sequence[Any], values: Sequence[Any]) -> None:
        """Write values into targets in place; each keeps its type."""

    def equals(self, tensor: Any, copy: Any) -> bool:
        """Whether a tensor has the values of a copy. A host sync."""

    def version(self, tensor: Any) -> int:
        """A number that changes with most operations that write to the tensor; 0 if the framework has none."""

    def size(self, tensor: Any) -> int:
        """Bytes of a tensor."""

    def is_finite(self, tensor: Any) -> bool:
        """Whether it has neither NaN nor infinity; tensors of integers do not. A host sync."""

    def count_labels(self, labels: Any, shifted: bool, ignore_index: int | None = -100) -> int:
        """The number of labels that count in the loss; all of them if ignore_index is None."""

    def row_losses(self, logits: Any, labels: Any, shift: bool, ignore_index: int) -> Any:
        """The summed cross entropies of each row, without a graph and on the device."""

    def smoothed_loss(self, logits: Any, labels: Any, epsilon: float, shift: bool) -> Any:
        """Cross entropy with label smoothing; labels of -100 are ignored."""

    def split(self, value: Any, parts: int, rows: int) -> list[Any]:
        """A batch split into parts along its first axis; values without that axis are in all parts."""


class Engine(Protocol):
    """Computes the gradients of each micro-batch, and the update. The Trainer sets `strategy`."""

    strategy: Any  # the Strategy of this framework and this kind of training; each engine declares its own
    parameters: list[Any]
    skipped: int  # updates skipped because of a loss-scale overflow or nonfinite="skip"
    autocasts_forward: bool  # whether autocast is on in the model's forward pass alone, wherever the model is called
    scaler: Any  # the loss scaler of fp16, of the framework or of oneloop; None without
    # Of the gradients of the last update before clipping, where grad_norm() looks for it: a number or a scalar on the
    # device. A resume and a subclass that clips by itself set it.
    norm: Any

    @property
    def is_bad(self) -> Any:
        """Whether the loss or a gradient of the current update is not finite: a bool, or a flag on the device."""

    def autocast(self, cache_enabled: bool | None = True) -> AbstractContextManager:
        """Mixed precision, if it is enabled."""

    def limit_autocast(self) -> None:
        """Autocast in the forward pass alone, with outputs in float32, where that is supported."""

    def loss_context(self) -> AbstractContextManager:
        """The context of compute_loss."""

    def forward_context(self, model: Any = None) -> AbstractContextManager:
        """The context of train() and of evaluations, for forward passes of the model, or of another one."""

    def backward(self, loss: Any, **kwargs: Any) -> None:
        """Add the gradients of a loss to the accumulated ones."""

    def loss_and_gradients(self, compute: Callable[[], Any], divisor: Any = None) -> Any:
        """Run compute and accumulate the gradients of its loss, divided by divisor; returns that loss."""

    def recorded(self, step: Callable[[], Any]) -> Any:
        """Run an overridden training_step that calls backward itself, and return what it returns. An engine that
        differentiates functions accumulates the gradients here."""

    def skip_local_compute(self) -> None:
        """Called when this process had nothing to compute in an update: its gradients come from the others."""

    def include(self, optimizer: Any) -> None:
        """Add parameters of the optimizer that are not the model's."""

    def clear(self) -> None:
        """Clear the accumulated gradients."""

    def prepare_update(self, optimizer: Any, loss: Any) -> None:
        """Unscale and clip the gradients, and determine whether they and the loss are finite."""

    def apply_update(self, optimizer: Any, step: int) -> int | None:
        """Step the optimizer unless something is not finite; returns the number of a step that was not, once it is
        known."""

    def read_pending(self) -> int | None:
        """The number of a step that was not finite and has not been reported yet."""

    def grad_norm(self) -> float | None:
        """Norm of the last update's gradients before clipping."""

    def loss_scale(self) -> float | None:
        """The scale of fp16; None without."""

    def state(self) -> dict[str, Any]:
        """Plain data that a resumed run needs in addition to weights and optimizer."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the result of state."""


class EngineClass(Protocol):
    """How the Trainer creates an Engine."""

    def __call__(
        self,
        model: Any,
        device: Any,
        *,
        half: str | None = None,
        loss_scale: float = 32768.0,
        max_grad_norm: float = 1.0,
        nonfinite: str = "stop",
    ) -> Engine: ...


class Engines(Protocol):
    """The module with the engine's class."""

    @property
    def RECORDS_TRAINING_STEP(self) -> bool:
        """Whether the engine must record an overridden training_step (Engine.recorded): it differentiates functions,
        and a loss has no graph."""

    @property
    def Engine(self) -> EngineClass: ...

    def no_gradients(self) -> AbstractContextManager:
        """A context without gradients, for evaluation."""

    def clip_norm(self, parameters: Any, max_norm: float, norm_type: float = 2.0) -> Any:
        """Clip gradients in place; returns their norm before."""


class Optimizers(Protocol):
    """Optimizers by name, parameter groups, and their learning rates."""

    @property
    def TWO_GROUPS(self) -> bool:
        """Whether the optimizer has a group with and one without weight decay, even if one is empty or nothing
        decays."""

    def scheduler_class(self, rule: Any = None) -> Any:
        """The class of schedulers by the step, or of those that follow a metric by this rule: a Scheduler or a
        MetricScheduler of oneloop."""

    def is_optimizer(self, value: Any) -> bool:
        """Whether it is an optimizer of the framework."""

    def class_and_options(self, args: Any, model: Any = None) -> tuple[Any, dict[str, Any]]:
        """The optimizer class for args.optim, and its keyword arguments."""

    def build(self, cls: Any, groups: list[dict[str, Any]], options: dict[str, Any]) -> Any:
        """An optimizer over groups of parameters: {"params": [...], "weight_decay": ...}."""

    def groups(self, optimizer: Any) -> list[dict[str, Any]]:
        """Its parameter groups, with "params" in each."""

    def learning_rates(self, optimizer: Any) -> list[float]:
        """The learning rate of each group."""

    def set_learning_rates(self, optimizer: Any, rates: list[float]) -> None:
        """Set a learning rate for each group."""

    def attached_schedule(self, optimizer: Any) -> Any:
        """The framework's scheduler inside the optimizer, or None."""

    def make_standalone_schedule(self, rate: float, factor: Callable[[int], float]) -> Any:
        """A scheduler of the framework without an optimizer, if the framework has those."""

    def attach(self, optimizer: Any, scheduler: Any) -> None:
        """Let the optimizer take its rate from a scheduler of oneloop, if it needs one."""

    def group_of(self, optimizer: Any, parameter: Any) -> Any:
        """The group of a parameter; for None, all groups."""


class Loaders(Protocol):
    """Batches of a dataset in oneloop's order."""

    def make_loader(self, dataset: Any, loader_options: "LoaderOptions") -> Any:
        """A loader; iterating it does not use the RNG of the model."""

    def close(self, loader: Any) -> None:
        """Stop the workers that a loader of ours keeps between epochs."""

    def begin_epoch(self, loader: Any, seed: int, epoch: int) -> None:
        """Called before iterating, so that the random numbers of workers depend on (seed, epoch) only."""

    def iterate(self, loader: Any) -> Iterator[Any]:
        """The batches of a loader, ours or the user's."""

    def has_drawn_seed(self, loader: Any) -> bool | None:
        """Whether a loader has drawn the seed of workers that it keeps from the random streams, which it does once.
        None: it draws none, or one in each iteration."""

    def seed_without_drawing(self, loader: Any) -> None:
        """Let the loader seed its persistent workers without drawing from the random state."""

    def is_own(self, loader: Any) -> bool:
        """Whether make_loader created it."""

    def is_loader(self, value: Any) -> bool:
        """Whether it yields batches, rather than being a dataset."""

    def is_iterable(self, dataset: Any) -> bool:
        """Whether it is an iterable dataset, without __getitem__."""

    def reseed_generator(self, dataset: Any, seed: int) -> None:
        """Reseed the generator of an iterable dataset that has one in `.generator`."""

    def generator_states(self, loader: Any) -> list[Any]:
        """The states, as arrays, of generators that a user's loader and samplers draw their order from."""

    def set_generator_states(self, loader: Any, states: list[Any]) -> None:
        """Restore the states; does nothing if their number differs."""


class Parallel(Protocol):
    """Several processes; None in a backend that does not support them."""

    def init_process_group(self, args: Any) -> "ProcessGroup":
        """Create the process group of the processes that the launcher has started; later calls return the same
        group."""

    def destroy_process_group(self) -> None:
        """Destroy it."""

    def strategy(self, args: Any, processes: "ProcessGroup", mesh: "Mesh") -> "Strategy":
        """The distributed strategy of a model; UnsupportedError for an axis of the mesh that it does not support."""


class Weights(Protocol):
    """Weights and optimizer state as named tensors, to and from safetensors files."""

    @property
    def LAYOUT(self) -> str:
        """The "format" in the metadata of its files."""

    def model_tensors(self, model: Any) -> tuple[dict[str, Any], dict[str, str]]:
        """Every weight and buffer once, and the other names of each (tied weights)."""

    def copy_to(self, tensor: Any, buffer: Any) -> Any:
        """A copy on the host, in the buffer of the previous save if it fits."""

    def allows_threaded_copy(self, tensor: Any) -> bool:
        """Whether threads may copy this tensor and others like it at the same time."""

    def empty_like_host(self, tensor: Any) -> Any:
        """An uninitialised buffer for copies of a tensor."""

    def raw(self, tensor: Any) -> "Raw":
        """A tensor, or a copy from copy_to, as the bytes to store."""

    def load_tensors(self, path: Path) -> dict[str, Any]:
        """The tensors of a safetensors file."""

    def load_model(self, model: Any, tensors: dict[str, Any], tied: dict[str, str], source: str) -> None:
        """Copy weights into the model; one error lists every name and shape that does not match."""

    def save_adapter(self, model: Any, directory: Path, tensors: dict[str, Any] | None = None) -> None:
        """Write the files of an adapter. `tensors`: by name, where those of the model are sharded."""

    def load_adapter(self, model: Any, directory: Path) -> None:
        """Load what save_adapter wrote."""

    def optimizer_names(self, optimizer: Any, model: Any) -> dict[int, str]:
        """id of a parameter -> the name that its state is stored under."""

    def optimizer_state(self, optimizer: Any, model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Tensors as "name:word", and plain data: {"class": ..., "groups": [{"names": ...}], "values": ...}."""

    def load_optimizer(
        self, optimizer: Any, model: Any, tensors: dict[str, Any], data: dict[str, Any], source: str
    ) -> None:
        """Restore state by name."""


class Randomness(Protocol):
    """The state of the framework's RNGs, as plain arrays."""

    def seed(self, value: int) -> None:
        """Seed the RNGs of the host and of every accelerator."""

    def get_state(self) -> dict[str, np.ndarray]:
        """The state of every RNG that training may use, under names that start with the backend's."""

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the result of get_state; devices that this machine lacks are skipped."""

    def deterministic(self, on: bool = True) -> None:
        """Use deterministic algorithms."""

    def worker_seed(self) -> int:
        """In a worker of a loader: the seed that the framework set."""

    def randperm(self, length: int, seed: int | None) -> np.ndarray:
        """torch.randperm of a generator with this seed; without one of torch's default generator, which others than
        torch do not have. `data.transformers_order.randperm` does it without torch."""


class FrameworkLayout(Protocol):
    """Names and axes of the tensors, for checkpoints that another framework resumes from."""

    def layout(self, model: Any) -> "dict[str, Place]":
        """Every name of the model's state with its common name and its axes."""


class Export(Protocol):
    """Export of the trained model to files that run without its code; None if that is not supported."""

    def export(self, model: Any, directory: Path, batch: Any, spec: Any = None) -> list[str]:
        """Write them for batches like this one, load them again and compare; returns their names."""


class ExternalCheckpoint(Protocol):
    """Reads checkpoints that the Trainers of other libraries wrote, or raises an error."""

    @property
    def LOADS_SHARDED(self) -> bool:
        """Whether a strategy that shards the optimizer's state can load one."""

    def load_weights(self, model: Any, path: Path, strategy: Any = None) -> None:
        """Load the weights of such a checkpoint into the model, as the strategy divides it."""

    def load_optimizer(self, optimizer: Any, model: Any, path: Path, strategy: Any = None) -> Any:
        """Load its optimizer state; returns how its parameter groups were matched."""

    def scheduler_state(self, path: Path) -> dict[str, Any]:
        """Its scheduler as plain data."""

    def scaler_state(self, path: Path) -> dict[str, Any] | None:
        """Its loss scaler as plain data."""

    def random_state(self, path: Path, rank: int, processes: int) -> tuple[Any, Any, dict[str, Any]] | None:
        """The RNG state of a process: of Python, NumPy and the framework; None without a file for it."""


class Memory(Protocol):
    """Memory usage of the device; None if the framework does not count it."""

    def reset_peak(self, device: Any) -> None:
        """Restart counting."""

    def allocated(self, device: Any) -> int | None:
        """Bytes currently in use on the device."""

    def peak(self, device: Any) -> int | None:
        """Peak bytes in use since reset_peak."""


class NanHooks(Protocol):
    """debug="underflow_overflow"."""

    def watch(self, model: Any, step: Callable[[], int]) -> Callable[[], None]:
        """Report the layer in which the first non-finite value appears; the returned function removes the hooks."""


class Profiling(Protocol):
    """The framework's profiler; None if there is none."""

    def start(self, device: Any, folder: Path) -> Any:
        """Start a profiler."""

    def step(self, profiler: Any) -> None:
        """Called after a training step."""

    def stop(self, profiler: Any, trace: Path) -> None:
        """Stop it and write a trace in Chrome's format."""

    def operator(self, event: dict[str, Any]) -> str | None:
        """The name of the operator that an event of the trace calls; None for other events."""


class Planning(Protocol):
    """What a step needs, found without computing it."""

    def without_weights(self) -> AbstractContextManager:
        """A context in which models are created without allocating their weights."""

    def frozen_bytes(self, model: Any) -> int:
        """Bytes of the weights that are not trained, and of buffers that are saved; none of them is read."""

    def sizes(self, core: Any, axis: str, most: int) -> list[int]:
        """The sizes above 1 and up to `most` that the axis `tensor`, `sequence` or `expert` may have with this model;
        none for what cannot be divided along it."""

    def step_memory(
        self, core: Any, inputs: Any, rows: int, recompute: bool, arguments: dict[str, Any], world: int = 1
    ) -> "StepMemory":
        """The memory of an update of the Trainer of `core` with micro-batches like `inputs`, but of `rows` samples: in
        one process, or in the first of `world` processes, with these arguments about dividing the model."""


class ChunkedTokenLosses(NamedTuple):
    """The loss of a micro-batch that was computed without whole logits."""

    loss: Any  # the mean, with what the model adds to it
    by_row: Any  # the summed losses of each row, without a graph


class LossHead(Protocol):
    """The layer that computes a model's logits, and how its loss follows from them."""

    words: int

    def covers(self, model: Any) -> bool:
        """Whether this is the model with this head, maybe in wrappers."""

    def describe(self) -> str:
        """The layer, and what is done with its logits."""

    def check(self, inputs: Any, label_name: str) -> None:
        """Compute one row of a batch both ways, in evaluation mode and without gradients; UnsupportedError if the model
        does more than its head and a mean cross entropy."""

    def mean_loss(self, model: Any, inputs: Any, rest: Any, labels: Any, epsilon: float) -> ChunkedTokenLosses:
        """The mean loss of a batch with label smoothing `epsilon`. `rest`: the inputs without labels."""

    def log_probs(self, model: Any, rest: Any, labels: Any) -> Any:
        """The log-probability of each label, in its place; 0 for those that are ignored."""


class ChunkedLoss(Protocol):
    """The loss of a language model without whole logits; None if that is not supported."""

    def head_of(self, model: Any, name: str | None) -> LossHead:
        """The head of a model: the layer of this name, or the one that its method get_output_embeddings returns.
        UnsupportedError if there is none, or one that cannot be computed in chunks."""


class Tracing(Protocol):
    """Records what layers compute (trace_steps, verify_steps); None if that is not supported. Digests are vectors; see
    formats/digests.py."""

    def watch(
        self,
        model: Any,
        before: Callable[[str, Any, tuple, dict], tuple[tuple, dict] | None],
        after: Callable[[str, Any, Any], Any],
    ) -> Callable[[], None]:
        """Call functions before and after the forward pass of every layer: with its name, the layer and its arguments,
        which they may replace, or its output, for which they may return another. The returned function removes
        them."""

    def is_floating(self, value: Any) -> bool:
        """Whether it is a dense tensor of floating-point numbers."""

    def has_gradient(self, tensor: Any) -> bool:
        """Whether a gradient of it is going to be computed."""

    def alias(self, tensor: Any) -> Any:
        """The same values as another node of the graph: its gradient is that of one use of the tensor."""

    def on_gradient(self, tensor: Any, function: Callable[[Any], Any]) -> None:
        """Call the function with the gradient of a tensor; it may return another one."""

    def dtype_of(self, tensor: Any) -> str:
        """The name of its type: float32."""

    def piece(self, tensor: Any) -> tuple[Any, list[int], list[int]]:
        """What this process has of a tensor: a plain tensor, the index of its first element along each axis, and the
        full shape."""

    def output_piece(self, layer: Any, tensor: Any) -> tuple[Any, list[int], list[int]]:
        """The same for an output of a layer, or its gradient."""

    def constant(self, array: np.ndarray, like: Any) -> Any:
        """An array as a tensor on the device of another."""

    def digest(
        self,
        tensor: Any,
        factors: "ProjectionFactors",
        constants: tuple[Any, Any] | None = None,
        only_projections: bool = False,
    ) -> Any:
        """The digest of a plain tensor, on its device. `constants`: the factors as tensors. `only_projections`: the
        other numbers need not be computed."""

    def read(self, vectors: Sequence[Any]) -> np.ndarray:
        """Vectors of equal lengths as the rows of an array. A host sync."""

    def repeated(self, part: Any, shape: list[int]) -> Any:
        """A tensor of this shape with values of a vector, each more than once if they do not suffice."""

    def noisy(self, tensor: Any, noise: tuple[Any, Any], relative: float) -> Any:
        """The tensor with rounding errors, half of which are relative to each value, and half to the norm of its row.
        Its gradient is that of the tensor."""

    def write_noisy(self, target: Any, before: Any, noise: tuple[Any, Any], relative: float, absolute: Any) -> None:
        """Write a plain tensor with errors relative to each value, and errors of the same size for all. `noise`: two
        vectors, to be repeated."""

    def gradient_of(self, parameter: Any) -> Any:
        """The accumulated gradient, if it is dense."""

    def copy(self, tensor: Any) -> Any:
        """A copy on the device."""

    def write(self, target: Any, value: Any) -> None:
        """Write values into a plain tensor in place."""

    def difference(self, tensor: Any, before: Any) -> Any:
        """tensor - before, in float32. `before` may be overwritten."""

    def sampled(self, tensor: Any) -> Any:
        """The values of a plain tensor in one row; of a large one, some of them."""

    def spread(self, update: Any, gradients: Any, noise: Any) -> Any:
        """How much an update may change by noise of this size in each gradient, of which the sampled ones are given."""

    def rms_of(self, vector: Any, others: Sequence[Any], count: int) -> Any:
        """From the digest of a tensor and those of its repetitions with noise: the noise of one of `count` values."""

    def moments(self, optimizer: Any, model: Any) -> dict[str, dict[str, Any]]:
        """State of the optimizer by parameter and common name: what has the shape of the parameter."""

    def same_bytes(self, one: Any, other: Any) -> bool:
        """Whether two tensors have the same bytes. A host sync."""

    def fingerprint(self, tensor: Any) -> Any:
        """Two integers that depend on every bit of a tensor, on its device."""


class Backend(Protocol):
    """A framework that oneloop supports: the modules that BackendSpec.module has as attributes."""

    @property
    def NAME(self) -> str: ...
    @property
    def devices(self) -> Devices: ...
    @property
    def models(self) -> Models: ...
    @property
    def tensors(self) -> Tensors: ...
    @property
    def engine(self) -> Engines: ...
    @property
    def optimizers(self) -> Optimizers: ...
    @property
    def loaders(self) -> Loaders: ...
    @property
    def weights(self) -> Weights: ...
    @property
    def randomness(self) -> Randomness: ...
    @property
    def framework_layout(self) -> FrameworkLayout: ...
    @property
    def external_checkpoint(self) -> ExternalCheckpoint: ...
    @property
    def memory(self) -> Memory: ...
    @property
    def nan_hooks(self) -> NanHooks: ...

    # What a backend may lack.

    @property
    def parallel(self) -> Parallel | None: ...
    @property
    def export(self) -> Export | None: ...
    @property
    def profiling(self) -> Profiling | None: ...
    @property
    def planning(self) -> Planning | None: ...
    @property
    def tracing(self) -> Tracing | None: ...
    @property
    def chunked_loss(self) -> ChunkedLoss | None: ...


#: The protocol of each module, by attribute of Backend.
MODULES: dict[str, type] = {
    "devices": Devices,
    "models": Models,
    "tensors": Tensors,
    "engine": Engines,
    "optimizers": Optimizers,
    "loaders": Loaders,
    "weights": Weights,
    "randomness": Randomness,
    "framework_layout": FrameworkLayout,
    "external_checkpoint": ExternalCheckpoint,
    "memory": Memory,
    "nan_hooks": NanHooks,
    "parallel": Parallel,
    "export": Export,
    "profiling": Profiling,
    "planning": Planning,
    "tracing": Tracing,
    "chunked_loss": ChunkedLoss,
}
OPTIONAL = ("parallel", "export", "profiling", "planning", "tracing", "chunked_loss")


def names_of(protocol: type) -> list[str]:
    """The names that a module must have for this protocol."""
    return [name for name in vars(protocol) if not name.startswith("_")]
