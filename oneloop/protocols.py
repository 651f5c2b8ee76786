"""The types of what users hand to a Trainer and get from it: models, data, functions, callbacks.

A value of a framework is checked where it is passed in, by the few methods that all frameworks have in common, and is
not restricted where it is used: for a type checker these protocols derive from Any. `trainer.model.config` is
accepted, so is a call of a function that takes a torch.nn.Module, and so is an override whose parameter is annotated
as a torch.nn.Module, a paddle.nn.Layer or a mindspore.nn.Cell.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias

if TYPE_CHECKING:
    from typing import Any as FrameworkValue

    from typing_extensions import TypeVar

    Value = TypeVar("Value")
else:
    from typing import TypeVar

    Value = TypeVar("Value")

    class FrameworkValue(Protocol):
        """The base of the protocols below; Any for a type checker."""


class Model(FrameworkValue, Protocol):
    """A torch.nn.Module, paddle.nn.Layer or mindspore.nn.Cell, or a wrapper of one."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


class MapDataset(FrameworkValue, Protocol):
    """A list of samples, or a dataset with items. It also needs a length."""

    def __getitem__(self, index: int, /) -> Any: ...


class IterableDataset(FrameworkValue, Protocol):
    """A dataset that can only be iterated."""

    def __iter__(self) -> Iterator[Any]: ...


Dataset: TypeAlias = MapDataset | IterableDataset
Datasets: TypeAlias = Dataset
"""A dataset, a dict of several by name, or the name of one of them: both can be iterated."""


class DataLoader(FrameworkValue, Protocol):
    """An iterable of batches: the loader of a framework, or anything else that can be iterated again."""

    def __iter__(self) -> Iterator[Any]: ...


class Sampler(FrameworkValue, Protocol):
    """An iterable of indices, or of lists of indices."""

    def __iter__(self) -> Iterator[Any]: ...


class Batch(FrameworkValue, Protocol):
    """A batch: a dict of tensors, or a tuple or list of them."""

    def __getitem__(self, key: Any, /) -> Any: ...


class Tensor(FrameworkValue, Protocol):
    """A tensor of a framework, such as a loss; an array or a number will do as well."""

    def __mul__(self, other: Any, /) -> Any: ...
    def __truediv__(self, other: Any, /) -> Any: ...


class Count(FrameworkValue, Protocol):
    """A number of items: an int, or a tensor with one element."""

    def __int__(self) -> int: ...


class PathLike(FrameworkValue, Protocol):
    """A path other than a string."""

    def __fspath__(self) -> str: ...


class SteppingOptimizer(FrameworkValue, Protocol):
    """An optimizer or a schedule with a method step: those of torch and Paddle."""

    @property
    def step(self) -> Callable[..., Any]: ...


class CellOptimizer(FrameworkValue, Protocol):
    """An optimizer of MindSpore, which is a Cell."""

    @property
    def construct(self) -> Callable[..., Any]: ...


Optimizer: TypeAlias = SteppingOptimizer | CellOptimizer
Scheduler: TypeAlias = SteppingOptimizer


class Collator(Protocol):
    """A function of a list of samples that returns a batch."""

    def __call__(self, samples: list[Any], /) -> Any: ...


LossFunction: TypeAlias = Callable[..., Tensor | tuple[Any, ...]]
"""A function of outputs and labels that returns the loss, possibly with other values after it."""

# None, since `evaluate` declares that its metrics may return it in processes other than the main one.
Metrics: TypeAlias = Callable[..., Mapping[str, Any] | None]
"""A function of an EvalPrediction that returns metrics by name."""


class Callback(FrameworkValue, Protocol):
    """A TrainerCallback, of oneloop or of another library with the same events."""

    @property
    def on_train_begin(self) -> Callable[..., Any]: ...


class OptunaTrial(FrameworkValue, Protocol):
    """A trial of Optuna."""

    @property
    def suggest_float(self) -> Callable[..., Any]: ...


class TrialParameters(FrameworkValue, Protocol):
    """The hyperparameters of a trial by name, as Ray Tune gives them."""

    def __getitem__(self, key: str, /) -> Any: ...


Trial: TypeAlias = OptunaTrial | TrialParameters


class OptionalAttribute(Generic[Value]):
    """For type checkers: an attribute that can be None. It may be read without a test for None, as `len(
    trainer.train_dataset)` in a script that has passed one, and a test for None is not taken for dead code."""

    def __get__(self, instance: object, owner: object = None) -> Value | Any:
        raise NotImplementedError("for type checkers only")

    def __set__(self, instance: object, value: Value | None) -> None:
        raise NotImplementedError("for type checkers only")
