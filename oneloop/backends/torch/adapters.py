"""PEFT's adapters: which tensors of a model their files contain, and what else a resumed run needs.

PEFT selects tensors of the state dict and renames them, so each tensor of a file is recognised by identity. Prompt
encoders are the exception: PEFT calls them and stores their output.
"""

import contextlib
import warnings
import weakref
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from torch import nn

from ...errors import MissingPackageError, UnsupportedError
from .._common.helpers import preview

# Trained tensors that PEFT's files do not contain; written only if there are any.
REST = "adapter_rest.safetensors"

_keys: weakref.WeakKeyDictionary[nn.Module, dict[str, dict[str, str]]] = weakref.WeakKeyDictionary()


PREFIX = "base_model.model."  # of the keys in files; the tensors of a model without PEFT's wrapper have none


def is_adapter(model: nn.Module) -> bool:
    """Whether it trains and saves only an adapter: PEFT's wrapper is around it, or transformers' add_adapter or
    load_adapter has put one into the model itself. With several active ones it is saved as a whole, since transformers
    saves one."""
    inner: Any = model
    return is_wrapped(model) or (
        bool(getattr(inner, "_hf_peft_config_loaded", False)) and len(inner.active_adapters()) == 1
    )


def is_wrapped(model: nn.Module) -> bool:
    """Whether PEFT's wrapper is around the base model."""
    return any(base.__name__ == "PeftModel" and base.__module__.startswith("peft.") for base in type(model).__mro__)


def prepends_prompt(model: Any) -> bool:
    """Whether PEFT puts virtual tokens before the inputs, and ignored labels before the labels."""
    if not is_wrapped(model) or model.active_peft_config.task_type != "CAUSAL_LM":
        return False
    return model.active_peft_config.peft_type in ("PROMPT_TUNING", "P_TUNING", "MULTITASK_PROMPT_TUNING")


def stored(model: Any) -> list[str]:
    """The adapters that are saved: all of a PEFT model, the active one that is in a transformers model."""
    return list(model.peft_config) if is_wrapped(model) else list(model.active_adapters())


def encoders(model: nn.Module) -> dict[str, nn.Module]:
    """The prompt encoders by adapter: prompt tuning, prefix tuning, P-tuning."""
    found = model._modules.get("prompt_encoder")
    return {} if found is None else dict(found.named_children())


@contextlib.contextmanager
def encoders_in_eval_mode(model: nn.Module) -> Iterator[None]:
    """A context for PEFT's calls of prompt encoders: in training mode, dropout would draw random numbers, and the
    stored prompt would be a random one."""
    training = [module for encoder in encoders(model).values() for module in encoder.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def keys_of(model: nn.Module, adapter: str) -> dict[str, str]:
    """Key in the file of an adapter, without PREFIX if the model has none -> name of the tensor in the model."""
    known = _keys.setdefault(model, {})
    if adapter not in known:  # it may ask the Hub whether the embeddings were resized, so only once
        known[adapter] = _select(model, adapter)[0]
    return known[adapter]


def computed_keys(model: nn.Module, adapter: str) -> list[str]:
    """Keys in its file whose tensors are computed from those of the model; the prompts of encoders aside."""
    return [] if adapter in encoders(model) else _select(model, adapter)[1]


def _select(model: nn.Module, adapter: str) -> tuple[dict[str, str], list[str]]:
    from peft import get_peft_model_state_dict

    own = model.state_dict()
    names = {id(value): name for name, value in own.items()}
    with warnings.catch_warnings(), encoders_in_eval_mode(model):
        warnings.simplefilter("ignore")  # save_pretrained repeats them
        found = get_peft_model_state_dict(model, state_dict=own, adapter_name=adapter)
    keys = {key: names[id(value)] for key, value in found.items() if id(value) in names}
    return keys, [key for key in found if key not in keys]


def load(model: nn.Module, tensors: dict[str, Any], adapter: str = "default") -> None:
    """Load the tensors of a file."""
    from peft import set_peft_model_state_dict

    set_peft_model_state_dict(model, tensors, adapter_name=adapter)


def check_installed(directory: Any) -> None:
    if find_spec("peft") is None:
        raise MissingPackageError(f"loading the adapter in {directory} needs peft: pip install peft")


def check_computed(model: Any) -> None:
    """Raise an error if a file holds what PEFT computes from complete weights, where they are sharded."""
    for name in stored(model):
        computed = computed_keys(model, name)
        if computed:
            raise UnsupportedError(
                f"PEFT computes what it stores of a {model.peft_config[name].peft_type.value} adapter "
                f"({preview(computed)}) from complete weights, but sharding stage2 and stage3 shard them. Use "
                "sharding='stage1', or remove sharding."
            )


def encoder_parameters(model: nn.Module) -> set[nn.Parameter]:
    """Those of prompt encoders, which PEFT also calls outside of the model's forward pass, to save its prompts."""
    return {p for encoder in encoders(model).values() for p in encoder.parameters()}


def lora_layers(module: nn.Module) -> Iterator[tuple[str, str]]:
    """The layers that LoRA has put into a layer: lora_A or lora_B, and the name of the adapter."""
    for part in ("lora_A", "lora_B"):
        layers = module._modules.get(part)
        yield from ((part, name) for name in (layers or nn.ModuleDict())._modules)


def names_in_files(model: Any) -> set[str]:
    """Names of all tensors that can be restored from the files of the adapters."""
    found = {name for adapter in stored(model) for name in keys_of(model, adapter).values()}
    for adapter, encoder in encoders(model).items():
        if set(encoder.state_dict()) == {"embedding.weight"}:  # its output is its weight
            found.add(f"prompt_encoder.{adapter}.embedding.weight")
    return found


def names_of_rest(model: Any) -> list[str]:
    """Names of what training changes, but PEFT does not store: the layers of a prompt encoder, layers of the base model
    that were unfrozen, running means."""
    known = names_in_files(model)
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    base = model.get_base_model() if is_wrapped(model) else model
    if not getattr(base, "is_quantized", False):  # its weights may be buffers
        names += [name for name, _ in model.named_buffers()]
    own = model.state_dict()
    return [name for name in names if name in own and name not in known]
