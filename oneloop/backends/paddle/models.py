"""The functions on models that the core uses."""

import functools
import logging
import math
from collections.abc import Callable
from typing import Any

import paddle
from paddle import nn

from ...errors import ArgumentError, ModelError, UnsupportedError
from .._common import helpers, label_shift
from .._common.buffers import Buffer
from .._common.modes import outermost_in_eval
from .adapters import is_adapter
from .parts import whole_shape

HALF_LEVELS = ("O0", "O1", "O2", "O3")  # of fp16_opt_level
NEAREST_HALF = "half weights with float32 master weights; the closest level, O1 (autocast),"
_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.BatchNorm, nn.layer.norm._BatchNormBase, nn.layer.norm._InstanceNormBase)


class Compiled(nn.Layer):
    """A model compiled with paddle.jit.to_static. Unlike to_static itself, it does not change the model."""

    def __init__(self, model: nn.Layer, backend: str | None) -> None:
        super().__init__()
        self._orig_mod = model
        self.training = model.training
        self._static = paddle.jit.to_static(model.forward, backend=backend)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._static(*args, **kwargs)


def unwrap(model: nn.Layer) -> nn.Layer:
    """The user's layer without to_static and data-parallel wrappers."""
    while True:
        if isinstance(model, Compiled):
            model = model._orig_mod
        elif isinstance(model, paddle.DataParallel):
            model = model._layers
        else:
            return model


def base_of(model: nn.Layer) -> Any:
    """The user's model without wrappers and adapters: the one whose forward has the names of the inputs."""
    model = unwrap(model)
    return model.model if is_adapter(model) else model


def tensor_parallel_size(model: Any) -> int:
    """The number of processes over which its layers are divided already: one, since models arrive whole."""
    return 1


def config_of(model: nn.Layer) -> Any:
    """The model's configuration object, or None."""
    return getattr(unwrap(model), "config", None)


def forward_of(model: nn.Layer) -> Callable:
    """The method that calling the model runs."""
    return base_of(model).forward


def forward_parameters(model: nn.Layer) -> list[str] | None:
    """Names that forward accepts; None if it accepts anything (only *args or **kwargs)."""
    return helpers.parameter_names(base_of(model).forward)


def label_names(model: nn.Layer) -> list[str]:
    """The names of the model's labels."""
    return helpers.label_names(forward_parameters(model), type(base_of(model)).__name__)


def shifts_labels(model: nn.Layer) -> bool | None:
    """Whether the model's loss compares position i with label i+1; None if it declares nothing, and it has to be
    computed.

    A model can declare it with a class attribute `shifts_labels = True`.
    """
    base = base_of(model)
    return label_shift.declared_shift(base, base.forward, paddle.to_tensor)


def guess_label_shift(model: nn.Layer) -> bool:
    """A guess, for a model that declares nothing and whose loss cannot be computed beforehand. Unlike torch's, language
    models of Paddle's libraries expect labels that the dataset has already shifted."""
    return False


def counts_ignored(criterion: Any) -> bool:
    """Whether a criterion's mean includes ignored labels.

    Paddle's cross entropy divides by the number of labels that are not ignored only if ignore_index is not negative, or
    if classes have weights; with the usual -100 it divides by the number of all labels.
    """
    if not isinstance(criterion, nn.CrossEntropyLoss) or criterion.reduction != "mean":
        return False
    return criterion.ignore_index < 0 and criterion.weight is None


def train_mode(model: nn.Layer, every_layer: bool = False) -> None:
    # A wrapper is created in training mode, whatever the mode of the model in it.
    if every_layer or not model.training or not unwrap(model).training:
        model.train()


def layers_in_eval(model: nn.Layer) -> list[str]:
    """Names of the outermost layers to train that are in evaluation mode, in a model in training mode."""

    def trains(layer: nn.Layer) -> bool:
        own = layer.parameters(include_sublayers=False)
        return not isinstance(layer, _NORMS) and any(not p.stop_gradient for p in own)

    return outermost_in_eval(unwrap(model), nn.Layer.named_children, trains)


