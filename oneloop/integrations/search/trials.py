"""One trial of a search: its arguments, its folder, its evaluations and its objective."""

import copy
import difflib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...arguments.aliases import resolve
from ...arguments.fields import declared, stored_fields
from ...errors import ArgumentError, NonFiniteError, UnknownArgumentError, a_type
from ...formats import urls
from ...introspect import takes_trial
from ...outputs import plain_metrics
from ...secrets import clean
from ...trainer.core import core_of
from .state import search_of

if TYPE_CHECKING:
    from .methods import SearchMethods as Trainer

# Arguments that the Trainer read in its constructor, or that belong to the whole search.
FIXED = {
    *("output_dir", "output_url", "overwrite_output_dir", "logging_dir", "run_name", "resume_from_checkpoint"),
    *("report_to", "disable_tqdm", "log_level", "log_level_replica", "skip_memory_metrics", "full_determinism"),
    *("push_to_hub", "hub_model_id", "hub_strategy", "hub_token", "hub_private_repo", "hub_always_push"),
    *("hub_revision", "device_spec"),
}


@dataclass
class Trial:
    """`given` is passed to model_init and hp_name: Optuna's trial, or with Ray Tune the dict of values.

    `tell` reports an objective with the step and the metrics; it returns whether the trial should stop.
    """

    name: str
    values: dict[str, Any]
    params: dict[str, Any]
    given: Any
    report_to_search: Callable[[Any, int, dict[str, Any]], bool] = lambda objective, step, metrics: False
    make_model: Callable[["Trainer"], Any] | None = None
    objective: Any = None
    stopped: bool = field(default=False, init=False)

    def model(self, trainer: "Trainer") -> Any:
        made = trainer.call_model_init(self.given) if self.make_model is None else self.make_model(trainer)
        self.params |= getattr(self.given, "params", {})  # model_init may have drawn some
        return made

    def report(self, trainer: "Trainer", step: int, metrics: dict[str, Any]) -> None:
        """After an evaluation: the main process decides; a trial that should stop ends like any run."""
        if self.stopped:
            return

        def decide() -> tuple[Any, bool]:
            objective = objective_of(trainer, metrics)
            return objective, self.report_to_search(objective, step, metrics)

        self.objective, self.stopped = core_of(trainer).processes.run_on_main(decide, "compute_objective")
        trainer.objective = self.objective
        if self.stopped:
            trainer.control.should_training_stop = True


def run(trainer: "Trainer", trial: Trial) -> Any:
    """Train with the values of a trial; returns its objective. The Trainer's arguments are restored afterwards."""
    own = trainer.args
    trainer.args = arguments_for(own, trial.values, trial.name, takes_trial(trainer.model_init))
    search = search_of(trainer)
    search.begin(trial)
    trainer.objective = None
    try:
        trainer.train(trial=trial.given)
        if trial.objective is None:
            trial.report(trainer, trainer.state.global_step, trainer.evaluate())
            trial.stopped = False  # it has trained to the end
    except NonFiniteError:
        # A learning rate that is too high is a result too: the search continues.
        trial.objective = math.nan
    finally:
        trainer.args = own
        search.end()
    return trial.objective


def arguments_for(own: Any, values: Mapping[str, Any], name: str, for_model: bool) -> Any:
    """The arguments of a trial: a copy with its values, validated like arguments that a user passes."""
    cls: Any = type(own)
    args = copy.copy(own)
    set_values(args, known_values(cls, values, for_model))
    args.output_dir = os.path.join(own.output_dir, name)
    args.output_url = None if own.output_url is None else urls.join(own.output_url, name)
    args.run_name = own.run_name  # common to all trials; writers that name runs use state.trial_name
    if own.__dict__.get("_defaulted", {}).get("logging_dir") != own.logging_dir:
        args.logging_dir = os.path.join(own.logging_dir, name)
    args.validate()
    return args


def set_values(args: Any, known: dict[str, Any]) -> None:
    """Set arguments that a search may have chosen, by any of their names."""
    cls: Any = type(args)
    resolve(cls, known)  # raises if two aliases of one argument have different values
    stored = {item.name: getattr(args, item.name) for item in stored_fields(args)}
    resolved, _ = resolve(cls, {**stored, **known})
    aliases = cls.__aliases__
    for target in {aliases[n].target if n in aliases and n not in stored else n for n in known}:
        _check_free(cls, target)
        setattr(args, target, resolved[target])


def known_values(cls: Any, values: Mapping[str, Any], for_model: bool) -> dict[str, Any]:
    """The values that are arguments. Others are an error unless model_init accepts the trial."""
    if not isinstance(values, Mapping):
        raise ArgumentError(f"hp_space returned {a_type(values)}; expected a dict of argument names and values")
    known = {}
    for name, value in values.items():
        try:
            resolve(cls, {name: value})
        except UnknownArgumentError as error:
            names = [item.name for item in stored_fields(cls)] + list(cls.__aliases__)
            if for_model and not difflib.get_close_matches(str(name), names, n=1, cutoff=0.85):
                continue
            raise UnknownArgumentError(
                f"hp_space: {error} Values for the model are allowed if model_init accepts the trial."
            ) from None
        known[name] = value
    return known


def _check_free(cls: Any, target: str) -> None:
    rules = declared(cls).get(target)
    if target in FIXED or (rules is not None and rules[1]["group"] == "Many processes"):
        name = (rules[1]["public"] if rules else None) or target
        raise ArgumentError(
            f"hp_space: {name} cannot be searched, since all trials share it. Set it in TrainingArguments."
        )


def objective_of(trainer: "Trainer", metrics: dict[str, Any]) -> Any:
    """The objective that the search compares, or one per direction."""
    assert trainer.compute_objective is not None
    found = plain_metrics(trainer.compute_objective(dict(metrics)))
    several = isinstance(found, (list, tuple))
    numbers = list(found) if several else [found]
    wrong = [value for value in numbers if isinstance(value, bool) or not isinstance(value, (int, float))]
    state = search_of(trainer)
    wanted = len(state.directions)
    if wrong or len(numbers) != wanted or several != state.several:
        expected = f"a list of {wanted} numbers, one per direction" if state.several else "a number"
        raise ArgumentError(
            f"compute_objective returned {found!r}; expected {expected}. The evaluation has "
            f"{', '.join(sorted(metrics))}."
        )
    return [float(value) for value in numbers] if several else float(found)


def compared(results: dict[str, float], mode: str, scope: str) -> float:
    """The value by which Ray Tune compares a trial: its last, its best ("all") or a mean."""
    return results[mode if scope == "all" else scope]


def name_of(trainer: "Trainer", given: Any, number: Any) -> str:
    """The folder of a trial under output_dir, and its name in the writers."""
    if trainer.hp_name is None:
        return f"run-{number}"
    name = trainer.hp_name(given)
    if not isinstance(name, str) or not name or name in (".", "..") or os.path.basename(name) != name:
        raise ArgumentError(f"hp_name returned {name!r}; expected a folder name for this trial, as a string")
    names = search_of(trainer).names
    folder = next(each for each in (name, *(f"{name}-{i}" for i in range(2, len(names) + 3))) if each not in names)
    names.add(folder)
    return folder


def format_values(values: Mapping[str, Any]) -> str:
    """Values as text, for error messages."""
    return ", ".join(f"{name}={value!r}" for name, value in clean(values).items()) or "no values"
