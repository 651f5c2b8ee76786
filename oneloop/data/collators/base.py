"""What all collators share: the call protocol, and the conversion from NumPy to the framework's tensors."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...backends import loading, registry
from ...backends.base import Tensors
from ...errors import ArgumentError, DataError, a_type

#: A callable that turns a list of samples into one batch.
DataCollator = Callable[[list[Any]], Any]


def backend_of(return_tensors: str | None) -> str | None:
    """The backend for `return_tensors`; None means NumPy.

    `return_tensors=None` selects the framework that this process uses.
    """
    if return_tensors is None:
        return _guess(tuple(spec.name for spec in registry.specs() if spec.listed and spec.is_imported))
    if return_tensors == "np":
        return None
    return _named(return_tensors)


@functools.cache
def _named(return_tensors: str) -> str:
    formats = registry.tensor_formats()
    if return_tensors not in formats:
        known = ", ".join(f"{word!r} ({spec.short_title})" for word, spec in formats.items())
        raise ArgumentError(
            f"Invalid return_tensors={return_tensors!r}: expected 'np' (NumPy), {known}, or None for the framework in "
            "use."
        )
    return formats[return_tensors].name


@functools.cache
def _destination(return_tensors: str) -> tuple[str | None, str | None]:
    return _destination_of(backend_of(return_tensors))


def _destination_of(backend: str | None) -> tuple[str | None, str | None]:
    """A backend, and the method of collators that makes its tensors, if it has one of its own."""
    return backend, None if backend is None else registry.get(backend).collator_method


@functools.cache
def _guess(imported: tuple[str, ...]) -> str | None:
    # Called for every batch, so the result is cached per set of imported frameworks.
    return loading.guess()


@functools.cache
def tensors(backend: str) -> Tensors:
    """The tensor functions of a backend."""
    return loading.load(backend).tensors


def _framework_of(cls: type) -> str | None:
    """The framework that this tensor class belongs to, from its base classes, without importing anything."""
    for base in cls.__mro__:
        spec = registry.of_module(base.__module__) if base.__name__ == "Tensor" else None
        if spec is not None and spec.listed:
            return spec.name
    return None


# Cached per class, since it is called for every column of every batch.
framework_of: Callable[[type], str | None] = functools.cache(_framework_of)


def to_backend(value: Any, backend: str | None) -> Any:
    """A column, or nested columns, with all arrays and tensors converted to this backend (None: NumPy)."""
    kind = type(value)
    if kind is np.ndarray:
        return value if backend is None else tensors(backend).from_numpy(value)
    source = framework_of(kind)
    if source is not None:
        return value if source == backend else to_backend(tensors(source).to_numpy(value), backend)
    if kind is dict:
        return {key: to_backend(column, backend) for key, column in value.items()}
    if isinstance(value, tuple):
        columns = [to_backend(column, backend) for column in value]
        return kind(*columns) if hasattr(value, "_fields") else tuple(columns)
    return value


def for_framework(collator: Any, framework: str) -> Any:
    """Bind one of our collators with return_tensors=None to this framework, since several may be imported."""
    unsaid = isinstance(collator, DataCollatorMixin) and collator.return_tensors is None
    if not unsaid and getattr(collator, "__name__", "") != "default_data_collator":
        return collator
    try:
        takes = "return_tensors" in inspect.signature(collator).parameters
    except (TypeError, ValueError):
        takes = False
    return functools.partial(collator, return_tensors=registry.tensor_format(framework)) if takes else collator


def to_numpy(value: Any) -> np.ndarray:
    """Any array, tensor, number or list as an array; without a copy where possible."""
    source = framework_of(type(value))
    return np.asarray(value) if source is None else tensors(source).to_numpy(value)


def check_samples(samples: Any) -> None:
    """Raise DataError unless this is a list of at least one sample."""
    if type(samples) is list and samples:
        return
    if isinstance(samples, Mapping) or not isinstance(samples, Sequence):
        raise DataError(
            f"a collator expects a list of samples, but got {a_type(samples)}. "
            "Pass a list with one dict (or tuple) per sample."
        )
    if not samples:
        raise DataError("a collator got an empty list of samples; expected at least one.")


def as_mappings(samples: Sequence[Any]) -> Sequence[Mapping[str, Any]]:
    """Samples as mappings; objects are read through their attributes."""
    check_samples(samples)
    first = samples[0]
    if isinstance(first, Mapping):
        return samples
    if hasattr(first, "__dict__") and framework_of(type(first)) is None:
        return [vars(sample) for sample in samples]
    raise DataError(
        f"this collator expects dicts (such as a tokenizer returns), but the first sample is {a_type(first)}. "
        "Return a dict from the dataset, or pass your own data_collator."
    )


def column_of(samples: Sequence[Mapping[str, Any]], key: str) -> list[Any]:
    """The value of one key in every sample."""
    try:
        return [sample[key] for sample in samples]
    except KeyError:
        position = next(i for i, sample in enumerate(samples) if key not in sample)
        raise DataError(
            f"the first sample of the batch has {key!r}, but sample {position} has only "
            f"{sorted(map(str, samples[position]))}. Give every sample the same keys, or remove the column."
        ) from None


class DataCollatorMixin:
    """Base class of collators that are written in NumPy and return the tensors of any framework.

    Subclasses implement `collate`. `torch_call` and `numpy_call` may be overridden to change one of them only.
    """

    return_tensors: str | None = None

    def __call__(self, features: Sequence[Any], return_tensors: str | None = None) -> Any:
        wanted = self.return_tensors if return_tensors is None else return_tensors
        backend, own = _destination(wanted) if wanted is not None else _destination_of(backend_of(None))
        if backend is None:
            return self.numpy_call(features)
        if own:
            return getattr(self, own)(features)
        return to_backend(self.collate(features), backend)

    def collate(self, features: Sequence[Any]) -> Any:
        """The batch in NumPy; columns that are tensors may stay tensors."""
        raise NotImplementedError(
            f"{type(self).__name__} has no collate(features); implement it, or the numpy_call or torch_call "
            "for that value of return_tensors."
        )

    def numpy_call(self, features: Sequence[Any]) -> Any:
        return to_backend(self.collate(features), None)

    def torch_call(self, features: Sequence[Any]) -> Any:
        return to_backend(self.collate(features), "torch")
