"""Extensions: what stands on top of the core and takes part in the runs of a Trainer.

An extension is a class with the hooks that it needs; `register` makes each Trainer that is created afterwards have one
of its own. The core calls the hooks and knows nothing else of it.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar


class Extension:
    """Created with the Trainer, and lives as long. Its hooks do nothing."""

    trial: Any = None  # of a search, while it runs: with `given` (what train() got), `name` and `params`

    def __init__(self, core: Any) -> None:
        self.core, self.trainer = core, core.trainer

    # -- the Trainer

    def callbacks(self) -> list[Any]:
        """Callbacks that the arguments ask for; they come before those of the user."""
        return []

    def callbacks_changed(self) -> None:
        """The Trainer has its callbacks, or got another one."""

    def created(self) -> None:
        """The Trainer is nearly complete: only on_init_end follows."""

    def evaluation_loader(self, loader: Any) -> Any:
        """A loader that was made for an evaluation, or what is used in its place."""
        return loader

    # -- a run

    def before_train(self) -> None:
        """train() was called; the arguments have been checked."""

    def prepare_trial(self, trial: Any) -> Any:
        """What train(trial=...) was given, or what model_init receives in its place."""
        return trial

    def new_model(self, model_init: Callable[[], Any]) -> Any:
        """The model of a new run, of a Trainer that has model_init; None: whatever model_init returns."""
        return None

    def run_ended(self) -> None:
        """The last step is done, and everything has been saved."""

    # -- checkpoints

    def output_directory(self, run: Any) -> Any:
        """A subclass of checkpoint.output_directory.OutputDirectory for a new run, which keeps it in another place too;
        None: the local disk alone."""
        return None

    def checkpoint_saved(self, state: Any) -> None:
        """A checkpoint has been committed; `state` is the TrainerState in it."""

    def model_saved(self) -> None:
        """The user has called save_model, which has written the model."""

    def collect_state(self) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """What a checkpoint has to store of this process: plain data, None for nothing, and arrays by name."""
        return None, {}

    def restore_state(self, stored: dict[str, Any], arrays: dict[str, Any]) -> None:
        """Restore the state in the process that stored it."""

    def restore_models(self, path: Path) -> None:
        """Restore models that do not depend on the number of processes from a checkpoint."""

    def models_requested(self) -> list[str]:
        """What will save the model at the end of training by other ways than the Trainer's. Processes agree on it."""
        return []

    def saving_models(self, requested: Iterable[str], save: Callable[[str], None]) -> AbstractContextManager:
        """A context in which these save the model with this function."""
        return nullcontext()

    def gradient_state(self) -> Any:
        """An object in which updates set `sync_gradients`: whether a micro-batch is the last of its update; or None."""
        return None

    # -- data and random numbers

    @property
    def generates_data(self) -> bool:
        """Whether the Trainer generates its training data for several steps at once."""
        return False

    @property
    def shares_python_random(self) -> bool:
        """Whether Python's `random` has to be the same in all processes."""
        return False


class ArgumentsExtension:
    """What takes part in TrainingArguments: one for the process. Its hooks do nothing."""

    def created(self, args: Any) -> None:
        """Arguments have been made and validated."""

    def distributed_state(self, args: Any) -> Any:
        """An object of the launching library that describes this process."""

    def hf_deepspeed_config(self, args: Any) -> Any:
        """A view of the DeepSpeed configuration; None without one."""

    def deepspeed_plugin(self, args: Any) -> Any:
        """A plugin for the DeepSpeed configuration; None without one."""


_of_arguments = ArgumentsExtension()


def extend_arguments(extension: ArgumentsExtension) -> None:
    """Replace the current ArgumentsExtension."""
    global _of_arguments
    _of_arguments = extension


def of_arguments() -> ArgumentsExtension:
    """The current ArgumentsExtension."""
    return _of_arguments


Kind = TypeVar("Kind", bound=Extension)

_registered: list[type[Extension]] = []


def register(*kinds: type[Extension]) -> None:
    """Have Trainers that are created from now on use these extensions."""
    _registered.extend(kind for kind in kinds if kind not in _registered)


class Extensions:
    """The extensions of one Trainer."""

    def __init__(self, core: Any) -> None:
        self.every = [kind(core) for kind in _registered]

    def of(self, kind: type[Kind]) -> Kind:
        """The extension of this class."""
        return next(each for each in self.every if isinstance(each, kind))

    def callbacks(self) -> list[Any]:
        return [callback for each in self.every for callback in each.callbacks()]

    def callbacks_changed(self) -> None:
        for each in self.every:
            each.callbacks_changed()

    def created(self) -> None:
        for each in self.every:
            each.created()

    def evaluation_loader(self, loader: Any) -> Any:
        for each in self.every:
            loader = each.evaluation_loader(loader)
        return loader

    def before_train(self) -> None:
        for each in self.every:
            each.before_train()

    def prepare_trial(self, trial: Any) -> Any:
        for each in self.every:
            trial = each.prepare_trial(trial)
        return trial

    def new_model(self, model_init: Callable[[], Any]) -> Any:
        """The model of the first extension that has one, or that of model_init."""
        for each in self.every:
            if (model := each.new_model(model_init)) is not None:
                return model
        return model_init()

    @property
    def trial(self) -> Any:
        return next((each.trial for each in self.every if each.trial is not None), None)

    def gradient_state(self) -> Any:
        """The gradient state of the first extension that has one, or one that nobody reads."""
        found = (state for each in self.every if (state := each.gradient_state()) is not None)
        return next(found, None) or SimpleNamespace(sync_gradients=True)

    def output_directory(self, run: Any) -> Any:
        """That of the first extension that has one."""
        return next((found for each in self.every if (found := each.output_directory(run)) is not None), None)

    def run_ended(self) -> None:
        for each in self.every:
            each.run_ended()

    def checkpoint_saved(self, state: Any) -> None:
        for each in self.every:
            each.checkpoint_saved(state)

    def model_saved(self) -> None:
        for each in self.every:
            each.model_saved()

    def collect_state(self) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """The states of all; None if no extension has any."""
        stored: dict[str, Any] | None = None
        arrays: dict[str, Any] = {}
        for each in self.every:
            state, tensors = each.collect_state()
            stored = stored if state is None else {**(stored or {}), **state}
            arrays |= tensors
        return stored, arrays

    def restore_state(self, stored: dict[str, Any], arrays: dict[str, Any]) -> None:
        for each in self.every:
            each.restore_state(stored, arrays)

    def restore_models(self, path: Path) -> None:
        for each in self.every:
            each.restore_models(path)

    @property
    def generates_data(self) -> bool:
        return any(each.generates_data for each in self.every)

    @property
    def shares_python_random(self) -> bool:
        return any(each.shares_python_random for each in self.every)
