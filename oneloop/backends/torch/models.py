"""The functions on models that the core uses."""

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import nn

from ...errors import ArgumentError, ModelError, UnsupportedError
from .._common import helpers, label_shift
from .._common.buffers import Buffer
from .._common.modes import outermost_in_eval
from .adapters import is_adapter as is_adapter
from .adapters import is_wrapped, prepends_prompt

HALF_LEVELS = ("O0", "O1", "O3")  # of fp16_opt_level; the others are mapped to O1 with a warning
NEAREST_HALF = "half weights with float32 master weights; the closest level, O1 (autocast),"
_PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)
_NONE: dict[str, Any] = {}
_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase, nn.LocalResponseNorm)


def unwrap(model: nn.Module) -> nn.Module:
    """The user's module without torch.compile, data-parallel wrappers and DeepSpeed's engine."""
    while True:
        # Called for every micro-batch: a failing getattr of a module costs more than all the rest of this.
        modules = vars(model).get("_modules", _NONE)
        inner = modules.get("_orig_mod")
        if inner is None and "module" in modules and (isinstance(model, _PARALLEL) or _is_deepspeed_engine(model)):
            inner = modules["module"]
        if inner is None:
            return model
        model = inner


def _is_deepspeed_engine(model: nn.Module) -> bool:
    """Whether this is DeepSpeed's engine, judged by its class name, so that the package is not imported."""
    return any(
        base.__name__ == "DeepSpeedEngine" and base.__module__.partition(".")[0] == "deepspeed"
        for base in type(model).__mro__
    )


def base_of(model: nn.Module) -> nn.Module:
    """The user's model without wrappers and adapters: the one whose forward has the names of the inputs."""
    model = unwrap(model)
    return model.get_base_model() if is_wrapped(model) else model


def tensor_parallel_size(model: nn.Module) -> int:
    """The number of processes over which its layers are divided already; 1 for a whole model."""
    if "torch.distributed.tensor" not in sys.modules:
        return 1
    from . import tensor_division  # it imports this module

    return tensor_division.size_of(model)


def config_of(model: nn.Module) -> Any:
    """The model's configuration object, or None."""
    return getattr(unwrap(model), "config", None)


def forward_of(model: nn.Module) -> Callable:
    """The method that calling the model runs."""
    return base_of(model).forward


def forward_parameters(model: nn.Module) -> list[str] | None:
    """Names that forward accepts; None if it accepts anything (only *args or **kwargs)."""
    return helpers.parameter_names(base_of(model).forward)


def label_names(model: nn.Module) -> list[str]:
    """The names of the model's labels."""
    return helpers.label_names(forward_parameters(model), type(base_of(model)).__name__)


def shifts_labels(model: nn.Module) -> bool | None:
    """Whether the model's loss compares position i with label i+1, as causal language models do; None if it declares
    nothing, and it has to be computed.

    Your own model can declare it with a class attribute `shifts_labels = True`.
    """
    if prepends_prompt(unwrap(model)):  # the last virtual token is compared with the first label
        return False
    base = base_of(model)
    return label_shift.declared_shift(base, base.forward, torch.from_numpy)


def guess_label_shift(model: nn.Module) -> bool:
    """A guess, for a model that declares nothing and whose loss cannot be computed beforehand."""
    return label_shift.guess_label_shift(type(base_of(model)))


def counts_ignored(criterion: Any) -> bool:
    """Whether a criterion's mean includes ignored labels: never in torch."""
    return False


def train_mode(model: nn.Module, every_layer: bool = False) -> None:
    # A wrapper is created in training mode, whatever the mode of the model in it.
    if every_layer or not model.training or not unwrap(model).training:
        model.train()


def layers_in_eval(model: nn.Module) -> list[str]:
    """Names of the outermost layers to train that are in evaluation mode, in a model in training mode."""

    def trains(module: nn.Module) -> bool:
        return not isinstance(module, _NORMS) and any(p.requires_grad for p in module.parameters(recurse=False))

    return outermost_in_eval(unwrap(model), nn.Module.named_children, trains)


def eval_mode(model: nn.Module) -> list[nn.Module]:
    """Switch to evaluation mode; returns the modules that were in training mode, for restore_mode."""
    training = [module for module in model.modules() if module.training]
    if training:
        model.eval()
    return training


def restore_mode(training: list[nn.Module]) -> None:
    """Back to training mode, except modules that were in evaluation mode before: a frozen batch norm stays frozen."""
    for module in training:
        module.training = True


def invoke(model: Callable, inputs: Any) -> Any:
    """Call the model with a batch: by keyword for a mapping, by position for a tuple."""
    try:
        return model(**inputs) if isinstance(inputs, Mapping) else helpers.call(model, inputs)
    except TypeError as error:
        if isinstance(model, nn.Module):
            base = base_of(model)
            helpers.explain_call(base, base.forward, type(base).forward is not nn.Module.forward, inputs, error)
        raise


