"""Methods that scripts written for other trainers call, and that do little here."""

import logging
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoint.store import PREFIX
from ..data.columns import ColumnFilter, forward_columns
from ..errors import ArgumentError, RefusedError
from ..integrations.writers.base import Writer
from ..loop import plan_steps
from ..trainer.dataloaders import select_columns
from ..trainer.internals import internals_of
from ..trainer.loss import logits_of, smoothing_of
from ..trainer.validation import has_length
from . import accelerate_plugins, mode
from .accelerator import Accelerator
from .checkpoint_hooks import CheckpointHooks
from .clipping import CLIPPING, can_clip
from .introspect import is_overridden, replaces
from .trainer_utils import sort_checkpoints
from .transformers_utils import TrainerMemoryTracker, compare_trainer_and_checkpoint_args

if TYPE_CHECKING:
    from ..outputs import TrainOutput
    from ..trainer.internals import Internals

logger = logging.getLogger(__name__)

# Methods of transformers' Trainer, 4.45 to 5.22, that oneloop never calls, and what to override instead.
_LOOP = "training_step, compute_loss, or a callback"
_LOADING = "_load_from_checkpoint, or a callback's on_train_begin, which comes after loading"
_DEVICES = "nothing: pass the model as it should be, or use the arguments about devices and sharding"
UNUSED_OVERRIDES = {
    **dict.fromkeys(("_run_epoch", "_init_training_state", "_finalize_training"), _LOOP),
    "_prepare_for_training": "create_optimizer_and_scheduler, or a callback's on_train_begin",
    "_validate_args": "nothing: arguments are checked when they are made",
    **dict.fromkeys(("_fsdp_qlora_plugin_updates", "propagate_args_to_deepspeed"), _DEVICES),
    "_build_accelerator_args": "create_accelerator_and_postprocess",
    "_track_num_input_tokens": "get_batch_samples",
    "_mixed_mesh_grad_norm": "a callback's on_pre_optimizer_step",
    "_sync_replicated_trainable_parameters": _DEVICES,
    "_update_auto_batch_size": "nothing: auto_find_batch_size splits micro-batches and keeps the global batch",
    **dict.fromkeys(("_activate_neftune", "_deactivate_neftune"), "nothing: use neftune_noise_alpha"),
    "_is_attention_mask_causal": "_prepare_inputs",
    "_deepspeed_sp_compute_loss": "compute_loss",
    "num_tokens": "floating_point_ops",
    "_issue_warnings_after_load": _LOADING,
    "_has_mixed_mesh_grads": "a callback's on_pre_optimizer_step",
    "gather_function": "evaluation_loop or prediction_step",
    "_save_tpu": "_save_checkpoint or save_model",
    "_sorted_checkpoints": "nothing: use save_total_limit",
    "_get_output_dir": "nothing: set args.output_dir",
    "_finish_current_push": "push_to_hub",
    "_add_sm_patterns_to_gitignore": "nothing: no git repository is used",
    **dict.fromkeys(("_hp_search_setup", "_tune_save_checkpoint"), "hp_space and compute_objective"),
    **dict.fromkeys(("_gather_and_numpify", "_nested_gather"), "evaluation_loop"),
    "_align_special_tokens": "nothing: set the tokens of the model's config before training",
    **dict.fromkeys(("get_cp_size", "get_sp_size", "get_tp_size"), "nothing: no model or sequence is split here"),
    **dict.fromkeys(("autocast_smart_context_manager",), "compute_loss_context_manager"),
    **dict.fromkeys(("ipex_optimize_model", "torch_jit_model_eval"), "nothing: use jit_mode_eval or torch_compile"),
    "set_initial_training_values": "get_train_dataloader, and the arguments about steps and epochs",
    **dict.fromkeys(("get_learning_rates", "get_optimizer_group"), "create_optimizer"),
}


# Likewise, if the override does not call super(): a loop of its own would know nothing of the run.
UNUSED_LOOPS = {"_inner_training_loop": f"{_LOOP}; an override that calls super() is called"}


def warn_unused_overrides(trainer: Any) -> None:
    """Log one warning with all methods of a subclass that are never called."""
    unused = UNUSED_OVERRIDES if can_clip(internals_of(trainer)) else UNUSED_OVERRIDES | CLIPPING
    found = [name for name in unused if is_overridden(trainer, name)]
    found += [name for name in UNUSED_LOOPS if replaces(trainer, name)]
    unused = unused | UNUSED_LOOPS
    if found:
        logger.warning(
            "%s defines %s, which oneloop never calls. Override instead: %s.",
            type(trainer).__name__,
            ", ".join(found),
            "; ".join(f"for {name}, {unused[name]}" for name in found),
        )


