"""What dividing sequences needs to know about a transformers model, and which models it does not fit.

The layers are found by a forward pass over a few tokens: they are the outermost ModuleList around the modules that call
attention by the AttentionInterface. A second pass, divided, has to return the same: whatever mixes positions outside of
attention is found before the first step.
"""

import contextlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ... import libraries
from ...distributed.collectives import ProcessGroup
from ...errors import UnsupportedError
from .models import base_of, eval_mode, restore_mode

if TYPE_CHECKING:
    from .sequence_division import SequenceDivision

ARGUMENT = "sequence_parallel_size"
OTHERWISE = f"Remove {ARGUMENT}, or divide the model another way: sharding, tensor_parallel_size."
RECORDING = "sequence_parallel_recording"
_UNDIVIDED = ("output_hidden_states", "output_attentions")


@dataclass(frozen=True)
class DividedModel:
    """A model, the module that is called with tokens, and its layers."""

    name: str
    backbone: Any
    layers: list[Any]
    attention: list[nn.Module]
    implementation: str
    is_causal: bool

    @cached_property
    def configs(self) -> list[Any]:
        """Those that name the attention function, each once."""
        found = [self.backbone.config, *(module.config for module in self.attention if hasattr(module, "config"))]
        return list({id(config): config for config in found}.values())

    @cached_property
    def input_names(self) -> list[str]:
        return list(inspect.signature(self.backbone.forward).parameters)

    @cached_property
    def _layer_names(self) -> dict[int, str]:
        return {id(module): str(i) for i, layer in enumerate(self.layers) for module in layer.modules()}

    def layer_of(self, module: nn.Module) -> str:
        return self._layer_names.get(id(module), "")

    # -- inputs

    def cannot_divide(self, inputs: dict[str, Any]) -> str | None:
        """Why these are computed whole, by every process of the axis; None if they are divided."""
        if inputs.get("past_key_values") is not None or self._wants("use_cache", inputs):
            return "it has a cache (use_cache=True), as in generation"
        for name in _UNDIVIDED:
            if self._wants(name, inputs):
                return f"{name}=True"
        if not isinstance(inputs.get("attention_mask"), (torch.Tensor, type(None))):
            return "its attention_mask is no tensor"
        return None

    def _wants(self, name: str, inputs: dict[str, Any]) -> bool:
        given = inputs.get(name)
        return bool(getattr(self.backbone.config, name, False) if given is None else given)

    @staticmethod
    def length_of(inputs: dict[str, Any]) -> int:
        tokens = inputs.get("input_ids")
        return (inputs["inputs_embeds"] if tokens is None else tokens).shape[1]

    def padded(self, inputs: dict[str, Any], length: int, whole: int) -> dict[str, Any]:
        """The inputs with padding behind each sequence, which is ignored: causal attention does not look ahead, and for
        any other there is a mask."""
        found = {name: _padded_input(name, value, length, whole) for name, value in inputs.items()}
        if not self.is_causal and found.get("attention_mask") is None:
            tokens = inputs.get("input_ids")
            tokens = inputs["inputs_embeds"] if tokens is None else tokens
            mask = torch.ones(tokens.shape[:2], dtype=torch.long, device=tokens.device)
            found["attention_mask"] = _padded_input("attention_mask", mask, length, whole)
        return found


def _padded_input(name: str, value: Any, length: int, whole: int) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    missing = whole - length
    if name == "position_ids" and value.shape[-1] == length:  # the last document goes on
        more = torch.arange(1, missing + 1, device=value.device, dtype=value.dtype)
        return torch.cat([value, value[..., -1:] + more], -1)
    if name == "attention_mask" and value.ndim == 4:
        return _padded_mask(value, missing)
    if value.ndim >= 2 and value.shape[1] == length:
        return torch.cat([value, value.new_zeros(value.shape[0], missing, *value.shape[2:])], 1)
    return value


