"""One folder per framework, with the same files and the same function names in each.

Nothing outside this package imports torch, paddle or mindspore. A backend is found from the type of the model;
before there is a model, from the launcher's variables and from what is already imported.
"""

import importlib
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from ..compat import mode
from ..distributed.world import world
from ..errors import ModelError, RefusedError
from ._common.environment import prepare

prepare()

NAMES = ("torch", "paddle", "mindspore")
MODEL_CLASSES = {"torch": "torch.nn.Module", "paddle": "paddle.nn.Layer", "mindspore": "mindspore.nn.Cell"}
MINDTORCH = "mindtorch"  # what `import mindnlp` puts in the place of torch, on tensors of MindSpore


def under_mindnlp() -> bool:
    """Whether torch is mindtorch in this process."""
    return MINDTORCH in sys.modules


def load(name: str) -> ModuleType:
    """The backend package of that name. Under mindnlp tensors of torch and of MindSpore are mindtorch's."""
    if under_mindnlp() and name in ("torch", "mindspore"):
        name = MINDTORCH
    if name not in (*NAMES, MINDTORCH):
        raise RefusedError(f"there is no backend {name!r}; oneloop has {', '.join(NAMES)}")
    return importlib.import_module(f"{__name__}.{name}")


def name_of(model: Any) -> str | None:
    """The framework that an object's class comes from, read off its base classes without importing anything."""
    for base in type(model).__mro__:
        qualified = f"{base.__module__}.{base.__qualname__}"
        if qualified == "torch.nn.modules.module.Module":
            return "torch"
        if qualified == "mindtorch.nn.modules.module.Module":
            return MINDTORCH
        if base.__qualname__ == "Layer" and base.__module__.startswith("paddle."):
            return "paddle"
        if base.__qualname__ == "Cell" and base.__module__.startswith("mindspore."):
            return "mindspore"
    return None


def of_model(model: Any) -> ModuleType:
    """The backend that trains this model, or an error that says what a model can be."""
    name = name_of(model)
    if name is None and any(base.__module__.startswith("mindnlp.core.") for base in type(model).__mro__):
        raise RefusedError(
            f"{type(model).__name__} is a model of MindNLP 0.4, whose modules are neither MindSpore's nor mindtorch's. "
            "Use MindNLP 0.5, where mindnlp.transformers has the same models, or write it as a mindspore.nn.Cell."
        )
    if name is None:
        raise ModelError(
            f"the model is a {type(model).__module__}.{type(model).__qualname__}; expected an instance of "
            f"{', '.join(MODEL_CLASSES.values())}. Pass the model object itself"
            + (" (you passed a class: call it first)." if isinstance(model, type) else ".")
        )
    if name == "mindspore" and under_mindnlp():
        raise RefusedError(
            f"{type(model).__name__} is a mindspore.nn.Cell, and mindnlp is imported, which changes MindSpore's "
            "tensors. Train it in a process that does not import mindnlp, or write it as a torch.nn.Module."
        )
    return load(name)


def guess() -> str | None:
    """The backend that arguments should assume before a model is seen; None when nothing tells."""
    if under_mindnlp():
        return MINDTORCH
    launcher = world().launcher
    if launcher:
        return launcher
    imported = [name for name in NAMES if name in sys.modules]
    if "paddle" in imported and mode.follows_only("paddlenlp"):  # whatever else its libraries have imported
        return "paddle"
    if imported:
        return imported[0]
    installed = [name for name in NAMES if find_spec(name) is not None]
    return installed[0] if installed else None


def of_optimizer(optimizer: Any) -> ModuleType:
    """The backend of an optimizer, from the module that its class comes from."""
    for base in type(optimizer).__mro__:
        name = base.__module__.split(".")[0]
        if name in (*NAMES, MINDTORCH):
            return load(name)
    return load(guess() or "torch")
