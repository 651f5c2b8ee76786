"""The signatures of methods of the Trainer whose parameters differ between libraries and their versions.

Type checkers see these in place of the parameters of the methods themselves, so that an override with the parameters of
another library, or of an older version, is no error: of `*args: Any, **kwargs: Any` an override may have any or none.
Nothing of this is used when a program runs.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from ..outputs import EvalLoopOutput, TrainOutput
    from ..protocols import Batch, DataLoader, Model, Optimizer, PathLike, Tensor, Trial

Signature = TypeVar("Signature", bound=Callable[..., Any])


def typed_as(signature: Signature) -> Callable[[Callable[..., Any]], Signature]:
    """For type checkers, the decorated method has this signature."""
    return lambda method: method  # type: ignore[return-value]


def train(
    self: Any,
    resume_from_checkpoint: "str | bool | PathLike | None" = None,
    trial: "Trial | None" = None,
    ignore_keys_for_eval: list[str] | None = None,
) -> "TrainOutput":
    raise NotImplementedError


def training_step(self: Any, model: "Model", inputs: "Batch", *args: Any, **kwargs: Any) -> "Tensor":
    raise NotImplementedError


def compute_loss(
    self: Any, model: "Model", inputs: "Batch", return_outputs: bool = False, *args: Any, **kwargs: Any
) -> Any:
    raise NotImplementedError


def create_optimizer(self: Any, *args: Any, **kwargs: Any) -> "Optimizer":
    raise NotImplementedError


def get_batch_samples(self: Any, *args: Any, **kwargs: Any) -> tuple[list[Any], Any]:
    raise NotImplementedError


def get_total_train_batch_size(self: Any, *args: Any, **kwargs: Any) -> int:
    raise NotImplementedError


def evaluation_loop(
    self: Any,
    dataloader: "DataLoader",
    description: str,
    prediction_loss_only: bool | None = None,
    ignore_keys: list[str] | None = None,
    metric_key_prefix: str = "eval",
    *args: Any,
    **kwargs: Any,
) -> "EvalLoopOutput":
    raise NotImplementedError


def log(self: Any, logs: dict[str, Any], *args: Any, **kwargs: Any) -> None:
    raise NotImplementedError


def save_model(
    self: Any, output_dir: "str | PathLike | None" = None, _internal_call: bool = False, *args: Any, **kwargs: Any
) -> None:
    raise NotImplementedError


def any_parameters(self: Any, *args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError
