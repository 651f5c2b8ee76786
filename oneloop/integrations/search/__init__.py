"""Hyperparameter search: one small module for each search library."""

from importlib import import_module
from typing import Any

from ...arguments.packages import installed
from ...enums import HPSearchBackend
from ...errors import MissingPackageError, UnsupportedError
from ...outputs import BestRun
from .defaults import default_compute_objective
from .state import check, search_of

# name -> (module to import, package to install, our module for it)
PACKAGES = {"optuna": ("optuna", "optuna", "optuna_search"), "ray": ("ray.tune", "'ray[tune]'", "ray_search")}


def _is_installed(name: str) -> bool:
    module = PACKAGES[name][0]
    return installed(module.partition(".")[0]) and installed(module)


def choose(backend: Any) -> HPSearchBackend:
    """The search library: the given one, or the first that is installed."""
    if backend is None:
        here = [name for name in PACKAGES if _is_installed(name)]
        if not here:
            commands = " or ".join(f"pip install {package}" for _, package, _ in PACKAGES.values())
            raise MissingPackageError(
                f"hyperparameter_search requires Optuna or Ray Tune, but neither is installed: {commands}"
            )
        return HPSearchBackend(here[0])
    chosen = HPSearchBackend(backend)
    if chosen == "wandb":
        raise UnsupportedError(
            "backend='wandb' is not supported: W&B sweeps are run by the service and need an account. "
            "Use 'optuna' or 'ray'; report_to='wandb' logs their trials to W&B."
        )
    if not _is_installed(chosen.value):
        package = PACKAGES[chosen.value][1]
        raise MissingPackageError(
            f"backend={chosen.value!r} requires a package that is not installed: pip install {package}"
        )
    return chosen


def driver(chosen: HPSearchBackend) -> Any:
    """The module that runs a search with it."""
    return import_module(f".{PACKAGES[chosen.value][2]}", __name__)


def run(
    trainer: Any,
    hp_space: Any,
    compute_objective: Any,
    n_trials: int | None,
    direction: Any,
    backend: Any,
    hp_name: Any,
    options: dict[str, Any],
) -> BestRun | list[BestRun]:
    """Trainer.hyperparameter_search."""
    chosen = choose(backend)
    check(trainer, n_trials)
    state = search_of(trainer)
    state.start(direction, options)
    library = driver(chosen)
    library.check(trainer, options)
    own = trainer.args
    trainer.hp_search_backend, trainer.hp_name = chosen, hp_name
    trainer.hp_space = hp_space or library.default_space()
    trainer.compute_objective = compute_objective or default_compute_objective
    try:
        return library.run(trainer, n_trials, options)
    finally:
        trainer.args, trainer.hp_search_backend = own, None
        state.end()
