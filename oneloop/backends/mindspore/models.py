"""The functions on models that the core uses."""

import logging
from collections.abc import Callable
from typing import Any

import mindspore as ms
from mindspore import nn

from ...errors import ModelError, UnsupportedError
from .._common import helpers, label_shift
from .._common.buffers import Buffer
from .._common.modes import outermost_in_eval
from . import dropout
from .compiling import Compiled

logger = logging.getLogger(__name__)

HALF_LEVELS = ("O0", "O2", "O3")  # of fp16_opt_level; O1 is mapped to O2 with a warning
NEAREST_HALF = "autocast; the closest level, O2 (half precision except norms, with float32 weights),"
_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.InstanceNorm2d)


def unwrap(model: Any) -> nn.Cell:
    """The user's cell without the wrapper of the graph compiler."""
    return model.cell if isinstance(model, Compiled) else model


def is_adapter(model: nn.Cell) -> bool:
    """Whether it trains and saves only an adapter: never, since no library of adapters supports cells."""
    return False


def base_of(model: Any) -> nn.Cell:
    """The user's model without wrappers: the one whose construct has the names of the inputs."""
    return unwrap(model)


def tensor_parallel_size(model: Any) -> int:
    """The number of processes over which its layers are divided already: one, since models arrive whole."""
    return 1


def config_of(model: Any) -> Any:
    """The model's configuration object, or None."""
    return getattr(unwrap(model), "config", None)


def forward_of(model: Any) -> Callable:
    """The method that calling the model runs."""
    return unwrap(model).construct


def forward_parameters(model: Any) -> list[str] | None:
    """Names that construct accepts; None if it accepts anything (only *args or **kwargs)."""
    return helpers.parameter_names(forward_of(model))


def label_names(model: Any) -> list[str]:
    """The names of the model's labels."""
    return helpers.label_names(forward_parameters(model), type(base_of(model)).__name__)


def shifts_labels(model: Any) -> bool | None:
    """Whether the model's loss compares position i with label i+1, as causal language models do; None if it declares
    nothing, and it has to be computed.

    Your own model can declare it with a class attribute `shifts_labels = True`.
    """
    base = base_of(model)
    return label_shift.declared_shift(base, base.construct, ms.Tensor)


def guess_label_shift(model: Any) -> bool:
    """A guess, for a model that declares nothing and whose loss cannot be computed beforehand."""
    return label_shift.guess_label_shift(type(base_of(model)))


def counts_ignored(criterion: Any) -> bool:
    """Whether a criterion's mean includes ignored labels: never in MindSpore."""
    return False


def train_mode(model: Any, every_layer: bool = False) -> None:
    if every_layer or not unwrap(model).training:
        unwrap(model).set_train(True)


def layers_in_eval(model: Any) -> list[str]:
    """Names of the outermost cells to train that are in evaluation mode, in a model in training mode."""

    def trains(cell: nn.Cell) -> bool:
        own = cell.parameters_and_names(expand=False)
        return not isinstance(cell, _NORMS) and any(p.requires_grad for _, p in own)

    return outermost_in_eval(unwrap(model), lambda cell: cell.name_cells().items(), trains)


def eval_mode(model: Any) -> list[nn.Cell]:
    """Switch to evaluation mode; returns the cells that were in training mode, for restore_mode."""
    base = unwrap(model)
    training = [cell for _, cell in base.cells_and_names() if cell.training]
    if training:
        base.set_train(False)
    return training


def restore_mode(training: list[nn.Cell]) -> None:
    """Back to training mode, except cells that were in evaluation mode before: a frozen batch norm stays frozen."""
    for cell in training:
        cell.phase = "train"
        cell.add_flags(training=True)


def invoke(model: Callable, inputs: Any) -> Any:
    """Call the model with a batch: by keyword for a mapping, by position for a tuple."""
    try:
        return helpers.call(model, inputs)
    except TypeError as error:
        if isinstance(model, (nn.Cell, Compiled)):
            base = base_of(model)
            helpers.explain_call(base, base.construct, type(base).construct is not nn.Cell.construct, inputs, error)
        raise


def named_parameters(model: Any) -> list[tuple[str, ms.Parameter]]:
    """Trainable parameters, each once."""
    return [(name, p) for name, p in unwrap(model).parameters_and_names() if p.requires_grad]


def is_buffer(name: str) -> bool:
    """Running statistics of norms: MindSpore keeps them as parameters that are not trained."""
    return name.rpartition(".")[2] in ("moving_mean", "moving_variance")


def num_parameters(model: Any, trainable: bool = False) -> int:
    return sum(
        p.size
        for name, p in unwrap(model).parameters_and_names()
        if (p.requires_grad or not trainable) and not is_buffer(name)
    )


def num_matrix_parameters(model: Any) -> int:
    """Number of parameters in matrix products: without embeddings, which are look-ups."""
    base = unwrap(model)
    tables = {id(c.embedding_table) for _, c in base.cells_and_names() if isinstance(c, nn.Embedding)}
    return sum(p.size for name, p in base.parameters_and_names() if id(p) not in tables and not is_buffer(name))


def embedding_rows(model: Any) -> dict[str, tuple[int, int | None]]:
    """Rows of every embedding by its name, and the row that is reserved for padding, or None."""
    cells = unwrap(model).cells_and_names()
    return {name: (cell.vocab_size, cell.padding_idx) for name, cell in cells if isinstance(cell, nn.Embedding)}


