"""Every error oneloop raises on purpose. Each message says what was wrong, what was expected and what to do."""


class OneloopError(Exception):
    """Base of all errors that oneloop raises on purpose."""


class ArgumentError(OneloopError, ValueError):
    """An argument has a value that it cannot have, or two arguments contradict each other."""


class UnknownArgumentError(ArgumentError, TypeError):
    """An argument of this name does not exist."""


class RefusedError(OneloopError, ValueError):
    """An argument that exists, but that this backend, device or release cannot honour."""


class MissingPackageError(RefusedError, ImportError):
    """Something needs a package that is not installed."""


class DataError(OneloopError, ValueError):
    """The data set, a batch or a collator cannot be used as given."""


class ModelError(OneloopError, ValueError):
    """The model cannot be used as given."""


class CheckpointError(OneloopError, ValueError):
    """A checkpoint cannot be written, or is not whole, or does not fit the run."""


class DiskError(OSError, CheckpointError):
    """A directory or file cannot be written: the disk is full, read-only or gone, or the path is no directory."""

    def __str__(self) -> str:
        return self.strerror or ""


class HubError(OneloopError, RuntimeError):
    """The Hub cannot be reached, or does not take what was pushed."""


class NonFiniteError(OneloopError, FloatingPointError):
    """A loss or a gradient is NaN or infinite."""


class ProcessLostError(OneloopError, RuntimeError):
    """Another process of the run has died, hangs, or has failed: this one cannot go on without it."""


class SearchError(OneloopError, RuntimeError):
    """A trial of a search has failed, or none has ended well."""


class EvaluationInterrupted(OneloopError):
    """An evaluation in the middle of training was left because a signal asked the run to leave."""
