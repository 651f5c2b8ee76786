"""Searches for hyperparameters: one small module for each library that proposes values."""

from importlib import import_module
from typing import Any

from ...arguments.packages import installed
from ...enums import HPSearchBackend
from ...errors import MissingPackageError, RefusedError

# name -> (module that is imported, what to install, the module of ours that drives it)
PACKAGES = {"optuna": ("optuna", "optuna", "optuna_search"), "ray": ("ray.tune", "'ray[tune]'", "ray_search")}


def _is_here(name: str) -> bool:
    module = PACKAGES[name][0]
    return installed(module.partition(".")[0]) and installed(module)


def choose(backend: Any) -> HPSearchBackend:
    """The library to search with: the one that was named, or the first that is installed."""
    if backend is None:
        here = [name for name in PACKAGES if _is_here(name)]
        if not here:
            commands = " or ".join(f"pip install {package}" for _, package, _ in PACKAGES.values())
            raise MissingPackageError(
                f"hyperparameter_search needs Optuna or Ray Tune, and neither is here: {commands}"
            )
        return HPSearchBackend(here[0])
    chosen = HPSearchBackend(backend)
    if chosen == "wandb":
        raise RefusedError(
            "backend='wandb': sweeps are proposed by the service and need an account, and are not driven by oneloop. "
            "Use 'optuna' or 'ray'; report_to='wandb' shows their trials there."
        )
    if not _is_here(chosen.value):
        package = PACKAGES[chosen.value][1]
        raise MissingPackageError(f"backend={chosen.value!r} needs a package that is not here: pip install {package}")
    return chosen


def driver(chosen: HPSearchBackend) -> Any:
    """The module that runs a search on it."""
    return import_module(f".{PACKAGES[chosen.value][2]}", __name__)
