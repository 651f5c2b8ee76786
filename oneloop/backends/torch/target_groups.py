"""Parameter groups of optimizers that treat some parameters of a model in another way: Muon, GaLore and APOLLO."""

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


def linear_weights(model: nn.Module, wanted: Any, optim: str) -> set[int]:
    """The ids of the weights of linear layers that optim_target_modules names, for GaLore and APOLLO."""
    linear = [(name, module) for name, module in unwrap(model).named_modules() if isinstance(module, nn.Linear)]
    found = ids(module.weight for name, module in linear if matches(wanted, name, module))
    if not found:
        raise ArgumentError(
            f"optim_target_modules={wanted!r} matches no linear layer of the model, and optim={optim!r} works on these "
            f"only. The model has {', '.join(name for name, _ in linear[:6]) or 'none'}."
        )
    return found


def matches(wanted: Any, name: str, module: nn.Module) -> bool:
    if isinstance(wanted, str) and wanted.replace("_", "-") == "all-linear":
        return isinstance(module, nn.Linear)
    return bool(check_target_module_exists(wanted, name))


def ids(parameters: Iterable[nn.Parameter]) -> set[int]:
    return {id(p) for p in parameters}
