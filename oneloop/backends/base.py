"""What a backend is: one Protocol for each of its modules, and Backend, which has them as attributes.

The modules of a backend are plain modules of functions. mypy compares them with these protocols (conformance.py), so a
function that is missing or takes other parameters is an error before anything runs. Values of a framework (models,
tensors, devices, optimizers) are Any here: the core hands them from one function to another and never looks inside.

Words: `kind` is a device's (cpu, cuda, ...) or, for half precision, "fp16" or "bf16"; `source` names a file in error
messages; `tied` maps names of tensors to the name under which the same tensor is stored.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from ..checkpoint.convert.framework_layout import Place
    from ..checkpoint.safetensors_io import Raw
    from ..data.loader_options import Loading
    from ..distributed.collectives import ProcessGroup
    from ..distributed.strategy import Strategy


class Devices(Protocol):
    """Which devices there are, and how models and batches get there."""

    def available(self, kind: str) -> int:
        """How many devices of that kind this machine has."""

    def resolve(self, spec: str | None) -> Any:
        """The device for a user's word such as "cpu" or "gpu:1"; None: the best there is."""

    def kind(self, device: Any) -> str:
        """The kind of a device: one of BackendSpec.devices."""

    def title(self, device: Any) -> str | None:
        """The product's name of an accelerator; None for a CPU."""

    def place(self, model: Any, device: Any) -> Any:
        """The model on that device."""

    def move(self, batch: Any, device: Any, non_blocking: bool = True) -> Any:
        """Every tensor and array of a nested batch on the device; what is neither stays as it is."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether an exception says that the device or the host ran out of memory."""

    def empty_cache(self, device: Any) -> None:
        """Give cached blocks back to the device."""

    def allow_tf32(self, on: bool) -> None:
        """TF32 matrix products and convolutions on NVIDIA devices."""


class Models(Protocol):
    """What the core asks of a model."""

    @property
    def HALF_LEVELS(self) -> tuple[str, ...]:
        """The values of fp16_opt_level that it has; the others are mapped to the nearest, with a warning."""

    @property
    def NEAREST_HALF(self) -> str:
        """What it lacks and what the nearest is, for that warning."""

    def unwrap(self, model: Any) -> Any:
        """The user's own model under wrappers of compilers and of data parallelism."""

    def is_adapter(self, model: Any) -> bool:
        """Whether it trains and saves an adapter alone (PEFT)."""

    def base_of(self, model: Any) -> Any:
        """The user's model under wrappers and adapters: the one whose forward names the inputs."""

    def config_of(self, model: Any) -> Any:
        """The model's configuration object, or None."""

    def forward_of(self, model: Any) -> Callable:
        """The method that a call of the model runs."""

    def forward_parameters(self, model: Any) -> list[str] | None:
        """Names that forward accepts; None when it takes anything."""

    def label_names(self, model: Any) -> list[str]:
        """What the model calls its labels."""

    def shifts_labels(self, model: Any) -> bool:
        """Whether the model's loss compares position i with label i+1, as causal language models do."""

    def counts_ignored(self, criterion: Any) -> bool:
        """Whether a criterion's mean is also over labels that take no part."""

    def train_mode(self, model: Any) -> None:
        """Switch to training."""

    def eval_mode(self, model: Any) -> list[Any]:
        """Switch to evaluation; the layers that were in training, for restore_mode."""

    def restore_mode(self, training: list[Any]) -> None:
        """These layers back to training; the others were in evaluation before."""

    def invoke(self, model: Callable, inputs: Any) -> Any:
        """Call the model with a batch: names for a mapping, positions for a tuple."""

    def named_parameters(self, model: Any) -> list[tuple[str, Any]]:
        """Trainable parameters, each once."""

    def num_parameters(self, model: Any, trainable: bool = False) -> int:
        """How many numbers the parameters hold."""

    def num_matrix_parameters(self, model: Any) -> int:
        """How many of them take part in matrix products: an embedding is a look-up."""

    def decay_names(self, model: Any) -> list[str]:
        """Parameters that weight decay applies to: all but biases and the weights of norms."""

    def recompute(self, model: Any, options: dict[str, Any] | None) -> None:
        """Activations are thrown away in the forward pass and computed again in the backward pass."""

    def add_embedding_noise(self, model: Any, alpha: float) -> Callable[[], None]:
        """NEFTune: uniform noise on the embeddings while training. The value returned takes it off."""

    def compiled(self, model: Any, backend: str | None, mode: str | None) -> Any:
        """The model behind the framework's compiler."""

    def check_compiler(self, backend: str | None) -> None:
        """An unknown compiler is an error before training."""

    def to_half(self, model: Any, kind: str) -> Any:
        """The model with weights in half precision."""

    def with_master_weights(self, model: Any, kind: str) -> Any:
        """The model in half precision with float32 copies of its weights; called where HALF_LEVELS has O2."""

    def copy_values(self, model: Any) -> list[Any]:
        """Copies of all weights and buffers."""

    def restore_values(self, model: Any, values: list[Any]) -> None:
        """Put values from copy_values back, with their dtypes."""


