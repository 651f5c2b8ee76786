"""Search with Ray Tune: trials run in the workers of a cluster, and a scheduler may stop them at an evaluation."""

import inspect
import math
import os
from typing import TYPE_CHECKING, Any

import ray
from ray import tune

from ...errors import ArgumentError, SearchError, UnsupportedError
from ...introspect import takes_trial
from ...outputs import BestRun
from ...trainer.core import core_of
from . import trials
from .defaults import default_hp_space_ray
from .ray_worker import OBJECTIVE, TrainerTrial
from .state import search_of
from .trainer_pickle import pack

if TYPE_CHECKING:
    from .methods import SearchMethods as Trainer

_OWN = {"run_or_experiment", "config", "num_samples", "metric", "mode"}
# A trial writes its Trainer's checkpoints, which Ray Tune does not manage.
_CHECKPOINTS = {
    *("checkpoint_config", "keep_checkpoints_num", "checkpoint_score_attr", "checkpoint_freq", "checkpoint_at_end"),
    *("restore", "resume", "resume_config", "reuse_actors", "export_formats"),
}
_RUN = {name for name in inspect.signature(tune.run).parameters if not name.startswith("_")} - _OWN - _CHECKPOINTS


def default_space() -> Any:
    return default_hp_space_ray


def check(trainer: "Trainer", options: dict[str, Any]) -> None:
    """Check the options before the search starts."""
    refused = sorted(_CHECKPOINTS & options.keys())
    if refused:
        raise UnsupportedError(
            f"{', '.join(refused)} is not supported: Ray Tune neither writes nor reads the checkpoints of a trial. "
            "Each trial saves to its own folder under output_dir, according to save_strategy and save_total_limit."
        )
    unknown = [name for name in options if name not in _RUN]
    if unknown:
        raise ArgumentError(
            f"hyperparameter_search has no option {', '.join(unknown)} for Ray Tune; expected options of ray.tune.run: "
            f"{', '.join(sorted(_RUN))}."
        )
    core = core_of(trainer)
    if search_of(trainer).several:
        raise UnsupportedError(
            "Ray Tune compares trials by a single objective; for several directions use backend='optuna'."
        )
    if not core.mesh.is_single:
        raise UnsupportedError(
            f"{core.mesh.size} processes were launched, but Ray Tune starts the processes of its trials "
            "itself. Start the script once, without a launcher, or use backend='optuna'."
        )
    _check_scheduler(trainer, options.get("scheduler"))


def _check_scheduler(trainer: "Trainer", scheduler: Any) -> None:
    if scheduler is None or type(scheduler).__name__ == "FIFOScheduler" or scheduler == "fifo":
        return
    named = scheduler if isinstance(scheduler, str) else type(scheduler).__name__
    if named.startswith(("PopulationBased", "pbt", "PB2", "pb2", "ResourceChanging", "resource_changing")):
        raise UnsupportedError(
            f"scheduler={named} is not supported: it changes running trials, which requires checkpoints of Ray Tune. "
            "Use a scheduler that stops trials, such as ASHAScheduler."
        )
    if trainer.args.eval_strategy == "no":
        raise ArgumentError(
            f"scheduler={named} stops trials based on evaluations, but eval_strategy is 'no'. Set eval_strategy to "
            "'epoch' or 'steps'."
        )


def run(trainer: "Trainer", n_trials: int | None, options: dict[str, Any]) -> BestRun:
    """Run n_trials trials, or as many as time_budget_s allows; returns the best according to args.ray_scope."""
    if n_trials is None and options.get("time_budget_s") is None and options.get("stop") is None:
        raise ArgumentError("n_trials=None would never end; expected a number, or time_budget_s in seconds.")
    assert trainer.hp_space is not None
    space = trainer.hp_space(None)
    # Values are sampled in the cluster; an invalid name is reported here.
    trials.known_values(type(trainer.args), space, takes_trial(trainer.model_init))
    mode = "min" if search_of(trainer).directions[0] == "minimize" else "max"
    raises = options.pop("raise_on_failed_trial", True)
    given = {"resources_per_trial": _resources(trainer)} | options
    if not {"storage_path", "local_dir", "storage_filesystem"} & given.keys():
        given["storage_path"] = os.path.join(os.path.abspath(trainer.args.output_dir), "ray")
    own = trainer.args.output_dir
    trainer.args.output_dir = os.path.abspath(own)  # workers have a different working directory
    try:
        packed = pack(trainer, ray.cloudpickle.dumps)
    finally:
        trainer.args.output_dir = own
    if "scheduler" in given or "search_alg" in given:
        given |= _named(given, mode)
    analysis = tune.run(
        tune.with_parameters(TrainerTrial, packed=packed),
        config=space,
        num_samples=-1 if n_trials is None else n_trials,
        raise_on_failed_trial=False,
        **given,
    )
    failed = [trial for trial in analysis.trials if trial.status == "ERROR"]
    if failed and (raises or len(failed) == len(analysis.trials)):
        raise SearchError(_failure_message(failed))
    return _best(analysis, mode, trainer.args.ray_scope)


def _named(given: dict[str, Any], mode: str) -> dict[str, Any]:
    """metric and mode, unless the user set them on the scheduler or search algorithm: Ray rejects both."""
    configured = [
        getattr(given.get(name), attribute, None)
        for name in ("scheduler", "search_alg")
        for attribute in ("metric", "_metric")
    ]
    return {} if any(configured) else {"metric": OBJECTIVE, "mode": mode}


def _resources(trainer: "Trainer") -> dict[str, float]:
    return {"cpu": 1, "gpu": 1} if trainer.args.n_gpu else {"cpu": 1}


def _failure_message(failed: list[Any]) -> str:
    """A message about the first failure, with the trial's values."""
    first = failed[0]
    error = first.get_error() if hasattr(first, "get_error") else None
    cause: Any = getattr(error, "cause", None) or error
    lines = str(cause).strip().splitlines() or ["its process died"]
    more = f", and {len(failed) - 1} more failed" if len(failed) > 1 else ""
    return f"trial run-{first.trial_id} ({trials.format_values(first.config)}) failed: {lines[-1]}{more}"


def _best(analysis: Any, mode: str, scope: str) -> BestRun:
    best = analysis.get_best_trial(OBJECTIVE, mode, scope)
    results = {} if best is None else best.metric_analysis.get(OBJECTIVE, {})
    figure = trials.compared(results, mode, scope) if results else math.nan
    if best is None or math.isnan(figure):
        raise SearchError(
            "no trial of the search has a numeric objective, so there is no best trial. A learning rate that is too "
            "high can cause this."
        )
    return BestRun(best.trial_id, figure, dict(best.config), analysis)