def eval_mode(model: nn.Layer) -> list[nn.Layer]:
    """Switch to evaluation mode; returns the layers that were in training mode, for restore_mode."""
    training = [layer for layer in model.sublayers(include_self=True) if layer.training]
    if training:
        model.eval()
    return training


def restore_mode(training: list[nn.Layer]) -> None:
    """Back to training mode, except layers that were in evaluation mode before: a frozen batch norm stays frozen."""
    for layer in training:
        layer.training = True


def invoke(model: Callable, inputs: Any) -> Any:
    """Call the model with a batch: by keyword for a mapping, by position for a tuple."""
    try:
        return helpers.call(model, inputs)
    except TypeError as error:
        if isinstance(model, nn.Layer):
            base = base_of(model)
            helpers.explain_call(base, base.forward, type(base).forward is not nn.Layer.forward, inputs, error)
        raise
    except NotImplementedError as error:
        if isinstance(model, nn.Layer) and type(base_of(model)).forward is nn.Layer.forward:
            helpers.explain_call(base_of(model), base_of(model).forward, False, inputs, error)
        raise


def named_parameters(model: nn.Layer) -> list[tuple[str, paddle.Tensor]]:
    """Trainable parameters, each once."""
    return [(name, p) for name, p in unwrap(model).named_parameters() if not p.stop_gradient]


def num_parameters(model: nn.Layer, trainable: bool = False) -> int:
    return sum(math.prod(whole_shape(p)) for p in model.parameters() if not (trainable and p.stop_gradient))


def num_matrix_parameters(model: nn.Layer) -> int:
    """Number of parameters in matrix products: without embeddings, which are look-ups."""
    layers = model.sublayers(include_self=True)
    embeddings = {id(layer._parameters["weight"]) for layer in layers if isinstance(layer, nn.Embedding)}
    return sum(math.prod(whole_shape(p)) for p in model.parameters() if id(p) not in embeddings)


def embedding_rows(model: nn.Layer) -> dict[str, tuple[int, int | None]]:
    """Rows of every embedding by its name, and the row that is reserved for padding, or None."""
    found = {}
    for name, layer in base_of(model).named_sublayers(include_self=True):
        if isinstance(layer, nn.Embedding):
            padding = layer._padding_idx
            rows = whole_shape(layer._parameters["weight"])[0]
            found[name] = (rows, None if padding is None or padding < 0 else padding)
    return found


def decay_names(model: nn.Layer) -> list[str]:
    """Parameters that weight decay applies to: all except biases and the weights of norms."""
    names = []
    for prefix, layer in unwrap(model).named_sublayers(include_self=True):
        if "norm" in type(layer).__name__.lower():
            continue
        for name, _ in layer.named_parameters(include_sublayers=False):
            if "bias" not in name:
                names.append(f"{prefix}.{name}" if prefix else name)
    return names


def recompute(model: nn.Layer, options: dict[str, Any] | None) -> None:
    """Discard activations in the forward pass and recompute them in the backward pass.

    Uses the model's own implementation if it has one (`enable_recompute`); otherwise, each element of a
    LayerList or Sequential is a block.
    """
    base = unwrap(model)
    flagged = [layer for layer in base.sublayers(include_self=True) if hasattr(layer, "enable_recompute")]
    if hasattr(base, "recompute_enable"):
        base.recompute_enable()
        return
    if flagged:
        for layer in flagged:
            layer.enable_recompute = True
        return
    blocks = _blocks(base)
    if not blocks:
        raise UnsupportedError(
            "recompute (gradient_checkpointing) needs a model built from blocks: a LayerList or Sequential "
            "whose elements have weights, or an attribute enable_recompute in one of its layers. "
            f"{type(base).__name__} has none of them: put its layers into a paddle.nn.LayerList, or remove "
            "the argument."
        )
    # Paddle warns at each step about blocks whose inputs need no gradient, such as the first one.
    logging.getLogger(_RECOMPUTE_LOGGER).addFilter(_without_chatter)
    # With hooks: Paddle's other implementation computes no gradients for the weights of a block unless an input has
    # some.
    options = {"use_reentrant": False, **(options or {})}
    for block in blocks:
        if not hasattr(block, "_recomputed_forward"):
            block._recomputed_forward = block.forward
            block.forward = functools.partial(_recomputed, block, options)


