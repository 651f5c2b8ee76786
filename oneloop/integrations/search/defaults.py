"""Defaults of a search: spaces of hyperparameters, and the objective."""

from typing import Any

from ...errors import MissingPackageError

_RATES, _EPOCHS, _SEEDS, _BATCHES = (1e-6, 1e-4), (1, 5), (1, 40), [4, 8, 16, 32, 64]


def default_hp_space_optuna(trial: Any) -> dict[str, Any]:
    return {
        "learning_rate": trial.suggest_float("learning_rate", *_RATES, log=True),
        "num_train_epochs": trial.suggest_int("num_train_epochs", *_EPOCHS),
        "seed": trial.suggest_int("seed", *_SEEDS),
        "per_device_train_batch_size": trial.suggest_categorical("per_device_train_batch_size", _BATCHES),
    }


def default_hp_space_ray(trial: Any = None) -> dict[str, Any]:
    try:
        from ray import tune
    except ImportError as error:
        raise MissingPackageError("default_hp_space_ray requires Ray Tune: pip install 'ray[tune]'") from error
    return {
        "learning_rate": tune.loguniform(*_RATES),
        "num_train_epochs": tune.choice(list(range(_EPOCHS[0], _EPOCHS[1] + 1))),
        "seed": tune.randint(_SEEDS[0], _SEEDS[1] + 1),
        "per_device_train_batch_size": tune.choice(_BATCHES),
    }


def default_hp_space_wandb(trial: Any = None) -> dict[str, Any]:
    """The configuration of a W&B sweep, as plain data."""
    ranges = {"num_train_epochs": _EPOCHS, "seed": _SEEDS}
    numbers = {n: {"distribution": "int_uniform", "min": low, "max": high} for n, (low, high) in ranges.items()}
    return {
        "method": "random",
        "metric": {"name": "objective", "goal": "minimize"},
        "parameters": {
            "learning_rate": {"distribution": "uniform", "min": _RATES[0], "max": _RATES[1]},
            **numbers,
            "per_device_train_batch_size": {"values": _BATCHES},
        },
    }


def default_compute_objective(metrics: dict[str, float]) -> float:
    """The default objective of a search: the sum of all metrics, or the loss if there is nothing else."""
    rest = {
        key: value
        for key, value in metrics.items()
        if key not in ("eval_loss", "epoch") and not key.endswith(("_runtime", "_per_second", "_compilation_time"))
    }
    return sum(rest.values()) if rest else metrics["eval_loss"]
