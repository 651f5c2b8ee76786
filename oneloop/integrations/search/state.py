"""What a hyperparameter search keeps on the Trainer while it runs, and the checks before it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...errors import ArgumentError, DataError, ModelInitError, UnsupportedError
from ...extension import Extension
from ...introspect import is_overridden
from ...trainer.core import core_of

DIRECTIONS = ("minimize", "maximize")

if TYPE_CHECKING:
    from .trials import Trial


class SearchState(Extension):
    """Lives as long as the Trainer; each search begins with `start`."""

    def __init__(self, core: Any) -> None:
        super().__init__(core)
        self.trial: Trial | None = None  # the one that runs
        self.directions: tuple[str, ...] = ("minimize",)
        self.several = False  # objectives
        self.names: set[str] = set()  # of the trials so far

    def new_model(self, model_init: Callable[[], Any]) -> Any:
        return None if self.trial is None else self.trial.model(self.core.trainer)

    def start(self, direction: Any, options: dict[str, Any]) -> None:
        """`options` may have `directions`, as Optuna calls several."""
        direction = options.pop("directions", direction)
        self.several = isinstance(direction, (list, tuple))
        self.directions = tuple(getattr(each, "value", each) for each in (direction if self.several else [direction]))
        if not self.directions or any(each not in DIRECTIONS for each in self.directions):
            raise ArgumentError(
                f"direction={direction!r} is not possible; expected 'minimize', 'maximize', or a list with one of them "
                "for each objective."
            )
        self.names = set()

    def begin(self, trial: "Trial") -> None:
        self.trial = trial

    def end(self) -> None:
        self.trial = None


def search_of(trainer: Any) -> SearchState:
    """The state of the searches of this Trainer."""
    return core_of(trainer).extensions.of(SearchState)


def check(trainer: Any, n_trials: Any) -> None:
    """What a search needs of a Trainer."""
    if trainer.model_init is None:
        raise ModelInitError(
            "hyperparameter_search needs model_init, which makes a new model for each trial; the Trainer was given "
            "a model. Pass model_init=lambda: ... instead."
        )
    if n_trials is not None and (isinstance(n_trials, bool) or not isinstance(n_trials, int) or n_trials < 1):
        raise ArgumentError(f"n_trials={n_trials!r} is not possible; expected a whole number of at least 1, or None.")
    if trainer.eval_dataset is None and not is_overridden(trainer, "get_eval_dataloader"):
        raise DataError("hyperparameter_search compares trials by their evaluations: pass eval_dataset=")
    if trainer.args.resume_from_checkpoint is not None:
        raise ArgumentError(
            "resume_from_checkpoint: trials of a search start from scratch. To continue an Optuna study, pass "
            "storage=, study_name= and load_if_exists=True."
        )
    if trainer.args.push_to_hub:
        raise UnsupportedError(
            "push_to_hub=True: every trial would push over the others. Search without it, then train with the best "
            "values and push."
        )