class Tensors(Protocol):
    """Tensors to and from NumPy, and the few operations on them that the core asks for."""

    @property
    def Tensor(self) -> Any:
        """The class of the framework's tensors."""

    def is_tensor(self, value: Any) -> bool:
        """Whether it is one of them."""

    def from_numpy(self, array: np.ndarray) -> Any:
        """A tensor on the host; it may share memory with the array."""

    def to_numpy(self, tensor: Any) -> np.ndarray:
        """An array on the host; types that NumPy lacks become float32."""

    def stack(self, values: Sequence[Any]) -> Any:
        """One tensor with a new first axis."""

    def detach(self, value: Any) -> Any:
        """Nested values cut off from the graph."""

    def in_half(self, value: Any, kind: str) -> Any:
        """Nested values with every floating-point tensor in half precision."""

    def copy_into(self, target: np.ndarray, tensor: Any) -> None:
        """Write a tensor into an array of the same shape."""

    def total(self, values: Sequence[Any], skip_nonfinite: bool = False) -> float:
        """The sum of scalars in float64, read from the device once."""

    def count_labels(self, labels: Any, shifted: bool, ignore_index: int | None = -100) -> int:
        """How many label entries take part in the loss; all of them when ignore_index is None."""

    def smoothed_loss(self, logits: Any, labels: Any, epsilon: float, shift: bool) -> Any:
        """Cross entropy with label smoothing; -100 takes no part."""

    def split(self, value: Any, parts: int, rows: int) -> list[Any]:
        """A batch cut into parts along its first axis; values without that axis are shared by all parts."""


class Engine(Protocol):
    """Gradients of one micro-batch at a time, and the update that follows. The Trainer sets `strategy`."""

    strategy: Any
    parameters: list[Any]
    skipped: int  # updates that a loss-scale overflow or nonfinite="skip" left out

    def autocast(self, cache_enabled: bool | None = True) -> AbstractContextManager:
        """The context that the forward pass runs in."""

    def backward(self, loss: Any, **kwargs: Any) -> None:
        """Add the gradients of a loss to those held."""

    def loss_and_gradients(self, compute: Callable[[], Any], divisor: Any = None) -> Any:
        """Run compute, add the gradients of its loss, divided by divisor, to those held; that loss."""

    def stand_by(self) -> None:
        """This process had nothing to compute in an update whose gradients come from the others."""

    def include(self, optimizer: Any) -> None:
        """Take in parameters that the optimizer has besides the model's."""

    def clear(self) -> None:
        """Forget the gradients held."""

    def prepare_update(self, optimizer: Any, loss: Any) -> None:
        """Unscale and clip the gradients, and find out whether they and the loss are finite."""

    def apply_update(self, optimizer: Any, step: int) -> int | None:
        """Step the optimizer unless something is not finite; the number of a step that was not, once it is known."""

    def read_pending(self) -> int | None:
        """The number of a step that was not finite and has not been reported yet."""

    def grad_norm(self) -> float | None:
        """Norm of the last update's gradients before clipping."""

    def loss_scale(self) -> float | None:
        """The scale of fp16; None without."""

    def state(self) -> dict[str, Any]:
        """Plain data: what a resumed run needs besides weights and optimizer."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Put back what state returned."""