def named_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Trainable parameters, each once."""
    return [(name, p) for name, p in unwrap(model).named_parameters() if p.requires_grad]


def num_parameters(model: nn.Module, trainable: bool = False) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad or not trainable)


def num_matrix_parameters(model: nn.Module) -> int:
    """Number of parameters in matrix products: without embeddings, which are look-ups."""
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    return sum(p.numel() for p in model.parameters() if id(p) not in embeddings)


def embedding_rows(model: nn.Module) -> dict[str, tuple[int, int | None]]:
    """Rows of every embedding by its name, and the row that is reserved for padding, or None."""
    named = unwrap(model).named_modules()
    return {name: (m.num_embeddings, m.padding_idx) for name, m in named if isinstance(m, nn.Embedding)}


def decay_names(model: nn.Module) -> list[str]:
    """Parameters that weight decay applies to: all except biases and the weights of norms."""
    names = []
    for prefix, module in unwrap(model).named_modules():
        if isinstance(module, _NORMS) or "norm" in type(module).__name__.lower():
            continue
        for name, _ in module.named_parameters(recurse=False):
            if "bias" not in name:
                names.append(f"{prefix}.{name}" if prefix else name)
    return names


def recompute(model: nn.Module, options: dict[str, Any] | None) -> None:
    """Discard activations in the forward pass and recompute them in the backward pass.

    Uses the model's own implementation if it has one; otherwise, each element of a ModuleList or Sequential is a
    block.
    """
    options = {"use_reentrant": False, **(options or {})}
    base = unwrap(model)
    if hasattr(base, "gradient_checkpointing_enable"):
        # Which layers, and where their inputs are kept: for the model's method, and no arguments of torch's function.
        chosen = {name: options.pop(name) for name in ("every_n_layers", "offload") if name in options}
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options, **chosen)
        if options["use_reentrant"] and hasattr(base, "enable_input_require_grads"):
            base.enable_input_require_grads()
        return
    if hasattr(base, "enable_recompute"):
        base.enable_recompute = True
        return
    blocks = _blocks(base)
    if not blocks:
        raise UnsupportedError(
            "gradient_checkpointing (recompute) needs a model built from blocks: an nn.ModuleList or "
            "nn.Sequential whose elements have weights, or a method gradient_checkpointing_enable. "
            f"{type(base).__name__} has none of them: put its layers into an nn.ModuleList, or remove the argument."
        )
    for block in blocks:
        if not hasattr(block, "_recomputed_forward"):
            block._recomputed_forward = block.forward
            block.forward = functools.partial(_recomputed, block, options)


def _recomputed(block: nn.Module, options: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    if not (block.training and torch.is_grad_enabled()):
        return block._recomputed_forward(*args, **kwargs)
    return torch.utils.checkpoint.checkpoint(block._recomputed_forward, *args, **options, **kwargs)


def _blocks(module: nn.Module) -> list[nn.Module]:
    """Outermost elements of module lists that have weights."""
    found: list[nn.Module] = []
    if isinstance(module, (nn.ModuleList, nn.Sequential)):
        return [child for child in module if next(child.parameters(), None) is not None]
    for child in module.children():
        found.extend(_blocks(child))
    return found


def add_embedding_noise(model: nn.Module, alpha: float) -> Callable[[], None]:
    """NEFTune: uniform noise on the embeddings in training mode. The returned function removes it."""
    base = base_of(model)
    embeddings = base.get_input_embeddings() if hasattr(base, "get_input_embeddings") else None
    embeddings = embeddings or next((m for m in base.modules() if isinstance(m, nn.Embedding)), None)
    if embeddings is None:
        raise ModelError(
            f"neftune_noise_alpha adds noise to embeddings, but {type(base).__name__} has none. Remove it."
        )

    def noise(layer: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        if not layer.training:
            return output
        span = alpha / (output.shape[-2] * output.shape[-1]) ** 0.5
        return output + torch.zeros_like(output).uniform_(-span, span)

    return embeddings.register_forward_hook(noise).remove


def compiled(model: nn.Module, backend: str | None, mode: str | None) -> nn.Module:
    """The model compiled with torch.compile."""
    options = {key: value for key, value in (("backend", backend), ("mode", mode)) if value}
    try:
        return torch.compile(model, **options)
    except RuntimeError as error:  # torch validates the mode
        raise ArgumentError(f"Invalid torch_compile_mode={mode!r}: {error}.") from error


def check_compiler(backend: str | None) -> None:
    """Raise an error that lists the known compilers before training if the compiler is unknown."""
    known = torch._dynamo.list_backends(None)
    if backend is not None and backend not in known:
        raise UnsupportedError(
            f"unknown torch_compile_backend (torchdynamo) {backend!r} for PyTorch {torch.__version__} on this "
            f"machine; use one of {', '.join(torch._dynamo.list_backends())}, or remove it."
        )


def to_half(model: nn.Module, kind: str) -> nn.Module:
    """Weights in float16 ("fp16") or bfloat16 ("bf16")."""
    return model.to(torch.float16 if kind == "fp16" else torch.bfloat16)


def with_master_weights(model: nn.Module, kind: str) -> NoReturn:
    raise UnsupportedError(f"torch has no {NEAREST_HALF} is what fp16_opt_level='O2' means here.")


def buffers(model: nn.Module) -> list[Buffer]:
    """Its buffers, by the names of state_dict."""
    return [
        Buffer(f"{prefix}.{key}" if prefix else key, module, module._buffers, key)
        for prefix, module in unwrap(model).named_modules()
        for key, value in module._buffers.items()
        if value is not None
    ]


def copy_values(model: nn.Module) -> list[torch.Tensor]:
    return [value.detach().clone() for value in (*model.parameters(), *model.buffers())]


def restore_values(model: nn.Module, values: list[torch.Tensor]) -> None:
    """Restore the values from copy_values, with their dtypes."""
    for target, value in zip((*model.parameters(), *model.buffers()), values, strict=True):
        target.data = value
