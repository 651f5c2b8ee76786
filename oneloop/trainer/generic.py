"""`Trainer[MyArguments]`, for type checkers: a Trainer whose args are of a derived class of arguments.

A call infers it: `Trainer(model, MyArguments(...)).args` are MyArguments. A subclass says it: `class
MyTrainer(Trainer[MyArguments])`. When a program runs, `Trainer[MyArguments]` is Trainer itself.
"""

from typing import TYPE_CHECKING, Any, Generic

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from ..arguments import TrainingArguments

    Args_co = TypeVar("Args_co", bound=TrainingArguments, default=TrainingArguments, covariant=True)

    class TrainerBase(Generic[Args_co]): ...
else:
    Args_co = Any

    class TrainerBase:
        """What makes a Trainer subscriptable."""

        def __class_getitem__(cls, arguments: Any) -> Any:
            return cls