class EngineClass(Protocol):
    """How the Trainer makes an Engine."""

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
    def WATCHES_OVERRIDES(self) -> bool:
        """Whether the engine has to record a training_step that is overridden (Engine.recorded): it differentiates
        functions, and a loss does not know how it was computed."""

    @property
    def Engine(self) -> EngineClass: ...

    def no_gradients(self) -> AbstractContextManager:
        """Evaluation: nothing in here is differentiated."""

    def clip_norm(self, parameters: Any, max_norm: float, norm_type: float = 2.0) -> Any:
        """Clip gradients in place; the norm that they had."""


class Optimizers(Protocol):
    """Optimizers by name, parameter groups, and their learning rates."""

    def is_optimizer(self, value: Any) -> bool:
        """Whether it is an optimizer of the framework."""

    def class_and_options(self, args: Any, model: Any = None) -> tuple[Any, dict[str, Any]]:
        """The optimizer class for args.optim, and what to build it with."""

    def build(self, cls: Any, groups: list[dict[str, Any]], options: dict[str, Any]) -> Any:
        """An optimizer over groups of parameters: {"params": [...], "weight_decay": ...}."""

    def groups(self, optimizer: Any) -> list[dict[str, Any]]:
        """Its groups, with "params" in each."""

    def learning_rates(self, optimizer: Any) -> list[float]:
        """The rate of each group."""

    def set_learning_rates(self, optimizer: Any, rates: list[float]) -> None:
        """A rate for each group."""

    def own_schedule(self, optimizer: Any) -> Any:
        """The framework's scheduler that the optimizer itself holds, or None."""

    def schedule_alone(self, rate: float, factor: Callable[[int], float]) -> Any:
        """A scheduler of the framework without an optimizer, where there is such a thing."""

    def attach(self, optimizer: Any, scheduler: Any) -> None:
        """Let the optimizer take its rate from a scheduler of oneloop's, where it asks for one."""

    def group_of(self, optimizer: Any, parameter: Any) -> Any:
        """The group of a parameter; for None the parameters of all groups."""


class Loaders(Protocol):
    """Batches of a data set in oneloop's order."""

    def make_loader(self, dataset: Any, asked: "Loading") -> Any:
        """A loader; iterating it never draws from the random stream of the model."""

    def close(self, loader: Any) -> None:
        """End the processes that a loader of ours keeps between epochs."""

    def begin_epoch(self, loader: Any, seed: int, epoch: int) -> None:
        """Called before iterating: what workers draw depends on (seed, epoch) alone."""

    def iterate(self, loader: Any) -> Iterator[Any]:
        """The batches of a loader, ours or the user's."""

    def is_own(self, loader: Any) -> bool:
        """Whether make_loader made it."""

    def is_loader(self, value: Any) -> bool:
        """Something that makes batches, not a data set."""

    def is_iterable(self, dataset: Any) -> bool:
        """A data set that can only be walked through, not indexed."""

    def reseed_generator(self, dataset: Any, seed: int) -> None:
        """An iterable data set that keeps a generator of the framework in `.generator` gets it reseeded."""


class Parallel(Protocol):
    """Several processes; a backend without them has None in its place."""

    def join(self, args: Any) -> "ProcessGroup":
        """Bring the processes that the launcher has started together; the second time, the same group."""

    def leave(self) -> None:
        """End it."""

    def strategy(self, args: Any, processes: "ProcessGroup") -> "Strategy":
        """How the processes share the work on a model."""