def decay_names(model: Any) -> list[str]:
    """Parameters that weight decay applies to: all except biases and the weights of norms."""
    names = []
    for prefix, cell in unwrap(model).cells_and_names():
        if isinstance(cell, _NORMS) or "norm" in type(cell).__name__.lower():
            continue
        for name, _ in cell.parameters_and_names(expand=False):
            if "bias" not in name:
                names.append(f"{prefix}.{name}" if prefix else name)
    return names


def recompute(model: Any, options: dict[str, Any] | None) -> None:
    """Discard activations in the forward pass and recompute them in the backward pass.

    Uses the model's own implementation if it has one; otherwise, each element of a CellList or SequentialCell is a
    block.
    """
    base = unwrap(model)
    if hasattr(base, "gradient_checkpointing_enable"):
        base.gradient_checkpointing_enable()
        return
    blocks = _blocks(base)
    if not blocks:
        raise UnsupportedError(
            "gradient_checkpointing (recompute) needs a model built from blocks: an nn.CellList or "
            "nn.SequentialCell whose elements have weights, or a method gradient_checkpointing_enable. "
            f"{type(base).__name__} has none of them: put its layers into an nn.CellList, or remove the argument."
        )
    for block in blocks:
        dropout.replay_in(block)


def _blocks(cell: nn.Cell) -> list[nn.Cell]:
    """Outermost elements of cell lists that have weights."""
    if isinstance(cell, (nn.CellList, nn.SequentialCell)):
        return [child for child in cell.cells() if next(iter(child.get_parameters()), None) is not None]
    found: list[nn.Cell] = []
    for child in cell.cells():
        found.extend(_blocks(child))
    return found


def add_embedding_noise(model: Any, alpha: float) -> Callable[[], None]:
    """NEFTune: uniform noise on the embeddings in training mode. The returned function removes it."""
    base = base_of(model)
    embeddings = base.get_input_embeddings() if hasattr(base, "get_input_embeddings") else None
    if embeddings is None:
        embeddings = next((cell for _, cell in base.cells_and_names() if isinstance(cell, nn.Embedding)), None)
    if embeddings is None:
        raise ModelError(
            f"neftune_noise_alpha adds noise to embeddings, but {type(base).__name__} has none. Remove it."
        )

    def noise(layer: nn.Cell, inputs: Any, output: ms.Tensor) -> ms.Tensor:
        if not layer.training:
            return output
        span = alpha / (output.shape[-2] * output.shape[-1]) ** 0.5
        return output + ms.Tensor((dropout.uniform(tuple(output.shape)) * 2 - 1) * span, output.dtype)

    return embeddings.register_forward_hook(noise).remove


def compiled(model: Any, backend: str | None, mode: str | None) -> Compiled:
    """The model compiled by MindSpore's graph compiler; what it cannot compile runs uncompiled, with a warning."""
    return Compiled(unwrap(model))


def check_compiler(backend: str | None) -> None:
    """Raise an error before training for another compiler than MindSpore's."""
    if backend is not None and backend not in ("ms.jit", "jit", "mindspore"):
        raise UnsupportedError(
            f"torch_compile_backend (torchdynamo) {backend!r} is a compiler of PyTorch; on MindSpore models are "
            "compiled with mindspore.jit. Remove it, and use torch_compile=True."
        )


def to_half(model: Any, kind: str) -> Any:
    """Weights in float16 ("fp16") or bfloat16 ("bf16"), except those of norms."""
    dtype = ms.float16 if kind == "fp16" else ms.bfloat16
    for _, cell in unwrap(model).cells_and_names():
        if not isinstance(cell, _NORMS):  # their kernels need weights and statistics of the same dtype
            for _, p in cell.parameters_and_names(expand=False):
                if p.dtype == ms.float32:
                    p.set_dtype(dtype)
    return model


def with_master_weights(model: Any, kind: str) -> Any:
    """O2: the weights stay in float32 here, and the engine runs the operations in half precision: see below."""
    return model


def compute_in_half(model: Any, kind: str) -> None:
    """O2: operations in half precision, except norms; the weights stay in float32 and are the master weights."""
    dtype = ms.float16 if kind == "fp16" else ms.bfloat16
    base = unwrap(model)
    base.to_float(dtype)
    for _, cell in base.cells_and_names():
        if isinstance(cell, _NORMS):
            cell.to_float(ms.float32)


def buffers(model: Any) -> list[Buffer]:
    """Its buffers, and the running statistics of norms, which MindSpore keeps as parameters."""
    found: list[Buffer] = []
    for prefix, cell in unwrap(model).cells_and_names():
        places = [(cell._buffers, key) for key in cell._buffers]
        places += [(cell._params, key) for key in cell._params if is_buffer(key)]
        found += [
            Buffer(f"{prefix}.{key}" if prefix else key, cell, place, key)
            for place, key in places
            if place[key] is not None
        ]
    return found


def copy_values(model: Any) -> list[Any]:
    return [(p.dtype, p.asnumpy().copy()) for p in unwrap(model).get_parameters()]


def restore_values(model: Any, values: list[Any]) -> None:
    """Restore the values from copy_values, with their dtypes."""
    for p, (dtype, value) in zip(unwrap(model).get_parameters(), values, strict=True):
        if p.dtype != dtype:
            p.set_dtype(dtype)
        ms.ops.assign(p, ms.Tensor(value))
