"""Methods that scripts written for other trainers call, and that have little to do here."""

from typing import Any

from ..accelerator import Accelerator
from ..errors import RefusedError
from ..loop import plan_steps
from .checks import has_length
from .parts import TrainerParts


class TrainerSurface(TrainerParts):
    """Sizes of parallel groups, old names, and the end of a script."""

    # A training_step copied from 5.x asks for these two before it divides the loss; here it is a share already.
    model_accepts_loss_kwargs = True

    @property
    def current_gradient_accumulation_steps(self) -> int:
        """Micro-batches in the update that is under way."""
        return max(1, len(self._micro_items))

    def get_tp_size(self) -> int:
        """Tensor parallelism: one, since no model is split here."""
        return 1

    def get_cp_size(self) -> int:
        """Context parallelism: one, since no sequence is split here."""
        return 1

    def get_sp_size(self) -> int:
        """Sequence parallelism: one, since no sequence is split here."""
        return 1

    def create_accelerator_and_postprocess(self) -> None:
        """Make `self.accelerator` anew."""
        self.accelerator = Accelerator(self)  # type: ignore[arg-type]

    def set_initial_training_values(self, args: Any, dataloader: Any) -> tuple:
        """(epochs, updates per epoch, samples, samples of the run, samples per update, batches per epoch, updates)."""
        batches = len(dataloader) if has_length(dataloader) else None
        per_epoch = None if batches is None else -(-batches // args.gradient_accumulation_steps)
        max_steps, epochs = plan_steps(per_epoch, args)
        per_update = self.get_total_train_batch_size(args)
        samples = self.num_examples(dataloader) if batches is not None else per_update * args.max_steps
        whole = samples * args.num_train_epochs if args.max_steps <= 0 else args.max_steps * per_update
        return epochs, per_epoch or max_steps, samples, int(whole), per_update, batches, max_steps

    def end(self) -> None:
        """Call it last in a script: the writers are closed."""
        for callback in self.callback_handler.callbacks:
            if getattr(callback, "is_open", False):
                callback.close()
                callback.is_open = False

    def torch_jit_model_eval(self, model: Any, dataloader: Any = None, training: bool = False) -> Any:
        """The older way to jit_mode_eval: the compiled model, or in training the model as it is."""
        return model if training else self._model_for_evaluation()

    def ipex_optimize_model(self, model: Any, training: bool = False, dtype: Any = None) -> Any:
        if self.args.use_ipex:
            raise RefusedError("use_ipex: Intel's extension for PyTorch is not used by oneloop; leave the argument out")
        return model

    def init_git_repo(self, at_init: bool = False) -> None:
        raise RefusedError("init_git_repo: the hub left git repositories behind; use push_to_hub")
