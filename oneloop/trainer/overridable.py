"""Methods of the Trainer that are not for users to call, but that subclasses override and oneloop calls."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..data.samples import ColumnFilter, forward_columns
from ..protocols import Collator, DataLoader, Dataset, Model, Tensor, Trial
from .checkpoint_methods import CheckpointMethods
from .dataloaders import select_columns

if TYPE_CHECKING:
    from ..arguments import TrainingArguments
    from ..outputs import TrainOutput
    from ..state import TrainerControl, TrainerState
    from .core import Core


Value = TypeVar("Value")


if TYPE_CHECKING:

    def overridable_property(function: Callable[[Any], Value]) -> Value: ...
else:

    class overridable_property:
        """A property that a subclass may replace by an attribute of its own; for type checkers an attribute."""

        def __init__(self, function: Callable[[Any], Any]) -> None:
            self.function = function
            self.__doc__ = function.__doc__

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            return self if instance is None else self.function(instance)


class OverridableMethods(CheckpointMethods):
    """A part of the Trainer. Names and signatures are those that subclasses know from other Trainers."""

    # Whether compute_loss has divided its loss for accumulation: True, False, or None for the rule of trainer/loss.py.
    loss_is_scaled_for_ga: bool | None = None
    # A copied training_step reads this before it divides the loss, which is already weighted here. False, set
    # by a subclass, is a loss that is the mean of its micro-batch and is divided by the number of micro-batches.
    model_accepts_loss_kwargs = True

    # Columns that the model accepts; None before _set_signature_columns_if_needed, or if it accepts any.
    _signature_columns: list[str] | None = None

    if TYPE_CHECKING:  # what Trainer has
        args: Any  # Args_co
        state: TrainerState
        control: TrainerControl
        model: Any
        model_wrapped: Any
        label_names: list[str]
        _oneloop: "Core"
        log: Callable[..., None]
        _get_learning_rate: Callable[[], float]

    def create_accelerator_and_postprocess(self) -> None:
        """Create objects that subclasses expect beside the model and the optimizer; the constructor calls it."""

    def compare_trainer_and_checkpoint_args(
        self, training_args: "TrainingArguments", trainer_state: "TrainerState"
    ) -> None:
        """Called by a resume, with the state of the checkpoint."""

    def _report_to_hp_search(self, trial: Trial | None, step: int, metrics: dict[str, float]) -> None:
        """After an evaluation within a trial of a search."""

    def _norm_clipped_to(self, model: Model, most: float) -> Any:
        return self._oneloop.backend.engine.clip_norm(model.parameters(), most, 2.0)

    def _inner_training_loop(
        self,
        batch_size: int | None = None,
        args: "TrainingArguments | None" = None,
        resume_from_checkpoint: str | None = None,
        trial: Trial | None = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> "TrainOutput":
        """The run, from the checkpoint to its end. An override may do something before and after super(); it is called
        once, also if auto_find_batch_size splits micro-batches."""
        checkpoint = None if resume_from_checkpoint is None else Path(resume_from_checkpoint)
        return self._oneloop.run.train(checkpoint, trial, ignore_keys_for_eval)

    def _set_signature_columns_if_needed(self) -> None:
        """Set _signature_columns from the model's forward, once."""
        if self._signature_columns is not None:
            return
        parameters = self._oneloop.backend.models.forward_parameters(self.model)
        keep = None if parameters is None else forward_columns(parameters, self.label_names)
        if parameters is not None and keep is not None:
            known = [name for name in parameters if name in keep]
            self._signature_columns = known + sorted(keep.difference(known))

    @overridable_property
    def can_return_loss(self) -> bool:
        """Whether a batch without labels has a loss: what a subclass sets, or whether the model returns it by
        default."""
        return self._oneloop.model_info.returns_loss

    @property
    def _eval_dataloaders(self) -> dict[str, Any]:
        """Evaluation loaders that dataloader_persistent_workers keeps during train(), by the name of their dataset."""
        return self._oneloop.run.step_end.eval_loaders

    @_eval_dataloaders.setter
    def _eval_dataloaders(self, value: dict[str, Any]) -> None:
        self._oneloop.run.step_end.keep_loaders(value)

    def _move_model_to_device(self, model: Model, device: Any) -> Model | None:
        """Put a model on a device; called for a new model if place_model_on_device is True."""
        return self._oneloop.backend.devices.move_model(model, device)

    def _wrap_model(self, model: Model, training: bool = True, dataloader: DataLoader | None = None) -> Model:
        """The model that is called: in training on several processes, wrapped for them; otherwise as it is."""
        core = self._oneloop
        return core.strategy.wrap(model) if training and not core.mesh.is_single else model

    def _clip_grad_norm(self, model: Model) -> Any:
        """Clip the gradients to max_grad_norm; returns their norm before. Called before an update if overridden."""
        return self._norm_clipped_to(model, self.args.max_grad_norm)

    def _get_grad_norm(self, model: Model, grad_norm: Tensor | None = None) -> Any:
        """The norm to log: the given one, or that of the gradients, which have not been clipped. Called likewise."""
        if grad_norm is None:
            return self._norm_clipped_to(model, float("inf"))
        return grad_norm

    @overridable_property
    def _globalstep_last_logged(self) -> int:
        """The step of the last log of a training loss."""
        return self._oneloop.run.meter.logged_step

    @overridable_property
    def _total_loss_scalar(self) -> float:
        """The sum of the training losses up to the last log."""
        return self._oneloop.run.losses.logged_total

    def _maybe_log_save_evaluate(
        self,
        tr_loss: Tensor,
        grad_norm: Tensor | None,
        model: Model,
        trial: Trial | None,
        epoch: float,
        ignore_keys_for_eval: list[str] | None,
        start_time: float,
        learning_rate: float | None = None,
    ) -> None:
        """For overrides that call it: log the step, unless they have. Evaluation and saving follow in the loop."""
        step = self.state.global_step
        if not self.control.should_log or step <= self._globalstep_last_logged:
            return
        self.control.should_log = False
        tensors = self._oneloop.backend.tensors
        logs = {"loss": float(tensors.to_numpy(tr_loss)) / (step - self._globalstep_last_logged)}
        if grad_norm is not None:
            logs["grad_norm"] = float(grad_norm)
        logs["learning_rate"] = self._get_learning_rate() if learning_rate is None else learning_rate
        self.log(logs)

    def _remove_unused_columns(self, dataset: Dataset, description: str | None = None) -> Dataset:
        """A datasets.Dataset without the columns that the model does not accept; other data unchanged."""
        where = f"the {description} set" if description else "the data set"
        return select_columns(self._oneloop, dataset, where)[0]

    def _get_collator_with_removed_columns(self, data_collator: Collator, description: str | None = None) -> Collator:
        """A collator that receives only the columns that the model accepts."""
        self._set_signature_columns_if_needed()
        if not self.args.remove_unused_columns or self._signature_columns is None:
            return data_collator
        return ColumnFilter(data_collator, self._signature_columns)
