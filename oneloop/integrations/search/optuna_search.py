"""Search with Optuna: a study suggests values, trials report, and pruned trials stop at an evaluation."""

import inspect
import logging
from typing import TYPE_CHECKING, Any

import optuna

from ...distributed.preemption import Preempted
from ...errors import ArgumentError, ProcessLostError, SearchError, UnsupportedError
from ...introspect import takes_trial
from ...outputs import BestRun
from ...trainer.core import core_of
from . import trials
from .defaults import default_hp_space_optuna
from .state import search_of
from .trials import Trial

if TYPE_CHECKING:
    from .methods import SearchMethods as Trainer

logger = logging.getLogger(__name__)

_STUDY = set(inspect.signature(optuna.create_study).parameters) - {"direction", "directions"}
_OPTIMIZE = set(inspect.signature(optuna.Study.optimize).parameters) - {"self", "func", "n_trials"}


def default_space() -> Any:
    return default_hp_space_optuna


def check(trainer: "Trainer", options: dict[str, Any]) -> None:
    """Check the options before the search starts."""
    unknown = [name for name in options if name not in _STUDY | _OPTIMIZE]
    if unknown:
        raise ArgumentError(
            f"hyperparameter_search has no option {', '.join(unknown)} for Optuna; expected options of create_study "
            f"and optimize: {', '.join(sorted(_STUDY | _OPTIMIZE))}."
        )
    if options.get("n_jobs", 1) != 1:
        raise UnsupportedError(
            f"n_jobs={options['n_jobs']} is not supported: the threads would train in one Trainer at once. Start the "
            "script several times with the same storage, study_name and load_if_exists=True to share one study."
        )
    if not core_of(trainer).mesh.is_single and options.get("catch"):
        raise UnsupportedError(
            "catch is not supported with several processes: a trial that fails in one of them leaves the others in the "
            "middle of a step. Remove it, or search with one process."
        )


def run(trainer: "Trainer", n_trials: int | None, options: dict[str, Any]) -> BestRun | list[BestRun]:
    """Run n_trials more trials, or until the timeout; returns the best of the whole study."""
    if not core_of(trainer).mesh.is_main:
        return _run_other_process(trainer)
    search = _Search(trainer)
    study = optuna.create_study(**trainer_directions(trainer), **_part(options, _STUDY))
    try:
        study.optimize(search.objective, n_trials=n_trials, **_part(options, _OPTIMIZE))
    except Exception as error:
        search.end(f"{type(error).__name__}: {error}")
        if search.running is None or error is search.left:
            raise
        raise SearchError(
            f"trial {search.running.name} ({trials.format_values(search.running.values)}) failed: "
            f"{type(error).__name__}: {error}"
        ) from error
    if search.left is not None:
        raise search.left
    search.end(None)
    found = core_of(trainer).processes.run_on_main(lambda: _best(study), "the search")
    found = [each._replace(run_summary=study) for each in found]
    return found if search_of(trainer).several else found[0]


def trainer_directions(trainer: "Trainer") -> dict[str, Any]:
    state = search_of(trainer)
    return {"directions": state.directions} if state.several else {"direction": state.directions[0]}


def _part(options: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name in names}


class _Search:
    """The main process's part of each trial. It broadcasts the values to the others."""

    def __init__(self, trainer: "Trainer") -> None:
        self.trainer = trainer
        self.running: Trial | None = None  # the last trial that has started and not completed
        self.together = False  # all processes are running a trial
        self.left: BaseException | None = None  # the exception of a preemption signal

    def objective(self, given: optuna.Trial) -> Any:
        trainer, self.running = self.trainer, None
        assert trainer.hp_space is not None
        values = trainer.hp_space(given)
        trials.arguments_for(trainer.args, values, "x", takes_trial(trainer.model_init))
        name = trials.name_of(trainer, given, given.number)
        given.set_user_attr("arguments", {key: _plain(value) for key, value in values.items()})
        trial = self.running = Trial(
            name, values, dict(given.params), given, self.make_reporter(given), _shared_model_init(given)
        )
        core_of(trainer).processes.broadcast_object(("trial", name, values, trial.params, given.number))
        self.together = True
        try:
            objective = trials.run(trainer, trial)
        except (Preempted, KeyboardInterrupt) as signalled:
            self.left = signalled
            given.study.stop()  # even if `catch` includes this error
            given.study.enqueue_trial(given.params)  # retried when the study resumes
            raise
        self.together = False
        if trial.stopped:
            raise optuna.TrialPruned
        return objective

    def make_reporter(self, given: optuna.Trial) -> Any:
        if search_of(self.trainer).several:  # Optuna can only prune by a single objective
            return lambda objective, step, metrics: False

        def tell(objective: float, step: int, metrics: dict[str, Any]) -> bool:
            given.report(objective, step)
            return given.should_prune()

        return tell

    def end(self, why: str | None) -> None:
        """Tell the other processes that the search is over. During a trial they detect the lost main process."""
        if not self.together:
            core_of(self.trainer).processes.broadcast_object(("end", why))


def _shared_model_init(given: Any) -> Any:
    """model_init may suggest further values: the main process runs it first and broadcasts them."""

    def make(trainer: "Trainer") -> Any:
        if core_of(trainer).mesh.is_single:
            return trainer.call_model_init(given)
        made: list[Any] = []

        def first() -> dict[str, Any]:
            made.append(trainer.call_model_init(given))
            return dict(given.params)

        params = core_of(trainer).processes.run_on_main(first, "model_init")
        if made:
            return made[0]
        return trainer.call_model_init(optuna.trial.FixedTrial(params, number=given.number))

    return make


def _run_other_process(trainer: "Trainer") -> Any:
    """In other processes: train the trials that the main process broadcasts until the search is over."""
    while True:
        what, *rest = core_of(trainer).processes.broadcast_object(None)
        if what == "end":
            break
        name, values, params, number = rest
        given = optuna.trial.FixedTrial(params, number=number)
        trials.run(trainer, Trial(name, values, params, given, make_model=_shared_model_init(given)))
    if rest[0] is not None:
        raise ProcessLostError(f"process 0 failed in the search, so this process stops too. Its error: {rest[0]}")
    found: list[BestRun] = core_of(trainer).processes.run_on_main(list, "the search")
    return found if search_of(trainer).several else found[0]


def _best(study: optuna.Study) -> list[BestRun]:
    done = [trial for trial in study.trials if trial.state == optuna.trial.TrialState.COMPLETE]
    if not done:
        states = ", ".join(f"{trial.number} {trial.state.name.lower()}" for trial in study.trials) or "none was run"
        raise SearchError(
            f"no trial of the search completed ({states}), so there is no best trial. A trial fails if its objective "
            "is not a number, for example after a learning rate that is too high, and is pruned if others do better."
        )
    several = len(study.directions) > 1
    best = study.best_trials if several else [study.best_trial]
    return [BestRun(str(each.number), each.values if several else each.values[0], each.params) for each in best]


def _plain(value: Any) -> Any:
    return value if isinstance(value, (int, float, str, bool, type(None))) else str(value)