def _padded_mask(mask: torch.Tensor, missing: int) -> torch.Tensor:
    """A mask of (rows, heads, tokens, tokens). A padding token sees itself: a softmax over nothing is undefined."""
    never = False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
    wide = nn.functional.pad(mask, (0, missing, 0, missing), value=never)
    places = torch.arange(mask.shape[-1], wide.shape[-1], device=mask.device)
    wide[..., places, places] = True if mask.dtype == torch.bool else 0
    return wide


# -- finding it


def find(model: nn.Module, axis: ProcessGroup) -> DividedModel:
    """The model's parts; UnsupportedError names what cannot be divided."""
    base: Any = base_of(model)
    name, config = type(base).__name__, getattr(base, "config", None)
    _check_kind(base, name, config)
    with _quietly(base):
        queries = _recorded(base, name)
        found = _locate(base, name, queries)
        for module, (heads, kv_heads) in queries.values():
            _check_heads(name, module, heads, kv_heads, axis.size)
        return found


def check(model: DividedModel, division: "SequenceDivision") -> None:
    """Compute a few tokens whole and divided. A collective of the axis."""
    tokens = _tokens(model.backbone, 2 * division.axis.size + 1)
    with _quietly(model.backbone):
        whole = _hidden(model.backbone, tokens)
        division.attended.clear()
        try:
            with division:
                parts = _hidden(model.backbone, tokens)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise UnsupportedError(
                f"{ARGUMENT}: {model.name} cannot compute a part of a sequence: {type(error).__name__}: "
                f"{str(error).splitlines()[0][:200]}. {OTHERWISE}"
            ) from error
    for number, layer in enumerate(model.layers):
        if str(number) not in division.attended:
            raise UnsupportedError(
                f"{ARGUMENT}: layer {number} of {model.name} ({type(layer).__name__}) does not call attention "
                f"through transformers' AttentionInterface, so it would see only its part of a sequence. {OTHERWISE}"
            )
    seen = tokens["attention_mask"].bool()
    scale = whole[seen].abs().max().item()
    rounding = 1e-4 if whole.dtype == torch.float32 else 5e-2
    difference = (whole[seen] - parts[seen]).abs().max().item()
    if not difference <= rounding * (scale + 1e-6):
        raise UnsupportedError(
            f"{ARGUMENT}: {model.name} mixes positions outside of its attention: divided sequences give hidden states "
            f"that differ by {difference:.3g} (of {scale:.3g}). {OTHERWISE}"
        )


def _check_kind(base: Any, name: str, config: Any) -> None:
    implementation = getattr(config, "_attn_implementation", None)
    if implementation is None or not hasattr(base, "get_input_embeddings"):
        raise UnsupportedError(
            f"{ARGUMENT}: {name} is not a transformers model. Sequences are divided by replacing the attention "
            f"function of its AttentionInterface. {OTHERWISE}"
        )
    if config.is_encoder_decoder or getattr(config, "add_cross_attention", False):
        raise UnsupportedError(
            f"{ARGUMENT}: {name} has cross attention, from one sequence to another, which is not divided. {OTHERWISE}"
        )
    if implementation == "eager":
        raise UnsupportedError(
            f"{ARGUMENT}: {name} has attn_implementation='eager', which is not in transformers' AttentionInterface. "
            "Load it with attn_implementation='sdpa' or another one, if it has any; else remove "
            f"{ARGUMENT}."
        )
    if getattr(config, "output_router_logits", False):
        raise UnsupportedError(
            f"{ARGUMENT}: {name} has an auxiliary loss over the experts of all tokens (output_router_logits=True), but "
            f"each process has its part of them. Set output_router_logits=False, or remove {ARGUMENT}."
        )


def _check_heads(name: str, module: str, heads: int, kv_heads: int, size: int) -> None:
    if heads % size or heads % kv_heads:
        raise UnsupportedError(
            f"{ARGUMENT}={size}: the {heads} attention heads of {name} ({module}) cannot be divided by {size}. Use a "
            f"divisor of {heads}."
        )