class Weights(Protocol):
    """Weights and optimizer state as named tensors, to and from safetensors files."""

    @property
    def LAYOUT(self) -> str:
        """The "format" in the metadata of its files."""

    def model_tensors(self, model: Any) -> tuple[dict[str, Any], dict[str, str]]:
        """Every weight and buffer once, and which other names share it (tied weights)."""

    def copy_to(self, tensor: Any, buffer: Any) -> Any:
        """A real copy on the host, in the buffer of the save before where it fits."""

    def room(self, tensor: Any) -> Any:
        """A buffer for copies of a tensor, with nothing in it yet."""

    def raw(self, tensor: Any) -> "Raw":
        """A tensor, or a copy from copy_to, as the bytes that go into a file."""

    def load_tensors(self, path: Path) -> dict[str, Any]:
        """The tensors of a safetensors file."""

    def load_model(self, model: Any, tensors: dict[str, Any], tied: dict[str, str], source: str) -> None:
        """Copy weights into the model; every name and shape that does not fit is listed in one error."""

    def save_adapter(self, model: Any, directory: Path) -> None:
        """The files of an adapter (PEFT)."""

    def load_adapter(self, model: Any, directory: Path) -> None:
        """The other way round."""

    def optimizer_names(self, optimizer: Any, model: Any) -> dict[int, str]:
        """id of a parameter -> the name that its state is stored under."""

    def optimizer_state(self, optimizer: Any, model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Tensors as "name:word", and plain data: {"class": ..., "groups": [{"names": ...}], "values": ...}."""

    def load_optimizer(
        self, optimizer: Any, model: Any, tensors: dict[str, Any], data: dict[str, Any], source: str
    ) -> None:
        """Put state back by name."""


class Randomness(Protocol):
    """The framework's random streams, as plain arrays."""

    def seed(self, value: int) -> None:
        """Start the streams of the host and of every accelerator."""

    def get_state(self) -> dict[str, np.ndarray]:
        """The state of every generator that training may draw from, under names that begin with the backend's."""

    def set_state(self, state: dict[str, Any]) -> None:
        """Put back what get_state returned; devices that this machine lacks are passed over."""

    def deterministic(self, on: bool = True) -> None:
        """Deterministic algorithms everywhere."""

    def worker_seed(self) -> int:
        """In a loader's worker: the seed that the framework gave it."""


class FrameworkLayout(Protocol):
    """Names and axes of the tensors, for checkpoints that another framework resumes from."""

    def layout(self, model: Any) -> "dict[str, Place]":
        """Every name of the model's state with its common name and its axes."""


class Export(Protocol):
    """The trained model as files that run without its code; None where that is not written."""

    def export(self, model: Any, directory: Path, batch: Any, spec: Any = None) -> list[str]:
        """Write them for batches like this one, load them again and compare; their names."""


class TransformersCheckpoint(Protocol):
    """Reading checkpoints of transformers' Trainer, or refusing to."""

    def load_weights(self, model: Any, path: Path) -> None:
        """Weights of such a checkpoint into the model."""

    def load_optimizer(self, optimizer: Any, model: Any, path: Path) -> Any:
        """Its optimizer state; what is known of how it fitted."""

    def scheduler_state(self, path: Path) -> dict[str, Any]:
        """Its scheduler as plain data."""

    def scaler_state(self, path: Path) -> dict[str, Any] | None:
        """Its loss scaler as plain data."""


class Memory(Protocol):
    """How much memory the device has used; None where the framework does not count it."""

    def reset_peak(self, device: Any) -> None:
        """Start counting anew."""

    def allocated(self, device: Any) -> int | None:
        """Bytes in use on the device now."""

    def peak(self, device: Any) -> int | None:
        """The most bytes in use since reset_peak."""


class NanHooks(Protocol):
    """debug="underflow_overflow"."""

    def watch(self, model: Any, step: Callable[[], int]) -> Callable[[], None]:
        """Name the layer in which the first non-finite value appears; the value returned takes the hooks off."""


class Profiling(Protocol):
    """The framework's profiler; None where there is none."""

    def start(self, device: Any, folder: Path) -> Any:
        """A profiler that runs."""

    def step(self, profiler: Any) -> None:
        """A training step has ended."""

    def stop(self, profiler: Any, trace: Path) -> None:
        """End it and write a trace in Chrome's format."""

    def operator(self, event: dict[str, Any]) -> str | None:
        """The name of the operator that an event of the trace is a call of; None for other events."""


class Backend(Protocol):
    """A framework behind oneloop: the modules that BackendSpec.module has as attributes."""

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
    def transformers_checkpoint(self) -> TransformersCheckpoint: ...
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


#: The protocol of each module, by the attribute of Backend that it is.
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
    "transformers_checkpoint": TransformersCheckpoint,
    "memory": Memory,
    "nan_hooks": NanHooks,
    "parallel": Parallel,
    "export": Export,
    "profiling": Profiling,
}
OPTIONAL = ("parallel", "export", "profiling")


def names_of(protocol: type) -> list[str]:
    """What a module has to have to be one of these."""
    return [name for name in vars(protocol) if not name.startswith("_")]
