"""Parameter groups of optimizers that treat some parameters of a model in another way: Muon, GaLore and APOLLO."""

import contextlib
from collections.abc import Iterable
from typing import Any

from torch import nn

from ...errors import ArgumentError
from ...optim.target_modules import check_target_module_exists
from .._common.helpers import parameter_groups
from .models import decay_names, named_parameters, unwrap


class TargetGroups(list):
    """Parameter groups in which the targets, given by their ids, have options of their own.

    As a list, the groups with the usual weight decay; `divide` does the same to other groups of these parameters.
    """

    def __init__(self, model: nn.Module, targets: set[int], options: dict[str, Any], weight_decay: float) -> None:
        self.targets, self.options = targets, options
        usual = parameter_groups(named_parameters(model), set(decay_names(model)), weight_decay)
        super().__init__(self.divide(usual))

    def divide(self, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """First the groups without the targets, then those of the targets."""
        others = [group | {"params": [p for p in group["params"] if id(p) not in self.targets]} for group in groups]
        mine = [
            group | self.options | {"params": [p for p in group["params"] if id(p) in self.targets]} for group in groups
        ]
        return others + [group for group in mine if group["params"]]


def hidden_matrices(model: nn.Module, wanted: Any) -> set[int]:
    """The ids of the parameters for Muon: matrices of `wanted` modules (optim_target_modules); without these, all that
    belong neither to an embedding nor to the head of the model."""
    model = unwrap(model)
    if wanted:
        modules = [module for name, module in model.named_modules() if name and _matches(wanted, name, module)]
        found = _ids(p for module in modules for p in _matrices(module))
    else:
        modules = [module for module in model.modules() if _matrices(module)]
        tables = [module for module in modules if isinstance(module, (nn.Embedding, nn.EmbeddingBag))]
        found = _ids(p for module in modules for p in _matrices(module))
        found -= _ids(p for module in tables for p in module.parameters())
        # Modules are in the order of their definition, so that the last one is usually the head. It may be tied to an
        # embedding.
        found -= _head(model) or _ids(p for module in modules[-1:] for p in _matrices(module))
    if not found:
        raise ArgumentError(
            "optim='muon' found no matrix to update: the model has none between its embeddings and its head, or "
            "optim_target_modules matches none. Name modules in optim_target_modules, or use optim='adamw_torch'."
        )
    return found


def linear_weights(model: nn.Module, wanted: Any, optim: str) -> set[int]:
    """The ids of the weights of linear layers that optim_target_modules names, for GaLore and APOLLO."""
    linear = [(name, module) for name, module in unwrap(model).named_modules() if isinstance(module, nn.Linear)]
    found = _ids(module.weight for name, module in linear if _matches(wanted, name, module))
    if not found:
        raise ArgumentError(
            f"optim_target_modules={wanted!r} matches no linear layer of the model, and optim={optim!r} works on these "
            f"only. The model has {', '.join(name for name, _ in linear[:6]) or 'none'}."
        )
    return found


def _matches(wanted: Any, name: str, module: nn.Module) -> bool:
    if isinstance(wanted, str) and wanted.replace("_", "-") == "all-linear":
        return isinstance(module, nn.Linear)
    return bool(check_target_module_exists(wanted, name))


def _matrices(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters(recurse=False) if p.dim() == 2]


def _ids(parameters: Iterable[nn.Parameter]) -> set[int]:
    return {id(p) for p in parameters}


def _head(model: nn.Module) -> set[int]:
    """The ids of the parameters after the hidden layers, for models that tell: those outside of the base model of a
    model of transformers, and its output embeddings."""
    found: set[int] = set()
    base = getattr(model, getattr(model, "base_model_prefix", None) or "", None)
    if isinstance(base, nn.Module) and base is not model:
        found |= _ids(model.parameters()) - _ids(base.parameters())
    output = None
    with contextlib.suppress(AttributeError, NotImplementedError):
        output = model.get_output_embeddings()
    return found | (_ids(output.parameters()) if isinstance(output, nn.Module) else set())
