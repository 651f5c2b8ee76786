"""Trainer: the class that users instantiate and subclass.

It has the public methods, those that may be overridden, and the public attributes. oneloop.public adds what stands on
top of the core. The state of a run is in the objects in `_oneloop` (see core.py), which train() creates for each
run.
"""

import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn

from .. import behaviour
from ..backends import loading
from ..callbacks import CallbackHandler
from ..checkpoint.capture import callback_states
from ..checkpoint.model_files import write_state
from ..data.mixture import parts_of
from ..data.order import NoBatch
from ..data.samplers import IndexSampler
from ..errors import ArgumentError, DataError, ModelError, OneloopError, shorten
from ..introspect import accepts, takes_trial
from ..outputs import BestRun, EvalLoopOutput, PredictionOutput, TrainOutput
from ..protocols import (
    Batch,
    Callback,
    Collator,
    Count,
    DataLoader,
    Dataset,
    Datasets,
    LossFunction,
    Metrics,
    Model,
    Optimizer,
    OptionalAttribute,
    PathLike,
    Sampler,
    Scheduler,
    Tensor,
    Trial,
)
from ..state import TrainerControl, TrainerState
from . import dataloaders, label_shift, setup, signatures, validation
from .constructor import describe, normalize_init_args
from .core import Core, create
from .evaluation import evaluation_loop, run_loop, with_speed
from .export import export_model
from .generic import Args_co, TrainerBase
from .inputs import in_half, with_past
from .loss import default_compute_loss
from .metrics import MetricsMethods, hide_secrets
from .optimization import build_optimizer, build_scheduler
from .overridable import OverridableMethods
from .part import RestartRequested
from .prediction import predict_batch
from .signatures import typed_as
from .validation import has_length

if TYPE_CHECKING:
    from ..arguments import TrainingArguments

_END = object()  # what next() returns when there are no more batches


