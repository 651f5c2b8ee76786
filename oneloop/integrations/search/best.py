"""Training once more as the best trial of a search did: `trainer.train(trial=best)`."""

from typing import Any

from ...errors import ArgumentError
from ...extension import Extension
from ...outputs import BestRun
from . import trials
from .state import search_of


class BestTrials(Extension):
    """Sets the arguments of a trial that a search has returned, or that comes from Optuna's study."""

    def prepare_trial(self, trial: Any) -> Any:
        if search_of(self.trainer).trial is not None:
            return trial
        if isinstance(trial, list) and any(isinstance(each, BestRun) for each in trial):
            raise ArgumentError(
                f"train(trial=...) got the {len(trial)} trials of a search with several objectives; pass one of them"
            )
        given, values = _on_main(self.core, trial) if isinstance(trial, BestRun) else (trial, _arguments(trial))
        if values is not None:
            args = self.trainer.args
            trials.set_values(args, trials.known_values(type(args), values, True))
        return given


def _on_main(core: Any, best: BestRun) -> tuple[Any, dict[str, Any] | None]:
    """(what model_init receives, values): the main process has the study."""

    def find() -> tuple[Any, dict[str, Any] | None]:
        study = best.run_summary
        if not hasattr(study, "get_trials"):  # not Optuna's: all values are hyperparameters
            return dict(best.hyperparameters), dict(best.hyperparameters)
        trial = next(each for each in study.get_trials() if str(each.number) == best.run_id)
        return trial, _arguments(trial)

    found: tuple[Any, dict[str, Any] | None] = core.processes.run_on_main(find, "the best trial")
    return found


def _arguments(trial: Any) -> dict[str, Any] | None:
    """What hp_space returned in a trial of Optuna: a suggestion may have another name, or none."""
    found = getattr(trial, "user_attrs", {}).get("arguments")
    return found if isinstance(found, dict) else None