def _locate(base: Any, name: str, queries: dict[int, Any]) -> DividedModel:
    paths = [path for path, _ in queries.values()]
    modules = dict(base.named_modules())
    lists = {_list_around(path, modules) for path in paths}
    if not paths or None in lists or len(lists) > 1:
        raise UnsupportedError(
            f"{ARGUMENT}: {name} does not call attention through transformers' AttentionInterface in one list of "
            f"layers{f' ({paths[0]})' if paths else ''}. {OTHERWISE}"
        )
    (where,) = lists
    assert where is not None
    parts = where.split(".")
    owners = [modules[".".join(parts[:count])] for count in range(len(parts))]
    backbone = next(owner for owner in reversed(owners) if _takes_tokens(owner))
    attention = [modules[path] for path in paths]
    is_causal = all(getattr(module, "is_causal", False) for module in attention)
    layers = list(modules[where].children())
    return DividedModel(name, backbone, layers, attention, base.config._attn_implementation, is_causal)


def _takes_tokens(module: Any) -> bool:
    return hasattr(module, "config") and "input_ids" in inspect.signature(module.forward).parameters


def _list_around(path: str, modules: dict[str, nn.Module]) -> str | None:
    parts = path.split(".")
    names = (".".join(parts[:count]) for count in range(1, len(parts)))
    return next((name for name in names if isinstance(modules[name], nn.ModuleList)), None)


# -- forward passes over a few tokens


def _recorded(base: Any, name: str) -> dict[int, tuple[str, tuple[int, int]]]:
    """By module that calls attention: its path, and its query and key-value heads."""
    implementation = base.config._attn_implementation
    own = libraries.models().attention(implementation)
    if own is None:
        raise UnsupportedError(
            f"{ARGUMENT}: attn_implementation={implementation!r} of {name} is not in transformers' "
            f"AttentionInterface. Load it with attn_implementation='sdpa', or remove {ARGUMENT}."
        )
    calls: dict[int, tuple[str, tuple[int, int]]] = {}
    paths = {id(module): path for path, module in base.named_modules()}

    def record(module: nn.Module, query: Any, key: Any, *given: Any, **options: Any) -> Any:
        calls[id(module)] = paths[id(module)], (query.shape[1], key.shape[1])
        return own(module, query, key, *given, **options)

    libraries.models().add_attention(RECORDING, record, masks_of=implementation)
    configs = {id(m.config): m.config for m in base.modules() if hasattr(m, "config")}
    switched = [c for c in configs.values() if getattr(c, "_attn_implementation_internal", None) == implementation]
    for config in switched:
        config._attn_implementation_internal = RECORDING
    try:
        base.base_model(**_tokens(base, 3))
    except TypeError as error:
        raise UnsupportedError(
            f"{ARGUMENT}: {name} cannot be called with input_ids and attention_mask alone ({error}). {OTHERWISE}"
        ) from error
    finally:
        for config in switched:
            config._attn_implementation_internal = implementation
    return calls


def _tokens(model: Any, length: int) -> dict[str, torch.Tensor]:
    """Two rows, the second of which is padded on the left."""
    weight = model.get_input_embeddings().weight
    ids = (torch.arange(2 * length, device=weight.device) * 7 + 1) % weight.shape[0]
    mask = torch.ones(2, length, dtype=torch.long, device=weight.device)
    mask[1, 0] = 0
    return {"input_ids": ids.view(2, length), "attention_mask": mask}


def _hidden(backbone: Any, tokens: dict[str, torch.Tensor]) -> torch.Tensor:
    outputs = backbone(**tokens)
    return outputs[0] if isinstance(outputs, tuple) else outputs.last_hidden_state


@contextlib.contextmanager
def _quietly(model: nn.Module) -> Iterator[None]:
    """A forward pass that changes nothing: no gradients, no dropout."""
    training = eval_mode(model)
    try:
        with torch.no_grad():
            yield
    finally:
        restore_mode(training)