class Trainer(MetricsMethods, OverridableMethods, TrainerBase[Args_co]):
    """Trains, evaluates and predicts with a torch.nn.Module, paddle.nn.Layer or mindspore.nn.Cell.

    Methods may be overridden: compute_loss, training_step, create_optimizer,
    get_train_dataloader, prediction_step, log and others.

    Everything after model_init is passed by name. A criterion passed as the second argument is recognised by its type.

    Args:
        model: A torch.nn.Module, paddle.nn.Layer or mindspore.nn.Cell. Its forward takes the columns of a batch by
            name and returns the loss if there are labels.
        args: The training arguments; by default TrainingArguments("tmp_trainer").
        data_collator: A function of a list of samples that returns a batch. By default samples are stacked, and
            padded if there is a tokenizer.
        train_dataset: Training data: a list, a dataset with a length and items, or an iterable. A dict of datasets
            by name is mixed: see Mixture and the arguments mixture_weights, mixture_temperature and mixture_stop.
        eval_dataset: Evaluation data, or a dict of several by name.
        tokenizer: The same as processing_class.
        model_init: A function that returns a new model, instead of model. It may take the trial of a search.
        criterion: A function of (logits, labels) that returns the loss, for models that do not.
        processing_class: The tokenizer or processor; pads batches and is saved with the model.
        compute_loss_func: A function of (outputs, labels, num_items_in_batch) that returns the loss.
        compute_metrics: A function of an EvalPrediction that returns a dict of metrics.
        callbacks: Callbacks, in addition to the default ones.
        optimizers: A pair of optimizer and schedule; None for those that the Trainer should create.
        optimizer_cls_and_kwargs: A pair of an optimizer's class and its keyword arguments. In place of the class, a
            factory: called without arguments, it returns a function of the model and these arguments.
        preprocess_logits_for_metrics: A function of (logits, labels) that is called on each batch of an
            evaluation, such as argmax, to keep less in memory.
        map_fn: A function over columns, for datasets of mindspore.dataset.
    """

    args: Args_co
    # A subclass may declare these as what they are in its framework.
    model: Any
    model_wrapped: Any  # the model with wrappers such as torch.compile: the one that is called
    model_init: OptionalAttribute[Callable[..., Model]]
    data_collator: Collator
    train_dataset: OptionalAttribute[Dataset]
    eval_dataset: OptionalAttribute[Datasets]
    processing_class: Any
    criterion: OptionalAttribute[LossFunction]
    compute_loss_func: OptionalAttribute[LossFunction]
    compute_metrics: OptionalAttribute[Metrics]
    preprocess_logits_for_metrics: OptionalAttribute[Callable[[Any, Any], Any]]
    optimizer: Any
    lr_scheduler: Any
    optimizer_cls_and_kwargs: OptionalAttribute[tuple[Callable[..., Any], dict[str, Any]]]
    callback_handler: CallbackHandler
    state: TrainerState
    control: TrainerControl
    label_names: list[str]
    is_in_train: bool

    _oneloop: Core

    def __init__(
        self,
        model: Model | None = None,
        args: Args_co | LossFunction | None = None,
        data_collator: Collator | Args_co | None = None,
        train_dataset: Datasets | None = None,
        eval_dataset: Datasets | None = None,
        tokenizer: object = None,
        model_init: Callable[..., Model] | None = None,
        *positional: NoReturn,
        criterion: LossFunction | None = None,
        processing_class: object = None,
        compute_loss_func: LossFunction | None = None,
        compute_metrics: Metrics | None = None,
        callbacks: Callback | type[Callback] | Sequence[Callback | type[Callback]] | None = None,
        optimizers: Sequence[Optimizer | Scheduler | None] | None = (None, None),
        optimizer_cls_and_kwargs: tuple[Callable[..., Any], dict[str, Any]] | None = None,
        preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None = None,
        map_fn: Callable[..., Any] | None = None,
        **unknown: NoReturn,
    ) -> None:
        given = normalize_init_args(type(self), locals())
        self.args = setup.arguments(given.args)
        validation.functions(given, type(self))
        core = create(self, given.model, given.model_init)
        self.processing_class = validation.tokenizer(given.tokenizer, given.processing_class)
        self.train_dataset, self.eval_dataset = setup.datasets(self, given)
        self.criterion = given.criterion
        self.compute_loss_func = given.compute_loss_func
        self.compute_metrics = given.compute_metrics
        self.preprocess_logits_for_metrics = given.preprocess_logits_for_metrics
        self.optimizer, self.lr_scheduler = validation.optimizers(
            given.optimizers, given.optimizer_cls_and_kwargs, given.model_init, core.backend
        )
        self.optimizer_cls_and_kwargs = given.optimizer_cls_and_kwargs
        core.set_user_optimizers(self.optimizer, self.lr_scheduler)
        validation.data(self, core.backend)
        core.prepare_model()
        self.data_collator = setup.collator(given.data_collator, self.processing_class, core.backend.NAME)
        core.attach()
        self.state = TrainerState(
            is_local_process_zero=self.is_local_process_zero(), is_world_process_zero=self.is_world_process_zero()
        )
        self.control = TrainerControl()
        self.callback_handler = setup.callback_handler(core, given.callbacks)
        self.state.stateful_callbacks = callback_states(self)
        core.extensions.callbacks_changed()
        core.make_engine()
        self.create_accelerator_and_postprocess()
        self.is_in_train = False
        core.extensions.created()
        core.memory.stop("init", core.backend, self.args.device, core.memory.of_init)
        self.control = self.callback_handler.on_init_end(self.args, self.state, self.control)

    def __repr__(self) -> str:
        return describe(self)

    def call_model_init(self, trial: Trial | None = None) -> Model:
        """A new model from model_init, which accepts no argument or a trial."""
        model = self.model_init(trial) if takes_trial(self.model_init) else self.model_init()
        if model is None:
            raise ModelError("model_init returned None; expected the model")
        return model

    # -- callbacks and properties of the run

    def add_callback(self, callback: Callback | type[Callback]) -> None:
        """Add a callback.

        Args:
            callback: An instance of TrainerCallback, or its class.
        """
        self.callback_handler.add_callback(callback)
        self._oneloop.extensions.callbacks_changed()

    def pop_callback(self, callback: Callback | type[Callback]) -> Callback | None:
        """Remove a callback and return it.

        Args:
            callback: The instance, or its class.
        """
        return self.callback_handler.pop_callback(callback)

    def remove_callback(self, callback: Callback | type[Callback]) -> None:
        """Remove a callback.

        Args:
            callback: The instance, or its class.
        """
        self.callback_handler.remove_callback(callback)

    def is_local_process_zero(self) -> bool:
        """Whether this is the main process of its machine."""
        return self.args.local_process_index == 0

    def is_world_process_zero(self) -> bool:
        """Whether this is the main process of all."""
        return self.args.process_index == 0

    @typed_as(signatures.get_total_train_batch_size)
    def get_total_train_batch_size(self, args: "TrainingArguments | None" = None) -> int:
        """Samples of one update: all devices, all accumulation steps."""
        run = self._oneloop.run
        return run.batch_size * run.accumulation * self._oneloop.mesh.num_batches

    def batch_cost(self, samples: int, longest: int) -> float:
        """What a training micro-batch costs of max_tokens_per_batch: its tokens, with padding. May be overridden, for
        example to count attention: `samples * longest * (1 + longest / 1000)`.

        Args:
            samples: How many samples the micro-batch has.
            longest: The length of the longest one.
        """
        return samples * longest

    def record_event(self, event: str, **facts: object) -> None:
        """Append an event to the record of the run, run.jsonl in output_dir; the report page shows it.

        Args:
            event: The name of the event.
            facts: What to record with it, as plain data.
        """
        self._oneloop.run.events.add(event, **facts)

    @property
    def tokenizer(self) -> Any:
        """The former name of processing_class."""
        return self.processing_class

    @tokenizer.setter
    def tokenizer(self, value: object) -> None:
        self.processing_class = value
        if "callback_handler" in self.__dict__:  # a subclass may set it before super().__init__()
            self.callback_handler.processing_class = value

    # -- training

    @typed_as(signatures.train)
    def train(
        self,
        resume_from_checkpoint: str | bool | PathLike | None = None,
        trial: Trial | BestRun | None = None,
        ignore_keys_for_eval: list[str] | None = None,
        **kwargs: str | bool | PathLike | None,
    ) -> TrainOutput:
        """Train to the end of the run, and return its metrics.

        Args:
            resume_from_checkpoint: The directory of a checkpoint, or True for the newest complete one in output_dir. By
                default args.resume_from_checkpoint.
            trial: The trial of a hyperparameter search, which model_init receives. What hyperparameter_search returned
                sets the arguments of that trial too.
            ignore_keys_for_eval: Keys of the model's outputs that evaluations during training ignore.
            kwargs: model_path, the former name of resume_from_checkpoint.

        Returns:
            TrainOutput: the last step, the mean loss, and metrics such as train_runtime.
        """
        if "model_path" in kwargs:  # an older name of it
            resume_from_checkpoint = kwargs.pop("model_path")
        if kwargs:
            raise ArgumentError(f"train() has no argument {', '.join(kwargs)}; remove it")
        if resume_from_checkpoint is None:
            resume_from_checkpoint = self.args.resume_from_checkpoint
        core = self._oneloop
        trial = core.extensions.prepare_trial(trial)
        self.args.validate()
        setup.bind(self.args, core.backend)
        if self.model_init is None:
            core.adopt_model()
        core.extensions.before_train()
        after = None
        while True:
            try:
                return core.train(resume_from_checkpoint, trial, ignore_keys_for_eval, after)
            except RestartRequested as request:
                after, resume_from_checkpoint = request.restart, request.restart.checkpoint
            except OneloopError as error:
                raise shorten(error)  # noqa: B904 (it is the same error)

    @typed_as(signatures.training_step)
    def training_step(self, model: Model, inputs: Batch, num_items_in_batch: Count | None = None) -> Tensor:
        """Compute the gradients of one micro-batch and add them to those of the update. May be overridden.

        Args:
            model: The model, with wrappers such as torch.compile.
            inputs: The micro-batch, not yet on the device.
            num_items_in_batch: The number of items (labels other than -100, or samples) in the whole update.

        Returns:
            The loss of the micro-batch, weighted by its share of the update.
        """
        core = self._oneloop
        if core.run.modes.waiting:
            core.run.modes.train()
        core.backend.models.train_mode(model)
        context, inputs = self._prepare_context_parallel_inputs(model, inputs)
        with context():
            inputs = self._prepare_inputs(inputs)
            update = core.run.update
            return update.backward(model, inputs, num_items_in_batch, update.terms)

    def _prepare_context_parallel_inputs(self, model: Model, inputs: Batch) -> tuple[Callable, Batch]:
        """(a function that returns the context of a training step, the inputs): sequences are not split here."""
        return nullcontext, inputs

    @typed_as(signatures.compute_loss)
    def compute_loss(
        self, model: Model, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Count | None = None
    ) -> Any:
        """The loss of a micro-batch: its mean, or, given num_items_in_batch, its share of the mean of the update.

        May be overridden. An override that does not use num_items_in_batch returns the mean of its micro-batch.

        Args:
            model: The model, with wrappers such as torch.compile.
            inputs: The micro-batch on the device: a dict of tensors.
            return_outputs: Whether to return the outputs of the model as well.
            num_items_in_batch: The number of items (labels other than -100, or samples) in the whole update.

        Returns:
            The loss; with return_outputs, (loss, outputs).
        """
        core = self._oneloop
        remembers = self.args.past_index >= 0
        loss, outputs = default_compute_loss(
            core, model, inputs, num_items_in_batch, core.run.update.terms, return_outputs or remembers
        )
        if remembers:
            core.run.update.store_past(outputs)
        return (loss, outputs) if return_outputs else loss

    def compute_loss_context_manager(self) -> AbstractContextManager:
        """The context of compute_loss: autocast if mixed precision is enabled. Where the behaviour says so, the
        model's forward pass is autocast instead."""
        return self._oneloop.engine.loss_context()

    def floating_point_ops(self, inputs: Batch) -> float:
        """Floating-point operations of forward and backward: six per matrix weight and token. May be overridden."""
        core = self._oneloop
        return 6.0 * core.run.meter.tokens_in(inputs) * core.model_info.matrix_parameters

    def store_flos(self) -> None:
        """Store the counts of tokens and operations in the state. A collective on several processes."""
        self._oneloop.run.meter.store(self.state)

    # -- data

    def get_train_dataloader(self) -> DataLoader:
        """The loader of the training data: in oneloop's order, which is a pure function of (seed, epoch, position)."""
        if self.train_dataset is None:
            raise DataError("no training data: pass train_dataset= to the Trainer")
        return self._get_dataloader(
            dataset=self.train_dataset,
            description="Training",
            batch_size=self._oneloop.run.batch_size,
            sampler_fn=self._get_train_sampler,
            is_training=True,
        )

    def get_eval_dataloader(self, eval_dataset: Datasets | None = None) -> DataLoader:
        """The loader of an evaluation dataset. May be overridden.

        With dataloader_persistent_workers, the loaders of the Trainer's own datasets are kept until training ends.

        Args:
            eval_dataset: A dataset, or the name of one of the Trainer's; by default the Trainer's.
        """
        own = eval_dataset is None or isinstance(eval_dataset, str) or eval_dataset is self.eval_dataset
        key = eval_dataset if isinstance(eval_dataset, str) else "eval"
        if own and self.args.dataloader_persistent_workers and key in self._eval_dataloaders:
            return self._eval_dataloaders[key]
        if isinstance(eval_dataset, str):
            eval_dataset = dataloaders.dataset_named(eval_dataset, self.eval_dataset)
        if eval_dataset is None:
            eval_dataset = self.eval_dataset
        if eval_dataset is None:
            raise DataError("no evaluation data: pass eval_dataset= to the Trainer or to evaluate()")
        return self._get_dataloader(
            dataset=eval_dataset,
            description="Evaluation",
            batch_size=self.args.eval_batch_size,
            sampler_fn=self._get_eval_sampler,
            dataloader_key=key if own else None,
        )

    def get_test_dataloader(self, test_dataset: Dataset) -> DataLoader:
        """The loader of a dataset to predict on. May be overridden.

        Args:
            test_dataset: The dataset.
        """
        if test_dataset is None:
            raise DataError("no data to predict on: pass test_dataset to predict().")
        return self._get_dataloader(
            dataset=test_dataset,
            description="test",
            batch_size=self.args.eval_batch_size,
            sampler_fn=self._get_eval_sampler,
        )

    def _get_dataloader(
        self,
        dataset: Dataset,
        description: str,
        batch_size: int,
        sampler_fn: Callable[..., Any] | None = None,
        is_training: bool = False,
        dataloader_key: str | None = None,
    ) -> DataLoader:
        """The loader of any dataset, with the collator and workers of the Trainer; the three methods above call it.

        sampler_fn(dataset) returns a sampler of indices or of batches. With dataloader_persistent_workers, a loader
        with a key is kept in _eval_dataloaders until training ends.
        """
        core, where = self._oneloop, dataloaders.ARGUMENT_OF.get(description, description)
        loader = dataloaders.make_loader(core, dataset, where, batch_size, sampler_fn, is_training)
        if not is_training:
            loader = core.extensions.evaluation_loader(loader)
        if dataloader_key is not None and self.is_in_train and self.args.dataloader_persistent_workers:
            self._eval_dataloaders[dataloader_key] = loader
            core.run.seeds.before_iterating(loader, dataloader_key)
        return loader

    def num_examples(self, dataloader: DataLoader) -> int:
        """Samples in a loader; estimated from its batches if the dataset has no length."""
        try:
            return len(dataloader.dataset)
        except (TypeError, AttributeError, NotImplementedError, ValueError, RuntimeError):
            return len(dataloader) * self.args.per_device_train_batch_size

    @typed_as(signatures.any_parameters)
    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> Sampler | None:
        """Sample indices in training order, with set_epoch; None for data that can only be iterated."""
        core = self._oneloop
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if dataset is None or core.backend.loaders.is_iterable(dataset) or not has_length(dataset):
            return None
        return IndexSampler(dataloaders.train_orders(core, dataset))

    def _get_eval_sampler(self, eval_dataset: Dataset) -> Sampler | None:
        """Sample indices of an evaluation, in the order of the data."""
        return dataloaders.in_order(eval_dataset)

    @typed_as(signatures.get_batch_samples)
    def get_batch_samples(
        self, epoch_iterator: Iterator[Batch], num_batches: int, device: object = None
    ) -> tuple[list[Any], Count | None]:
        """The micro-batches of the next update, and the number of their items (None if nothing needs it)."""
        batches = []
        for _ in range(num_batches):
            batch = next(epoch_iterator, _END)
            if batch is _END:
                break
            if isinstance(batch, NoBatch):  # fewer samples than processes were left at the end of the epoch
                continue
            if batch is None:
                raise DataError(
                    "the data_collator returned None; expected a batch. Check that it has a return statement."
                )
            batches.append(batch)
        return batches, self._get_num_items_in_batch(batches, device)

    @typed_as(signatures.any_parameters)
    def _get_num_items_in_batch(self, batch_samples: list[Batch], device: object) -> Count | None:
        """The items in the micro-batches of an update, in training only if something needs their number. May be
        overridden."""
        update = self._oneloop.run.update
        if self.is_in_train:
            return update.count_update_items(batch_samples)
        label_shift.find(self._oneloop, batch_samples)
        return sum(update.count_items(batch) for batch in batch_samples) if batch_samples else None

    def _prepare_inputs(self, inputs: Batch) -> Batch:
        """The batch on the device, with the output of the previous step if past_index is set."""
        core = self._oneloop
        inputs = self._prepare_input(inputs)
        if inputs is None or (hasattr(inputs, "__len__") and len(inputs) == 0):
            raise DataError(
                "empty batch: the data_collator returned nothing that model.forward accepts. "
                "Check the columns of the dataset, or set remove_unused_columns=False."
            )
        if core.model_info.input_half is not None:
            inputs = in_half(inputs, core.model_info.input_half, self.label_names, core.backend)
        past = core.run.update.past
        if self.args.past_index >= 0 and past is not None:
            inputs = with_past(inputs, past, self.args.past_index)
        return inputs

    def _prepare_input(self, data: Any) -> Any:
        """A tensor, or nested tensors, on the device. An override is called for each part of a batch too."""
        if type(self)._prepare_input is not Trainer._prepare_input:
            if isinstance(data, Mapping):
                return type(data)({name: self._prepare_input(part) for name, part in data.items()})  # type: ignore[call-arg]
            if isinstance(data, (tuple, list)):
                return type(data)(self._prepare_input(part) for part in data)
        return self._oneloop.to_device(data)

    # -- optimizer and schedule

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Create both, unless they were passed in. Override it, or one of the two below."""
        if "lr_scheduler" in inspect.signature(self.create_optimizer).parameters:
            # An override that builds an optimizer with its schedule.
            self.create_scheduler(num_training_steps=num_training_steps)
            self.create_optimizer(self.lr_scheduler)
            return
        self.create_optimizer()
        known = {"optimizer": self.optimizer} if accepts(self.create_scheduler, "optimizer") else {}
        self.create_scheduler(num_training_steps=num_training_steps, **known)

    @typed_as(signatures.create_optimizer)
    def create_optimizer(self, model: Model | Scheduler | None = None) -> Optimizer:
        """Create the optimizer over all trainable parameters, without decay on biases and norms. May be overridden.

        Args:
            model: The model whose parameters are optimized; by default the Trainer's. Overrides that build it
                with its schedule pass that in its place.

        Returns:
            The optimizer, which is also in self.optimizer.
        """
        model = self.model if model is None or model is self.lr_scheduler else model
        if self.optimizer is None:
            self.optimizer = build_optimizer(self, model)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> Scheduler:
        """Create the learning-rate schedule, a pure function of the step. May be overridden.

        Args:
            num_training_steps: Updates of the whole run.
            optimizer: The optimizer; without one, a schedule to create it with.

        Returns:
            The schedule, which is also in self.lr_scheduler.
        """
        if self.lr_scheduler is None:
            optimizer = self.optimizer if optimizer is None else optimizer
            self.lr_scheduler = build_scheduler(self, optimizer, num_training_steps)
        return self.lr_scheduler

    def get_decay_parameter_names(self, model: Model) -> list[str]:
        """Names of the parameters that weight decay applies to."""
        return self._oneloop.backend.models.decay_names(model)

    @staticmethod
    def get_optimizer_cls_and_kwargs(
        args: "TrainingArguments", model: Model | None = None
    ) -> tuple[Callable[..., Any], dict[str, Any]]:
        """The optimizer class for args.optim, and its keyword arguments.

        An override may add what is optimized, in place of the model's parameters: as `params`, `model` or
        `optimizer_dict`, a list of parameter groups or of parameters.

        Where scripts create the optimizer with a schedule in place of the rate, there is no rate.
        """
        backend = loading.of_model(model) if model is not None else loading.default_backend()
        cls, options = backend.optimizers.class_and_options(args, model)
        if model is None and behaviour.of(backend.NAME).optimizer_options_without_rate:
            options.pop("learning_rate", None)
        return cls, options

    def get_learning_rates(self) -> list[float]:
        """The learning rate of each parameter group."""
        if self.optimizer is None:
            raise ArgumentError("there is no optimizer yet: call train() or create_optimizer() first")
        return self._oneloop.backend.optimizers.learning_rates(self.optimizer)

    def _get_learning_rate(self) -> float:
        """The learning rate of the next update. A step calls it before the schedule, for the logs."""
        if self.optimizer is None:
            return float(self.args.learning_rate)
        return self._oneloop.backend.optimizers.learning_rates(self.optimizer)[0]

    def get_num_trainable_parameters(self) -> int:
        """The number of trainable parameters."""
        return self._oneloop.backend.models.num_parameters(self.model, trainable=True)

    def get_optimizer_group(self, param: Tensor | str | None = None) -> dict[str, Any] | list[dict[str, Any]]:
        """The group of a parameter, given by itself or by name; without one, all groups."""
        if self.optimizer is None:
            raise ArgumentError("there is no optimizer yet: call train() or create_optimizer() first")
        backend = self._oneloop.backend
        if isinstance(param, str):
            param = dict(backend.models.named_parameters(self.model))[param]
        return backend.optimizers.group_of(self.optimizer, param)

    # -- evaluation and prediction

    def evaluate(
        self,
        eval_dataset: Datasets | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Evaluate, log the metrics and return them.

        Args:
            eval_dataset: A dataset, a dict of datasets, whose names become prefixes of the metrics, or the name of one
                of the Trainer's; by default the Trainer's.
            ignore_keys: Keys of the model's outputs to ignore.
            metric_key_prefix: What the names of the metrics begin with.

        Returns:
            The metrics: eval_loss, what compute_metrics returned, and the speed.
        """
        core = self._oneloop
        override = eval_dataset is not None
        eval_dataset = parts_of(eval_dataset) if override else self.eval_dataset
        if isinstance(eval_dataset, dict):
            metrics: dict[str, float] = {}
            for name, part in eval_dataset.items():
                metrics.update(self.evaluate(part if override else name, ignore_keys, f"{metric_key_prefix}_{name}"))
            return metrics
        core.memory.start("eval", core.backend, self.args.device)
        as_given = core.behaviour.evaluates_dataset_as_given and not override
        loader = self.get_eval_dataloader(None if as_given else eval_dataset)
        started = time.time()
        loss_only = self.compute_metrics is None or None
        output = run_loop(self, loader, "Evaluation", loss_only, ignore_keys, metric_key_prefix)
        metrics = core.processes.broadcast_object(with_speed(self.args, output, metric_key_prefix, started))
        core.memory.stop("eval", core.backend, self.args.device, metrics)
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics=metrics)
        return metrics

    def _evaluate(
        self, trial: Trial | None, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False
    ) -> dict[str, float]:
        """The evaluation after a training step: evaluate(), then pass the metrics to the schedule and the search."""
        return self._oneloop.run.step_end.evaluate_and_report(ignore_keys_for_eval, skip_scheduler)

    @typed_as(signatures.any_parameters)
    def _determine_best_metric(self, metrics: dict[str, float], trial: Trial | None = None) -> bool:
        """Whether an evaluation is the best so far, by metric_for_best_model; the state keeps its metric and step."""
        return self._oneloop.run.step_end.update_best(metrics)

    def predict(
        self, test_dataset: Dataset, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Predict on a dataset; with labels, metrics as well.

        Args:
            test_dataset: The dataset.
            ignore_keys: Keys of the model's outputs to ignore.
            metric_key_prefix: What the names of the metrics begin with.

        Returns:
            PredictionOutput: predictions and label_ids as NumPy arrays, in the order of the dataset, and metrics.
        """
        core = self._oneloop
        core.memory.start("test", core.backend, self.args.device)
        loader = self.get_test_dataloader(test_dataset)
        started = time.time()
        output = run_loop(self, loader, "Prediction", None, ignore_keys, metric_key_prefix)
        metrics = core.processes.broadcast_object(with_speed(self.args, output, metric_key_prefix, started))
        core.memory.stop("test", core.backend, self.args.device, metrics)
        self.control = self.callback_handler.on_predict(self.args, self.state, self.control, metrics=metrics)
        return PredictionOutput(output.predictions, output.label_ids, metrics)

    @typed_as(signatures.evaluation_loop)
    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        max_eval_iters: int | None = -1,
    ) -> EvalLoopOutput:
        """One pass over a loader: predictions, labels and metrics. evaluate() and predict() both run it.

        max_eval_iters limits the number of batches.
        """
        most = max_eval_iters if max_eval_iters is not None and max_eval_iters > 0 else None
        return evaluation_loop(
            self, dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix, most
        )

    @typed_as(signatures.evaluation_loop)
    def prediction_loop(self, *args: object, **kwargs: object) -> EvalLoopOutput:
        """The former name of evaluation_loop."""
        return self.evaluation_loop(*args, **kwargs)  # type: ignore[arg-type]

    def prediction_step(
        self, model: Model, inputs: Batch, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Any, Any, Any]:
        """The outputs of one batch of an evaluation. May be overridden.

        Args:
            model: The model, with wrappers such as torch.compile.
            inputs: The batch, not yet on the device.
            prediction_loss_only: Whether only the loss is needed.
            ignore_keys: Keys of the model's outputs to ignore.

        Returns:
            (loss, logits, labels), detached and on the device; each may be None.
        """
        return predict_batch(self, model, inputs, prediction_loss_only, ignore_keys)

    # -- logs

    @typed_as(signatures.log)
    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        """Add values to the history, and call on_log of the callbacks. May be overridden.

        Args:
            logs: Names and numbers.
            start_time: The start of the run in seconds since 1970; adds tokens per second, if tokens are counted.
        """
        core = self._oneloop
        if self.state.epoch is not None:
            logs["epoch"] = self.state.epoch
            if core.behaviour.logs_interval_speeds:
                logs["progress_or_epoch"] = round(self.state.epoch, 4)
        if core.run.meter.mode != "no":
            self.store_flos()
            logs["num_input_tokens_seen"] = self.state.num_input_tokens_seen
            if start_time is not None:
                seconds = time.time() - start_time
                if core.behaviour.logs_train_runtime:
                    logs["train_runtime"] = round(seconds, 4)
                logs["train_tokens_per_second"] = round(self.state.num_input_tokens_seen / max(seconds, 1e-9), 3)
        hide_secrets(logs)
        entry = {**logs, "step": self.state.global_step}
        self.state.log_history.append(entry)
        self.control = self.callback_handler.on_log(self.args, self.state, self.control, logs=logs)
        if core.behaviour.history_has_added_keys:
            entry.update({name: value for name, value in logs.items() if name not in entry})
        core.run.directory.upload_files(is_strict=False)

    def log_metric(self, name: str, value: Tensor | float, weight: Tensor | float = 1.0) -> None:
        """Add a value to an average that is in the next log; during an evaluation, in its metrics.

        Call it in compute_loss, in a callback or in the model: the log has the average over micro-batches, processes
        and steps since the last log. Values stay on the device until then.

        Args:
            name: The name in the logs; in metrics of an evaluation, after their prefix ("eval_").
            value: A number, or a tensor with one element.
            weight: How much the value counts, such as the number of tokens that it is the mean of.
        """
        self._oneloop.run.logged_metrics.record(name, value, weight)

    # -- the model and the run as files

    @typed_as(signatures.save_model)
    def save_model(
        self,
        output_dir: str | PathLike | None = None,
        _internal_call: bool = False,
        merge_tensor_parallel: bool = False,
    ) -> None:
        """Write the model, its configuration and its tokenizer so that the model's own library can load them.

        A collective: all processes must call it, since each may hold a shard of the model. One of them writes the
        complete model.

        Args:
            output_dir: Where to write, a directory or a URL of object storage; by default args.output_dir.
            merge_tensor_parallel: Has no effect; the model is always written whole.
        """
        checkpointer = self._oneloop.run.checkpointer
        with (
            checkpointer.directory.saving(output_dir) as folder,
            checkpointer.model_files.weights_for(folder),
            checkpointer.model_files.full_model(),
        ):
            if self.args.should_save:
                self._save(str(folder or checkpointer.directory.display_path))
        checkpointer.mark_saved(output_dir or checkpointer.directory.display_path)
        if not _internal_call:
            self._oneloop.extensions.model_saved()

    @typed_as(signatures.any_parameters)
    def _save(
        self,
        output_dir: str | None = None,
        state_dict: dict[str, Tensor] | None = None,
        merge_tensor_parallel: bool = False,
    ) -> None:
        """Write the files of save_model; called only in the process that writes."""
        checkpointer = self._oneloop.run.checkpointer
        checkpointer.model_files.write(output_dir or checkpointer.directory.path, state_dict)

    def save_state(self) -> None:
        """Write trainer_state.json to the output directory. All processes must call it."""
        self.store_flos()
        if self.args.should_save:
            directory = self._oneloop.run.directory
            write_state(self.state, directory.path)
            directory.upload_files()

    @typed_as(signatures.any_parameters)
    def _save_checkpoint(
        self, model: Model | None = None, trial: Trial | None = None, metrics: dict[str, float] | None = None
    ) -> None:
        """Save everything that a resumed run needs in output_dir/checkpoint-STEP.

        Training blocks only for the copy; files are written in the background, and on_save is called after their
        commit. An override that calls it finds the complete directory when it returns, and may write into it: on_save
        is called when the override has returned.
        """
        self._oneloop.run.checkpointer.save()

    def rename_parameter(self, name: str, framework: str) -> str:
        """Override it to resume a checkpoint of another framework whose model has other names.

        Args:
            name: The name of a weight in that checkpoint, in torch's terms: weight, bias, running_mean.
            framework: The framework that wrote it.

        Returns:
            The name in this model, in torch's terms as well.
        """
        return name

    def export(
        self,
        output_dir: str | PathLike | None = None,
        input_spec: object = None,
        dataset: Dataset | None = None,
    ) -> list[str]:
        """Export the model for inference, and return the paths of the files.

        The exported model is loaded again and compared with the model on one batch.

        Args:
            output_dir: Where to write; by default output_dir/export.
            input_spec: Other inputs than those of a batch, in the framework's own format.
            dataset: The dataset whose first batch gives the inputs; by default the evaluation or the training dataset.
        """
        return export_model(self, output_dir, input_spec, dataset)
