"""Methods that scripts written for other trainers call, and that do little here."""

import logging
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoint.store import PREFIX
from ..errors import ArgumentError, UnsupportedError, a_type
from ..integrations.hub.pushing import HubPushes
from ..integrations.writers.base import Writer
from ..introspect import is_overridden, replaces
from ..steps import plan_steps
from ..trainer.clipping import CLIPPING, can_clip
from ..trainer.core import core_of
from ..trainer.generic import Args_co, TrainerBase
from ..trainer.loss import logits_of, smoothing_of
from ..trainer.overridable import overridable_property
from ..trainer.signatures import any_parameters, typed_as
from ..trainer.validation import has_length
from . import accelerate_plugins, mode
from .accelerator import Accelerator
from .trainer_utils import sort_checkpoints
from .transformers_utils import TrainerMemoryTracker, compare_trainer_and_checkpoint_args

if TYPE_CHECKING:
    from ..trainer import Trainer as Base
else:
    Base = TrainerBase

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
    unused = UNUSED_OVERRIDES if can_clip(core_of(trainer)) else UNUSED_OVERRIDES | CLIPPING
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


def _sharding_engine(trainer: Any) -> str | None:
    is_torch = core_of(trainer).backend.NAME == "torch"
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


class TransformersNames(Base[Args_co]):
    """Sizes of parallel groups, old names, and cleanup at the end of a script."""

    # Other training modes that a copied method checks for.
    use_apex = False
    is_fsdp_xla_enabled = is_fsdp_xla_v1_enabled = is_fsdp_xla_v2_enabled = False
    is_tp_enabled = False
    is_distributed_loading_by_transformers = False
    is_model_parallel = False

    @overridable_property
    def is_deepspeed_enabled(self) -> bool:
        """Whether DeepSpeed computes the updates. Libraries then prepare their other models with it."""
        return _sharding_engine(self) == accelerate_plugins.DEEPSPEED

    @overridable_property
    def deepspeed(self) -> Any:
        """DeepSpeed's engine, once train() has created it; None without one."""
        return self.model_wrapped if self.is_deepspeed_enabled and self.model_wrapped is not self.model else None

    @overridable_property
    def is_fsdp_enabled(self) -> bool:
        """Whether FSDP2 shards the model: stages 2 and 3 on PyTorch."""
        return _sharding_engine(self) == accelerate_plugins.FSDP

    @overridable_property
    def scaler(self) -> Any:
        """The loss scaler of fp16, or None."""
        engine = self._oneloop.engine
        return None if engine is None else engine.scaler

    @overridable_property
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
                f"label_smoother is {a_type(value)} without an epsilon; expected None or an object with one. "
                "For a custom loss, pass compute_loss_func or override compute_loss."
            )
        self.args.label_smoothing_factor = float(epsilon)

    @property
    def neftune_noise_alpha(self) -> Any:
        """The argument of that name."""
        return self.args.neftune_noise_alpha

    @typed_as(any_parameters)
    def _get_output_dir(self, trial: Any = None) -> str:
        """The directory of checkpoints, for an overridden _save_checkpoint that builds their path."""
        return self._oneloop.run.directory.display_path

    def _nested_gather(self, tensors: Any, name: str | None = None) -> Any:
        """Gather the tensors of all processes; with one process, they are unchanged."""
        return self.accelerator.gather(tensors)

    @overridable_property
    def current_gradient_accumulation_steps(self) -> int:
        """The number of micro-batches in the current update."""
        return self._oneloop.run.update.micro_batches

    @overridable_property
    def _loss_shifts_labels(self) -> bool:
        """Whether the model compares position i with label i + 1."""
        return self._oneloop.model_info.shifts_labels

    @overridable_property
    def place_model_on_device(self) -> bool:
        """Whether the constructor has put the model on the device."""
        return self.args.place_model_on_device

    @overridable_property
    def _created_lr_scheduler(self) -> bool:
        """Whether there is a schedule that was not passed in, so that the next train() makes another."""
        return self.lr_scheduler is not None and self.lr_scheduler is not self._oneloop.user_optimizers.scheduler

    @overridable_property
    def _memory_tracker(self) -> TrainerMemoryTracker:
        """Of skip_memory_metrics=False, for a copied method that calls its start() and stop_and_update_metrics()."""
        return TrainerMemoryTracker(self.args.skip_memory_metrics, self._oneloop.memory)

    @property
    def _train_batch_size(self) -> int:
        """Samples of a micro-batch in one process."""
        return self._oneloop.run.batch_size

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
        self.accelerator = Accelerator(self)

    def _has_mixed_mesh_grads(self, model: Any) -> bool:
        """Whether gradients are on different device meshes, for a copied _clip_grad_norm, which is not called for a
        sharded model: never."""
        return False

    def compare_trainer_and_checkpoint_args(self, training_args: Any, trainer_state: Any) -> None:
        """Called by a resume. In transformers scripts, a warning names arguments that are not the checkpoint's."""
        if mode.emulates("transformers"):
            compare_trainer_and_checkpoint_args(training_args, trainer_state)

    @overridable_property
    def gather_function(self) -> Callable[..., Any]:
        """What gathers the tensors of all processes, for a copied evaluation loop. oneloop's own does not call it."""
        return self.accelerator.gather_for_metrics

    def _sorted_checkpoints(
        self, output_dir: Any = None, checkpoint_prefix: str = PREFIX, use_mtime: bool = False
    ) -> list[str]:
        """The directories of checkpoints from the oldest to the newest, the best one next to last at least."""
        directory, best = self._oneloop.run.directory, self.state.best_model_checkpoint
        folder = output_dir or directory.display_path
        if best is not None and os.path.isabs(folder):
            best = str(directory.resolve(best))
        return sort_checkpoints(folder, checkpoint_prefix, use_mtime, best)

    @overridable_property
    def push_in_progress(self) -> Any:
        """The uploads to the Hub that were started, with is_done() and wait_until_done(); None before the first."""
        return self._oneloop.extensions.of(HubPushes).uploads

    def _push_from_checkpoint(self, checkpoint_folder: Any) -> None:
        """Push the model of a checkpoint, and with some values of hub_strategy the checkpoint itself. Called after the
        commit of a checkpoint if push_to_hub is set."""
        self._oneloop.extensions.of(HubPushes).push_checkpoint(Path(checkpoint_folder))

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
            raise UnsupportedError(
                "use_ipex: Intel Extension for PyTorch is not supported by oneloop; remove the argument"
            )
        return model

    def init_git_repo(self, at_init: bool = False) -> None:
        """Refused: the hub has no git repositories any more."""
        raise UnsupportedError(
            "init_git_repo is not supported: the Hub no longer uses local git repositories; use push_to_hub"
        )
