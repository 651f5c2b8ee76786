"""The methods of the Trainer for a hyperparameter search."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...enums import HPSearchBackend
from ...outputs import BestRun
from ...protocols import Trial
from ...trainer.generic import Args_co, TrainerBase
from . import run
from .state import search_of

if TYPE_CHECKING:
    from ...trainer import Trainer as Base
else:
    Base = TrainerBase


class SearchMethods(Base[Args_co]):
    """A part of the Trainer, with the attributes that a search sets."""

    hp_search_backend: str | None = None
    hp_space: Callable[[Any], dict[str, Any]] | None = None
    compute_objective: Callable[[dict[str, float]], Any] | None = None
    hp_name: Callable[[Any], str] | None = None
    objective: float | list[float] | None = None  # of the current or last trial

    def hyperparameter_search(
        self,
        hp_space: Callable[[Any], dict[str, Any]] | None = None,
        compute_objective: Callable[[dict[str, float]], Any] | None = None,
        n_trials: int | None = 20,
        direction: str | list[str] = "minimize",
        backend: str | HPSearchBackend | None = None,
        hp_name: Callable[[Any], str] | None = None,
        **kwargs: Any,
    ) -> BestRun | Any:  # with several directions a list
        """Train with many settings, and return the best trial. model_init creates the model of each trial.

        Args:
            hp_space: A function of the trial that returns arguments by name. By default learning rate, epochs, seed
                and batch size.
            compute_objective: A function of the metrics that returns the value to minimize or maximize, or a list of
                values for a list of directions. By default the sum of the metrics, or the loss if there are none.
            n_trials: The number of trials; None for as many as the time allows.
            direction: minimize or maximize, or a list of these.
            backend: optuna or ray; by default the first that is installed.
            hp_name: A function of the trial that returns its name.
            kwargs: Arguments of optuna.create_study and Study.optimize, or of ray.tune.run. See docs/search.md.

        Returns:
            The best trial; with several directions, a list of the Pareto-optimal ones.
        """
        return run(self, hp_space, compute_objective, n_trials, direction, backend, hp_name, kwargs)

    def _report_to_hp_search(self, trial: Trial | None, step: int, metrics: dict[str, float]) -> None:
        """After an evaluation within a trial: report the metrics to the search, which may stop the trial."""
        running = search_of(self).trial
        if running is not None:
            running.report(self, step, metrics)