_RECOMPUTE_LOGGER = "paddle.distributed.fleet.utils.log_util"


def _without_chatter(record: logging.LogRecord) -> bool:
    return "None of the inputs to current recompute block need grad" not in record.getMessage()


def _recomputed(block: nn.Layer, options: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    if not (block.training and paddle.is_grad_enabled()):
        return block._recomputed_forward(*args, **kwargs)
    return paddle.distributed.fleet.utils.recompute(block._recomputed_forward, *args, **options, **kwargs)


def _blocks(layer: nn.Layer) -> list[nn.Layer]:
    """Outermost elements of layer lists that have weights."""
    if isinstance(layer, (nn.LayerList, nn.Sequential)):
        return [child for child in layer.children() if child.parameters()]
    return [block for child in layer.children() for block in _blocks(child)]


def add_embedding_noise(model: nn.Layer, alpha: float) -> Callable[[], None]:
    """NEFTune: uniform noise on the embeddings in training mode. The returned function removes it."""
    base = base_of(model)
    embeddings = base.get_input_embeddings() if hasattr(base, "get_input_embeddings") else None
    layers = base.sublayers(include_self=True)
    embeddings = embeddings or next((layer for layer in layers if isinstance(layer, nn.Embedding)), None)
    if embeddings is None:
        raise ModelError(
            f"neftune_noise_alpha adds noise to embeddings, but {type(base).__name__} has none. Remove it."
        )

    def noise(layer: nn.Layer, inputs: Any, output: paddle.Tensor) -> paddle.Tensor:
        if not layer.training:
            return output
        span = alpha / (output.shape[-2] * output.shape[-1]) ** 0.5
        return output + paddle.uniform(output.shape, output.dtype, -span, span)

    return embeddings.register_forward_post_hook(noise).remove


def compiled(model: nn.Layer, backend: str | None, mode: str | None) -> nn.Layer:
    """The model compiled with paddle.jit.to_static."""
    if mode is not None:
        raise ArgumentError(f"Invalid torch_compile_mode={mode!r}: Paddle's to_static has no modes. Remove it.")
    return Compiled(model, backend)


def check_compiler(backend: str | None) -> None:
    """Raise an error that lists the known compilers before training if the compiler is unknown."""
    known = ["CINN"] if paddle.is_compiled_with_cinn() else []
    if backend is not None and backend not in known:
        raise UnsupportedError(
            f"unknown torch_compile_backend (torchdynamo) {backend!r} for Paddle {paddle.__version__} on this "
            f"machine; {'use CINN, or ' if known else ''}remove it to run the graph with Paddle itself."
        )


def to_half(model: nn.Layer, kind: str) -> nn.Layer:
    """Weights in float16 ("fp16") or bfloat16 ("bf16")."""
    return model.to(dtype="float16" if kind == "fp16" else "bfloat16")


def with_master_weights(model: nn.Layer, kind: str) -> nn.Layer:
    """O2: weights in half precision, except norms; the optimizer has float32 master weights."""
    return paddle.amp.decorate(model, level="O2", dtype="float16" if kind == "fp16" else "bfloat16")


def buffers(model: nn.Layer) -> list[Buffer]:
    """Its buffers, and the running statistics of norms, which Paddle keeps as parameters."""
    found: list[Buffer] = []
    for prefix, layer in unwrap(model).named_sublayers(include_self=True):
        places = [(layer._buffers, key) for key in layer._buffers]
        places += [(layer._parameters, key) for key in layer._parameters if key in ("_mean", "_variance")]
        found += [
            Buffer(f"{prefix}.{key}" if prefix else key, layer, place, key)
            for place, key in places
            if place[key] is not None
        ]
    return found


def copy_values(model: nn.Layer) -> list[paddle.Tensor]:
    return [value.detach().clone() for value in (*model.parameters(), *model.buffers())]


def restore_values(model: nn.Layer, values: list[paddle.Tensor]) -> None:
    """Restore the values from copy_values, with their dtypes."""
    for target, value in zip((*model.parameters(), *model.buffers()), values, strict=True):
        target.value().get_tensor()._share_data_with(value.value().get_tensor())
