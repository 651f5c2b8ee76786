"""hyperparameter_search: many runs of one Trainer with other arguments."""

from collections.abc import Callable
from typing import Any

from ..compat.trainer_utils import default_compute_objective
from ..errors import ArgumentError, DataError, RefusedError
from ..integrations import search
from ..integrations.search import trials
from ..outputs import BestRun
from .data import TrainerData
from .parts import TrainerParts


class TrainerSearching(TrainerParts):
    """The search itself is in oneloop/search."""

    hp_search_backend: Any = None
    hp_space: Any = None
    compute_objective: Any = None
    hp_name: Any = None
    objective: Any = None  # of the trial that runs, or ran last
    _trial: Any = None  # search.trials.Trial while one runs
    _directions: tuple[str, ...] = ("minimize",)
    _several = False
    _trial_names: set[str] = set()

    def hyperparameter_search(
        self,
        hp_space: Callable[[Any], dict[str, Any]] | None = None,
        compute_objective: Callable[[dict[str, float]], Any] | None = None,
        n_trials: int | None = 20,
        direction: str | list[str] = "minimize",
        backend: Any = None,
        hp_name: Callable[[Any], str] | None = None,
        **kwargs: Any,
    ) -> BestRun | list[BestRun]:
        """Train with many settings; the best of them. model_init makes the model of each trial.

        hp_space(trial) returns arguments by name; compute_objective(metrics) the figure to minimize or maximize, or a
        list of figures for a list of directions, and then the trials that no other beats in all of them are returned.
        kwargs go to optuna.create_study and Study.optimize, or to ray.tune.run. See docs/search.md.
        """
        chosen = search.choose(backend)
        self._check_search(n_trials)
        self._directions, self._several = _directions(direction, kwargs)
        driver = search.driver(chosen)
        driver.check(self, kwargs)
        own, self._trial_names = self.args, set()
        self.hp_search_backend, self.hp_name = chosen, hp_name
        self.hp_space = hp_space or driver.default_space()
        self.compute_objective = compute_objective or default_compute_objective
        try:
            return driver.run(self, n_trials, kwargs)
        finally:
            self.args, self.hp_search_backend, self._trial = own, None, None

    def _check_search(self, n_trials: Any) -> None:
        if self.model_init is None:
            raise ArgumentError(
                "hyperparameter_search needs model_init, which makes a new model for each trial; the Trainer was given "
                "a model. Pass model_init=lambda: ... instead."
            )
        if n_trials is not None and (isinstance(n_trials, bool) or not isinstance(n_trials, int) or n_trials < 1):
            raise ArgumentError(
                f"n_trials={n_trials!r} is not possible; expected a whole number of at least 1, or None."
            )
        cls: Any = type(self)
        if self.eval_dataset is None and cls.get_eval_dataloader is TrainerData.get_eval_dataloader:
            raise DataError("hyperparameter_search compares trials by their evaluations: pass eval_dataset=")
        if self.args.resume_from_checkpoint is not None:
            raise ArgumentError(
                "resume_from_checkpoint: the trials of a search begin anew. A study of Optuna goes on with storage=, "
                "study_name= and load_if_exists=True."
            )
        if self.args.push_to_hub:
            raise RefusedError(
                "push_to_hub=True: every trial would push over the others. Search without it, then train with the best "
                "values and push."
            )

    def _report_to_hp_search(self, trial: Any, step: int, metrics: dict[str, float]) -> None:
        """After an evaluation within a trial: the search hears of it and may stop the trial."""
        if self._trial is not None:
            self._trial.report(self, step, metrics)


def _directions(direction: Any, kwargs: dict[str, Any]) -> tuple[tuple[str, ...], bool]:
    direction = kwargs.pop("directions", direction)
    several = isinstance(direction, (list, tuple))
    found = tuple(getattr(each, "value", each) for each in (direction if several else [direction]))
    if not found or any(each not in trials.DIRECTIONS for each in found):
        raise ArgumentError(
            f"direction={direction!r} is not possible; expected 'minimize', 'maximize', or a list with one of them for "
            "each objective."
        )
    return found, several
