"""The errors that oneloop raises on purpose. Each message says what was wrong, what was expected and what to do."""

import logging
import os
import sysconfig
from types import TracebackType
from typing import Any

from .secrets import clean_text

logger = logging.getLogger(__name__)

FULL_TRACEBACK = "ONELOOP_FULL_TRACEBACK"  # an environment variable: 1 shows all frames
_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_INSTALLED = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class OneloopError(Exception):
    """Base class of the errors that oneloop raises on purpose. No message contains a secret."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*(clean_text(each) if isinstance(each, str) else each for each in args), **kwargs)


class ArgumentError(OneloopError, ValueError):
    """An argument has an invalid value, or two arguments contradict each other."""


class UnknownArgumentError(ArgumentError, TypeError):
    """There is no argument of this name."""


class MissingMetricError(ArgumentError, KeyError):
    """An evaluation does not have the metric that the arguments name."""

    __str__ = Exception.__str__  # KeyError would show the message in quotes


class UnsupportedError(OneloopError, ValueError):
    """The argument exists, but this backend, device or release does not support it."""


class MissingPackageError(UnsupportedError, ImportError):
    """A required package is not installed."""


class ClassGivenError(ArgumentError, NotImplementedError):
    """A class was passed where its instance is expected."""


class InvalidTypeError(ArgumentError, TypeError):
    """What was passed to a Trainer is of a type that cannot be used."""


class ConflictError(ArgumentError, RuntimeError):
    """Two things were passed to a Trainer that cannot be combined."""


class EarlyStoppingError(ArgumentError, AssertionError):
    """Early stopping lacks a metric or evaluations."""


class DataError(OneloopError, ValueError):
    """The dataset, a batch or a collator is invalid."""


class UnknownDatasetError(DataError, KeyError):
    """There is no dataset of this name."""

    __str__ = Exception.__str__


class ModelError(OneloopError, ValueError, RuntimeError):
    """The model is invalid or unsupported."""


class NoGradientsError(ModelError):
    """No parameter gets a gradient: the loss depends on no trainable one, or there is none when the optimizer should
    step."""


class ModelInitError(ArgumentError, ModelError):
    """model_init cannot be called."""


class CheckpointError(OneloopError, ValueError):
    """A checkpoint cannot be written, is incomplete or corrupt, or does not match the run."""


class DiskError(OSError, CheckpointError):
    """A directory or file cannot be written: the disk is full or read-only, or the path is not a directory."""

    def __init__(self, *args: Any) -> None:  # OSError's does not call that of the next base
        super().__init__(*(clean_text(each) if isinstance(each, str) else each for each in args))

    def __str__(self) -> str:
        return self.strerror or ""


class StorageError(DiskError):
    """Object storage cannot be reached, or rejected a request."""


class HubError(OneloopError, RuntimeError):
    """The Hub cannot be reached, or rejected an upload."""


class NonFiniteError(OneloopError, FloatingPointError):
    """A loss or gradient is NaN or infinite."""


class ReplayError(OneloopError, RuntimeError):
    """Gradients that were computed twice are not the same (verify_steps)."""


class LossSpikeError(OneloopError, RuntimeError):
    """Loss spikes continue after the run has returned to its last checkpoint several times."""


class ProcessLostError(OneloopError, RuntimeError):
    """Another process of the run has died, hung or failed, so this process cannot continue."""


class SearchError(OneloopError, RuntimeError):
    """A trial of a hyperparameter search failed, or no trial completed."""


class EvaluationInterrupted(OneloopError):
    """A signal (preemption) interrupted an evaluation during training."""


# -- messages


def a_type(value: object) -> str:
    """The name of a value's type with its article, for messages: "a Tensor", "an IterableDataset"."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}"


# -- tracebacks


def shorten(error: BaseException) -> BaseException:
    """The same error without the frames of this package, for those that the user has to mend. Its cause is shown if
    the user's code has a part in it."""
    if os.environ.get(FULL_TRACEBACK, "") not in ("", "0"):
        return error
    error.__traceback__ = _without(error.__traceback__, (_PACKAGE,))
    cause = error.__cause__
    if cause is not None:
        cause.__traceback__ = _without(cause.__traceback__, (_PACKAGE, *_INSTALLED))
        cause.__context__ = None
        if cause.__traceback__ is None:  # still error.__context__, for debuggers
            error.__cause__, error.__context__, error.__suppress_context__ = None, cause, True
    return error


def _without(traceback: TracebackType | None, folders: tuple[str, ...]) -> TracebackType | None:
    """A traceback without the frames of files in these folders."""
    kept = []
    while traceback is not None:
        file, module = traceback.tb_frame.f_code.co_filename, traceback.tb_frame.f_globals.get("__name__", "")
        is_generated = file == "<string>" and module.startswith(f"{__package__}.")  # __init__ of a dataclass
        if not file.startswith(folders) and not is_generated:
            kept.append(traceback)
        traceback = traceback.tb_next
    rest = None
    for each in reversed(kept):
        rest = TracebackType(rest, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return rest


def add_note(error: BaseException, note: str) -> None:
    """Add a line to the end of an error's traceback. Python 3.10 has no notes: there it is logged."""
    if hasattr(error, "add_note"):
        error.add_note(note)
    else:
        logger.error("%s: %s %s", type(error).__name__, error, note)
