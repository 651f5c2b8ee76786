"""Trainer: the class that users build, put together from its parts."""

from typing import Any

from ..checkpoint import store
from ..compat import mindnlp
from ..compat.accelerator import Accelerator
from ..compat.paddlenlp import TrainerPaddleNLP
from ..compat.transformers import TrainerSurface, warn_unused_overrides
from ..errors import ArgumentError
from . import setup, validation
from .course import TrainerCourse
from .data import TrainerData
from .evaluating import TrainerEvaluating
from .event_log import Record
from .exporting import TrainerExporting
from .hub import TrainerHub
from .model_files import TrainerModelFiles
from .optimizing import TrainerOptimizing
from .preparing import TrainerPreparing
from .recording import TrainerRecording
from .reporting import TrainerReporting
from .resuming import TrainerResuming
from .running import TrainerRunning
from .saving import TrainerSaving
from .saving_parts import TrainerSavingParts
from .searching import TrainerSearching
from .together import TrainerTogether
from .training import TrainerSteps


class Trainer(
    TrainerPreparing,
    TrainerRunning,
    TrainerSteps,
    TrainerData,
    TrainerEvaluating,
    TrainerOptimizing,
    TrainerModelFiles,
    TrainerCourse,
    TrainerSaving,
    TrainerSavingParts,
    TrainerResuming,
    TrainerReporting,
    TrainerRecording,
    TrainerTogether,
    TrainerSurface,
    TrainerExporting,
    TrainerPaddleNLP,
    TrainerHub,
    TrainerSearching,
):
    """Trains, evaluates and predicts with a torch.nn.Module, paddle.nn.Layer or mindspore.nn.Cell.

    Positional up to model_init, where the versions of other trainers agree; the rest by name. A criterion in second
    place, as PaddleNLP has it, is recognised by its type. `tokenizer` and `processing_class` are one argument.
    `map_fn` is MindNLP's: a function over columns, for data sets of mindspore.dataset (see mindnlp.py).
    """

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        tokenizer: Any = None,
        model_init: Any = None,
        *positional: Any,
        criterion: Any = None,
        processing_class: Any = None,
        compute_loss_func: Any = None,
        compute_metrics: Any = None,
        callbacks: Any = None,
        optimizers: Any = (None, None),
        optimizer_cls_and_kwargs: Any = None,
        preprocess_logits_for_metrics: Any = None,
        map_fn: Any = None,
    ) -> None:
        if positional:
            raise ArgumentError(
                "Trainer takes positional arguments up to model_init; what follows differs between the versions that "
                "scripts were written for. Pass compute_metrics, callbacks, optimizers and the rest by name."
            )
        if setup.is_paddle_order(args, data_collator):
            # PaddleNLP's order: model, criterion, args, data_collator, train_dataset, eval_dataset, tokenizer
            criterion, args, data_collator = args, data_collator, train_dataset
            train_dataset, eval_dataset, tokenizer, model_init = eval_dataset, tokenizer, model_init, None
        if map_fn is None and mindnlp.is_map_function(data_collator):  # MindNLP's order has it in third place
            map_fn, data_collator = data_collator, None
        self.args = setup.arguments(args)
        validation.functions(
            model_init=model_init,
            criterion=criterion,
            compute_loss_func=compute_loss_func,
            compute_metrics=compute_metrics,
            preprocess_logits_for_metrics=preprocess_logits_for_metrics,
        )
        self._take_model(model, model_init)
        self.processing_class = validation.tokenizer(tokenizer, processing_class)
        self.train_dataset = mindnlp.training_set(train_dataset, map_fn)
        self.eval_dataset = mindnlp.evaluation_sets(eval_dataset, map_fn)
        self.criterion = criterion
        self.compute_loss_func = compute_loss_func
        self.compute_metrics = compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self._take_optimizers(optimizers, optimizer_cls_and_kwargs)
        warn_unused_overrides(self)
        self._check_data()
        self._prepare_model()
        self.data_collator = setup.collator(data_collator, self.processing_class, self.backend.NAME)
        self._run_id = store.new_run_id()
        self._recorder, self._passed_over = Record(), []
        self._reset_counters()
        self._set_up_callbacks(callbacks)
        self.engine = self._make_engine()
        self.accelerator = Accelerator(self)
        self.is_in_train = False
        if self.args.push_to_hub:
            self.init_hf_repo()
        self.memory.stop("init", self.backend, self.args.device, self._init_memory)
        self.control = self.callback_handler.on_init_end(self.args, self.state, self.control)

    # -- callbacks and questions

    def add_callback(self, callback: Any) -> None:
        """Add a callback, given as an instance or a class."""
        self.callback_handler.add_callback(callback)
        setup.link_writers(self)

    def pop_callback(self, callback: Any) -> Any:
        """Remove a callback and return it."""
        return self.callback_handler.pop_callback(callback)

    def remove_callback(self, callback: Any) -> None:
        self.callback_handler.remove_callback(callback)

    def is_local_process_zero(self) -> bool:
        return self.args.local_process_index == 0

    def is_world_process_zero(self) -> bool:
        return self.args.process_index == 0

    def get_total_train_batch_size(self, args: Any = None) -> int:
        """Samples of one update: all devices, all accumulation steps."""
        args = args or self.args
        return self._train_batch_size * self._accumulation * args.world_size

    @property
    def tokenizer(self) -> Any:
        """The older name of processing_class."""
        return self.processing_class

    @tokenizer.setter
    def tokenizer(self, value: Any) -> None:
        self.processing_class = self.callback_handler.processing_class = value
