"""Readers of other Trainers' checkpoints: of mindnlp 0.4, whose files hold arrays, into models of MindSpore and of
mindtorch, and one that raises an error, for backends that read none. No framework."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from ..errors import CheckpointError
from . import mindnlp_checkpoint
from .parameter_groups import Loaded, Parameter

Modules = Callable[[Any], Iterable[tuple[str, Any]]]  # the name and the module, of each in a model


class UnsupportedCheckpointReader:
    """The functions of a backend's external_checkpoint.py; each raises the same error."""

    def __init__(self, words: str) -> None:
        self.words = words

    def _refuse(self, path: Path) -> NoReturn:
        raise CheckpointError(f"{path} was written by another trainer, but a run {self.words}")

    def load_weights(self, model: Any, path: Path, strategy: Any = None) -> NoReturn:
        self._refuse(path)

    def load_optimizer(self, optimizer: Any, model: Any, path: Path, strategy: Any = None) -> NoReturn:
        self._refuse(path)

    def scheduler_state(self, path: Path) -> NoReturn:
        self._refuse(path)

    def scaler_state(self, path: Path) -> NoReturn:
        self._refuse(path)

    def random_state(self, path: Path, rank: int, processes: int) -> NoReturn:
        self._refuse(path)


class ArrayReader:
    """The functions of a backend's external_checkpoint.py."""

    def __init__(
        self, weights: Any, layout: Callable[[Any], Any], modules: Modules, refused: UnsupportedCheckpointReader
    ) -> None:
        self.weights, self.layout, self.modules, self.refused = weights, layout, modules, refused

    def load_weights(self, model: Any, path: Path, strategy: Any = None) -> None:
        """Load the weights, which have torch's names."""
        self._check(path)
        own = {place.name: name for name, place in self.layout(model).items()}
        stored = mindnlp_checkpoint.weights(path)
        tensors = {own.get(name, name): raw.array() for name, raw in stored.items()}
        self.weights.load_model(model, tensors, {}, str(path))

    def load_optimizer(self, optimizer: Any, model: Any, path: Path, strategy: Any = None) -> Loaded:
        """Load moments and the number of updates, parameter by parameter."""
        self._check(path)
        common = {name: place.name for name, place in self.layout(model).items()}
        _, data = self.weights.optimizer_state(optimizer, model)
        mine = [group["names"] for group in data["groups"]]
        groups = mindnlp_checkpoint.Groups([[common.get(n, n) for n in names] for names in mine], data["groups"])
        parameters, shapes = self._described(model, common, {name for names in mine for name in names})
        loaded, arrays, options = mindnlp_checkpoint.optimizer(
            path, type(optimizer).__name__, parameters, shapes, groups
        )
        own = {there: here for here, there in common.items()}
        tensors = {}
        for key, array in arrays.items():
            name, field = key.rsplit(":", 1)
            tensors[f"{own.get(name, name)}:{field}"] = array
        kept = [
            group | {key: value for key, value in old.items() if key in group}
            for group, old in zip(data["groups"], options)
        ]
        self.weights.load_optimizer(optimizer, model, tensors, {"groups": kept, "values": {}}, str(path))
        return loaded

    def scheduler_state(self, path: Path) -> dict[str, Any]:
        self._check(path)
        return mindnlp_checkpoint.scheduler(path)

    def scaler_state(self, path: Path) -> None:
        """mindnlp stores none."""
        self._check(path)

    def random_state(self, path: Path, rank: int, processes: int) -> None:
        """mindnlp stores none."""
        self._check(path)

    def _described(
        self, model: Any, common: dict[str, str], trained: set[str]
    ) -> tuple[list[Parameter], dict[str, tuple[int, ...]]]:
        """The parameters that the optimizer trains, in the model's order and under torch's names, with their shapes."""
        classes = {prefix: type(module).__name__.lower() for prefix, module in self.modules(model)}
        tensors, _ = self.weights.model_tensors(model)
        found, shapes = [], {}
        for name, tensor in tensors.items():
            if name not in trained:
                continue
            around = [classes.get(name[:i], "") for i, letter in enumerate(name) if letter == "."]
            is_layer_norm = any(each == "layernorm" for each in around)
            is_norm = any(each.endswith("norm") for each in around)
            found.append(Parameter(common.get(name, name), True, in_layer_norm=is_layer_norm, in_norm=is_norm))
            shapes[common.get(name, name)] = tuple(tensor.shape)
        return found, shapes

    def _check(self, path: Path) -> None:
        if not mindnlp_checkpoint.wrote(path):
            self.refused.load_weights(None, path)