class derived:
    """A property that a subclass may replace by an attribute of its own."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else self.function(instance)


def _sharding_engine(trainer: Any) -> str | None:
    is_torch = internals_of(trainer).backend.NAME == "torch"
    return accelerate_plugins.engine_of(trainer.args) if is_torch else None


class LabelSmoother:
    """self.label_smoother(outputs, labels), as called by a compute_loss written for 4.x."""

    ignore_index = -100

    def __init__(self, tensors: Any, epsilon: float) -> None:
        self.tensors = tensors  # the backend's
        self.epsilon = epsilon

    def __call__(
        self, model_output: Any, labels: Any, shift_labels: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Mean loss over the labels that are not -100, or their sum divided by num_items_in_batch; with shift_labels,
        position i is compared with label i + 1."""
        if isinstance(model_output, (tuple, list)):  # the logits are first, or after the loss
            logits = next(part for part in model_output if len(part.shape) > 0)
        else:
            logits = logits_of(model_output)
        loss = self.tensors.smoothed_loss(logits, labels, self.epsilon, shift_labels)
        if num_items_in_batch is None:
            return loss
        return loss * self.tensors.count_labels(labels, shift_labels) / num_items_in_batch


class TransformersNames(CheckpointHooks):
    """Sizes of parallel groups, old names, and cleanup at the end of a script."""

    # Whether compute_loss has divided its loss for accumulation: True, False, or None for the rule of trainer/loss.py.
    loss_is_scaled_for_ga: bool | None = None
    # A training_step copied from 5.x reads this before it divides the loss, which is already weighted here. False, set
    # by a subclass, is a loss that is the mean of its micro-batch and is divided by the number of micro-batches.
    model_accepts_loss_kwargs = True

    # Other training modes that a copied method checks for.
    use_apex = False
    is_fsdp_xla_enabled = is_fsdp_xla_v1_enabled = is_fsdp_xla_v2_enabled = False
    is_tp_enabled = False
    is_distributed_loading_by_transformers = False
    is_model_parallel = False

    # Columns that the model accepts; None before _set_signature_columns_if_needed, or if it accepts any.
    _signature_columns: list[str] | None = None

    if TYPE_CHECKING:  # what Trainer has
        args: Any
        state: Any
        control: Any
        model: Any
        model_wrapped: Any
        optimizer: Any
        lr_scheduler: Any
        label_names: list[str]
        callback_handler: Any
        accelerator: Any
        _oneloop: "Internals"
        get_total_train_batch_size: Callable[..., int]
        num_examples: Callable[..., int]
        log: Callable[..., None]
        _get_learning_rate: Callable[[], float]

    def _inner_training_loop(
        self,
        batch_size: int | None = None,
        args: Any = None,
        resume_from_checkpoint: Any = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> "TrainOutput":
        """The run, from the checkpoint to its end. An override may do something before and after super(); it is called
        once, also if auto_find_batch_size splits micro-batches."""
        checkpoint = None if resume_from_checkpoint is None else Path(resume_from_checkpoint)
        return self._oneloop.run.train(checkpoint, trial, ignore_keys_for_eval)

    @derived
    def is_deepspeed_enabled(self) -> bool:
        """Whether DeepSpeed computes the updates. Libraries then prepare their other models with it."""
        return _sharding_engine(self) == accelerate_plugins.DEEPSPEED

    @derived
    def deepspeed(self) -> Any:
        """DeepSpeed's engine, once train() has created it; None without one."""
        return self.model_wrapped if self.is_deepspeed_enabled and self.model_wrapped is not self.model else None

    @derived
    def is_fsdp_enabled(self) -> bool:
        """Whether FSDP2 shards the model: stages 2 and 3 on PyTorch."""
        return _sharding_engine(self) == accelerate_plugins.FSDP

    @derived
    def scaler(self) -> Any:
        """The loss scaler of fp16, or None."""
        return getattr(self._oneloop.engine, "scaler", None)

    @derived
    def do_grad_scaling(self) -> bool:
        """Whether there is a loss scaler."""
        return self.scaler is not None

    @property
    def label_smoother(self) -> Any:
        """A function of (outputs, labels, shift_labels=False), or None if label_smoothing_factor is 0."""
        epsilon = smoothing_of(self._oneloop)
        return LabelSmoother(self._oneloop.backend.tensors, epsilon) if epsilon else None

    @label_smoother.setter
    def label_smoother(self, value: Any) -> None:
        epsilon = 0.0 if value is None else getattr(value, "epsilon", None)
        if not isinstance(epsilon, (int, float)):
            raise ArgumentError(
                f"label_smoother is a {type(value).__name__} without an epsilon; expected None or an object with one. "
                "For a custom loss, pass compute_loss_func or override compute_loss."
            )
        self.args.label_smoothing_factor = float(epsilon)

    def _set_signature_columns_if_needed(self) -> None:
        """Set _signature_columns from the model's forward, once."""
        if self._signature_columns is not None:
            return
        parameters = self._oneloop.backend.models.forward_parameters(self.model)
        keep = None if parameters is None else forward_columns(parameters, self.label_names)
        if parameters is not None and keep is not None:
            known = [name for name in parameters if name in keep]
            self._signature_columns = known + sorted(keep.difference(known))

    def _remove_unused_columns(self, dataset: Any, description: str | None = None) -> Any:
        """A datasets.Dataset without the columns that the model does not accept; other data unchanged."""
        where = f"the {description} set" if description else "the data set"
        return select_columns(self._oneloop, dataset, where)[0]

    def _get_collator_with_removed_columns(self, data_collator: Any, description: str | None = None) -> Any:
        """A collator that receives only the columns that the model accepts."""
        self._set_signature_columns_if_needed()
        if not self.args.remove_unused_columns or self._signature_columns is None:
            return data_collator
        return ColumnFilter(data_collator, self._signature_columns)

    @derived
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

    @property
    def neftune_noise_alpha(self) -> Any:
        """The argument of that name."""
        return self.args.neftune_noise_alpha

    def _get_output_dir(self, trial: Any = None) -> str:
        """The directory of checkpoints, for an overridden _save_checkpoint that builds their path."""
        return self._oneloop.run.checkpointer.directory.shown

    def _nested_gather(self, tensors: Any, name: str | None = None) -> Any:
        """Gather the tensors of all processes; with one process, they are unchanged."""
        return self.accelerator.gather(tensors)

    @derived
    def current_gradient_accumulation_steps(self) -> int:
        """The number of micro-batches in the current update."""
        return self._oneloop.run.update.micro_batches

    @derived
    def _loss_shifts_labels(self) -> bool:
        """Whether the model compares position i with label i + 1."""
        return self._oneloop.model_info.shifts_labels

    @derived
    def place_model_on_device(self) -> bool:
        """Whether the constructor has put the model on the device."""
        return self.args.place_model_on_device

    @derived
    def _created_lr_scheduler(self) -> bool:
        """Whether there is a schedule that was not passed in, so that the next train() makes another."""
        return self.lr_scheduler is not None and self.lr_scheduler is not self._oneloop.given_optimizers.scheduler

    @derived
    def _memory_tracker(self) -> TrainerMemoryTracker:
        """Of skip_memory_metrics=False, for a copied method that calls its start() and stop_and_update_metrics()."""
        return TrainerMemoryTracker(self.args.skip_memory_metrics, self._oneloop.memory)

    @property
    def _train_batch_size(self) -> int:
        """Samples of a micro-batch in one process."""
        return self._oneloop.run.sizes.per_process

    @_train_batch_size.setter
    def _train_batch_size(self, value: int) -> None:
        self._oneloop.run.set_batch_size(value)

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> AbstractContextManager:
        """The context of compute_loss."""
        return self._oneloop.engine.loss_context()

    def get_tp_size(self) -> int:
        """Tensor parallelism: always 1."""
        return 1

    def get_cp_size(self) -> int:
        """Context parallelism: always 1."""
        return 1

    def get_sp_size(self) -> int:
        """Sequence parallelism: always 1."""
        return 1

    def create_accelerator_and_postprocess(self) -> None:
        """Create `self.accelerator`; the constructor calls it."""
        self.accelerator = Accelerator(self)  # type: ignore[arg-type]

    def _move_model_to_device(self, model: Any, device: Any) -> Any:
        """Put a model on a device; called for a new model if place_model_on_device is True."""
        return self._oneloop.backend.devices.place(model, device)

    def _wrap_model(self, model: Any, training: bool = True, dataloader: Any = None) -> Any:
        """The model that is called: in training on several processes, wrapped for them; otherwise as it is."""
        core = self._oneloop
        return core.strategy.wrap(model) if training and core.processes.size > 1 else model

    def _clip_grad_norm(self, model: Any) -> Any:
        """Clip the gradients to max_grad_norm; returns their norm before. Called before an update if overridden."""
        return self.accelerator.clip_grad_norm_(model.parameters(), self.args.max_grad_norm)

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """The norm to log: the given one, or that of the gradients, which have not been clipped. Called likewise."""
        if grad_norm is None:
            return self.accelerator.clip_grad_norm_(model.parameters(), float("inf"))
        return grad_norm

    def _has_mixed_mesh_grads(self, model: Any) -> bool:
        """Whether gradients are on different device meshes, for a copied _clip_grad_norm, which is not called for a
        sharded model: never."""
        return False

    def compare_trainer_and_checkpoint_args(self, training_args: Any, trainer_state: Any) -> None:
        """Called by a resume. In scripts of transformers, a warning names arguments that are not the checkpoint's."""
        if mode.follows("transformers"):
            compare_trainer_and_checkpoint_args(training_args, trainer_state)

    @derived
    def gather_function(self) -> Callable[..., Any]:
        """What gathers the tensors of all processes, for a copied evaluation loop. oneloop's own does not call it."""
        return self.accelerator.gather_for_metrics

    @derived
    def _globalstep_last_logged(self) -> int:
        """The step of the last log of a training loss."""
        return self._oneloop.run.meter.logged_step

    @derived
    def _total_loss_scalar(self) -> float:
        """The sum of the training losses up to the last log."""
        return self._oneloop.run.meter.losses.logged_total

    def _maybe_log_save_evaluate(
        self,
        tr_loss: Any,
        grad_norm: Any,
        model: Any,
        trial: Any,
        epoch: Any,
        ignore_keys_for_eval: Any,
        start_time: Any,
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

    def _sorted_checkpoints(
        self, output_dir: Any = None, checkpoint_prefix: str = PREFIX, use_mtime: bool = False
    ) -> list[str]:
        """The directories of checkpoints from the oldest to the newest, the best one next to last at least."""
        directory, best = self._oneloop.run.checkpointer.directory, self.state.best_model_checkpoint
        folder = output_dir or directory.shown
        if best is not None and os.path.isabs(folder):
            best = str(directory.resolve(best))
        return sort_checkpoints(folder, checkpoint_prefix, use_mtime, best)

    @derived
    def push_in_progress(self) -> Any:
        """The uploads to the Hub that were started, with is_done() and wait_until_done(); None before the first."""
        return self._oneloop.hub.uploads

    def _push_from_checkpoint(self, checkpoint_folder: Any) -> None:
        """Push the model of a checkpoint, and with some values of hub_strategy the checkpoint itself. Called after the
        commit of a checkpoint if push_to_hub is set."""
        self._oneloop.hub.push_checkpoint(Path(checkpoint_folder))

    def set_initial_training_values(self, args: Any, dataloader: Any) -> tuple:
        """(epochs, updates per epoch, samples, samples of the run, samples per update, batches per epoch, updates)."""
        batches = len(dataloader) if has_length(dataloader) else None
        per_epoch = None if batches is None else -(-batches // args.gradient_accumulation_steps)
        max_steps, epochs = plan_steps(per_epoch, args)
        per_update = self.get_total_train_batch_size(args)
        samples = self.num_examples(dataloader) if batches is not None else per_update * args.max_steps
        whole = samples * args.num_train_epochs if args.max_steps <= 0 else args.max_steps * per_update
        if batches is None:
            epochs, batches = sys.maxsize, max_steps * args.gradient_accumulation_steps
        return epochs, per_epoch or max_steps, samples, int(whole), per_update, batches, max_steps

    def end(self) -> None:
        """Closes the writers; to be called at the end of a script."""
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, Writer):
                callback.shut()

    def torch_jit_model_eval(self, model: Any, dataloader: Any = None, training: bool = False) -> Any:
        """The older form of jit_mode_eval: the compiled model, or in training the model unchanged."""
        return model if training else self._oneloop.model_for_evaluation()

    def ipex_optimize_model(self, model: Any, training: bool = False, dtype: Any = None) -> Any:
        """The model as it is; use_ipex is refused."""
        if self.args.use_ipex:
            raise RefusedError("use_ipex: Intel Extension for PyTorch is not supported by oneloop; remove the argument")
        return model

    def init_git_repo(self, at_init: bool = False) -> None:
        """Refused: the hub has no git repositories any more."""
        raise RefusedError(
            "init_git_repo is not supported: the Hub no longer uses local git repositories; use push_to_hub"
        )
