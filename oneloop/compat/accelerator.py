"""The part of `self.accelerator` that overrides written for other trainers use."""

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError
from ..introspect import replaces
from ..trainer.core import core_of
from ..trainer.gathering import map_leaves
from . import accelerate_gathers, accelerate_state, mode
from .accelerate_state import OwnGradientState
from .accelerator_rest import RestOfAccelerator, called_if

if TYPE_CHECKING:
    from ..trainer import Trainer


class Accelerator(RestOfAccelerator):
    """A view of the Trainer's engine with accelerate's names.

    State that accelerate has is its own object: `state`, `gradient_state`. Both are shared by the process, as there.
    """

    def __init__(self, trainer: "Trainer") -> None:
        self._trainer = trainer
        self.step = 0  # contexts of accumulate() that were entered
        self._gradient_state: Any = accelerate_state.gradient_state(trainer.args)
        self._even_batches: bool | None = None  # None: as accelerator_config says
        self._triggered = False  # by set_trigger(), in this process
        if accelerate_state.is_imported():
            _ = self.state  # libraries read AcceleratorState() by themselves, which has to be initialised by then
            accelerate_gathers.follow(trainer)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Accelerator":
        """Another view of the same Trainer, or of its copy if that is being copied."""
        made = object.__new__(type(self))
        memo[id(self)] = made
        for name, value in vars(self).items():
            is_shared = name == "_trainer" or (name == "_gradient_state" and not isinstance(value, OwnGradientState))
            made.__dict__[name] = memo.get(id(value), value) if is_shared else copy.deepcopy(value, memo)
        return made

    # -- the process and its device

    @property
    def state(self) -> Any:
        """accelerate's AcceleratorState where it is installed, or the same names."""
        return accelerate_state.accelerator_state(self._trainer.args)

    @property
    def device(self) -> Any:
        return self._trainer.args.device

    @property
    def num_processes(self) -> int:
        """Those with different batches: what is gathered has one row for each, and losses are scaled by their number.
        Processes that divide a model or a sequence count once."""
        return core_of(self._trainer).mesh.num_batches

    @property
    def process_index(self) -> int:
        """The place of this process among them."""
        return core_of(self._trainer).mesh.batch_index

    @property
    def local_process_index(self) -> int:
        return self._trainer.args.local_process_index

    @property
    def is_main_process(self) -> bool:
        return self._trainer.is_world_process_zero()

    @property
    def is_local_main_process(self) -> bool:
        return self._trainer.is_local_process_zero()

    @property
    def is_last_process(self) -> bool:
        return self._trainer.args.process_index == self._trainer.args.world_size - 1

    @property
    def distributed_type(self) -> Any:
        """accelerate's DistributedType, which equals a string such as "NO" or "MULTI_GPU"."""
        return self.state.distributed_type

    @property
    def mixed_precision(self) -> str:
        """no, fp16 or bf16."""
        return self._trainer.args.mixed_precision

    @property
    def parallelism_config(self) -> Any:
        """The argument of that name; None if nothing but the data is split over processes."""
        return self._trainer.args.parallelism_config

    @property
    def is_fsdp2(self) -> bool:
        """Whether the model is sharded by FSDP2: `sharding` with stage 2 or 3."""
        return any(base.__name__ == "FSDPModule" for base in type(self._trainer.model).__mro__)

    is_composable_parallelism_enabled = is_fsdp2

    # -- options of accelerator_config

    @property
    def dataloader_config(self) -> Any:
        """The argument accelerator_config, which has the options of loaders."""
        return self._trainer.args.accelerator_config

    @property
    def even_batches(self) -> bool:
        """Whether a prepared loader repeats samples until all processes have as many batches; may be set."""
        return self.dataloader_config.even_batches if self._even_batches is None else self._even_batches

    @even_batches.setter
    def even_batches(self, value: bool) -> None:
        self._even_batches = value

    @property
    def split_batches(self) -> bool:
        return self.dataloader_config.split_batches

    @property
    def dispatch_batches(self) -> bool | None:
        return self.dataloader_config.dispatch_batches

    @property
    def use_seedable_sampler(self) -> bool:
        return self.dataloader_config.use_seedable_sampler

    @property
    def non_blocking(self) -> bool:
        return self.dataloader_config.non_blocking is not False

    # -- gradients

    @property
    def sync_gradients(self) -> bool:
        """Whether the micro-batch under way is the last of its update; True outside of updates. The run sets it."""
        return self.gradient_state.sync_gradients

    @sync_gradients.setter
    def sync_gradients(self, value: bool) -> None:
        self.gradient_state.sync_gradients = value

    @property
    def gradient_accumulation_steps(self) -> int:
        """In transformers scripts 1, as there: the Trainer accumulates. There it may be set, for accumulate()."""
        if mode.emulates("transformers"):
            return self.gradient_state.num_steps
        return self._trainer.args.gradient_accumulation_steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, value: int) -> None:
        if not mode.emulates("transformers"):
            raise ArgumentError(
                f"accelerator.gradient_accumulation_steps was set to {value}, but the Trainer accumulates. Set "
                "gradient_accumulation_steps in the TrainingArguments."
            )
        self.gradient_state.plugin_kwargs["num_steps"] = value

    @property
    def use_distributed(self) -> bool:
        """Whether there are several processes."""
        return not core_of(self._trainer).mesh.is_single

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether the last update was left out, because it was not finite or the loss scale had overflowed."""
        return bool(core_of(self._trainer).engine.is_bad)

    @contextmanager
    def accumulate(self, *models: Any) -> Iterator[None]:
        """In transformers scripts accelerate's context: it counts `step` and sets `sync_gradients` by its own
        accumulation, of one micro-batch unless `gradient_accumulation_steps` is set. Otherwise it changes nothing: the
        Trainer accumulates."""
        if not mode.emulates("transformers"):
            yield
            return
        state = self.gradient_state
        is_last = state.sync_with_dataloader and state.end_of_dataloader
        self.step = 0 if is_last else self.step + 1
        self.sync_gradients = is_last or self.step % state.num_steps == 0
        every = self.use_distributed and state.plugin_kwargs.get("sync_each_batch", False)
        with ExitStack() as contexts:
            for model in () if self.sync_gradients or every else models:
                contexts.enter_context(self.no_sync(model))
            yield

    def on_main_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, called in the main process only; None in the others."""
        return called_if(lambda: self.is_main_process, function)

    def on_local_main_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, called in the main process of each machine only."""
        return called_if(lambda: self.is_local_main_process, function)

    @property
    def gradient_state(self) -> Any:
        """accelerate's GradientState, which its loaders write, if some code has imported it; or the same names. The one
        that train() finds at its start is written until its end."""
        is_own = isinstance(self._gradient_state, OwnGradientState)
        if is_own and accelerate_state.is_imported() and not self._trainer.is_in_train:
            self._gradient_state = accelerate_state.gradient_state(self._trainer.args)
        return self._gradient_state

    @property
    def _models(self) -> list[Any]:
        """The models that train() has prepared, for a copied evaluation loop, which prepares one if there are none."""
        return [self._trainer.model_wrapped] if self._trainer.is_in_train else []

    @property
    def scaler(self) -> Any:
        """The loss scaler of fp16, or None."""
        engine = core_of(self._trainer).engine
        return None if engine is None else engine.scaler

    def backward(self, loss: Any, **kwargs: Any) -> None:
        """Accumulate the gradients of a loss; the loss is not divided."""
        core_of(self._trainer).engine.backward(loss, **kwargs)

    def loss_and_gradients(self, compute: Callable[[], Any], divisor: Any = None) -> Any:
        """Run compute and add the gradients of the loss that it returns, divided by divisor, to those held; the loss.

        For frameworks that differentiate functions, where a loss cannot be handed to backward().
        """
        return core_of(self._trainer).engine.loss_and_gradients(compute, divisor)

    def autocast(self, *args: Any, **kwargs: Any) -> Any:
        return core_of(self._trainer).engine.autocast()

    def no_sync(self, model: Any) -> AbstractContextManager:
        """A context in which a wrapper's gradients are not exchanged between processes."""
        return model.no_sync() if hasattr(model, "no_sync") else nullcontext()

    def clip_grad_norm_(self, parameters: Iterable[Any], max_norm: float, norm_type: float = 2.0) -> Any:
        return core_of(self._trainer).backend.engine.clip_norm(parameters, max_norm, norm_type)

    # -- values of all processes

    def _each(self, value: Any, name: str, *how: Any) -> Any:
        core = core_of(self._trainer)
        group = core.strategy.batches  # each batch counts once
        if group.size == 1:
            return value
        one = getattr(core.backend.parallel, name)
        return map_leaves(value, lambda leaf: one(leaf, group, *how))

    def gather(self, value: Any) -> Any:
        """Gather the tensors of all processes, concatenated along the first axis."""
        return self._each(value, "gather")

    def gather_for_metrics(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """The same as gather, without what a loader of accelerate has in its last batch beyond the end of the data:
        repeated samples, or a loss that an evaluation loop has repeated for a whole batch.

        oneloop's own loaders never repeat samples.
        """
        gathered = self._each(value, "gather")
        if not accelerate_state.is_imported():
            return gathered
        state = self.gradient_state
        if not state.in_dataloader or not state.end_of_dataloader or state.remainder <= 0:
            return gathered
        return map_leaves(gathered, lambda leaf: leaf[: state.remainder])

    def pad_across_processes(self, value: Any, dim: int = 0, pad_index: float = 0, **kwargs: Any) -> Any:
        return self._each(value, "pad", dim, pad_index)

    def reduce(self, value: Any, reduction: str = "sum", **kwargs: Any) -> Any:
        return self._each(value, "reduce", reduction)

    @contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        """This process's part of a list, tuple, dict of lists, or tensor; the first processes have one item more."""
        yield _part(inputs, self.process_index, self.num_processes, apply_padding)

    def wait_for_everyone(self) -> None:
        """Wait for all processes."""
        core_of(self._trainer).processes.barrier()

    def main_process_first(self) -> AbstractContextManager:
        return self._trainer.args.main_process_first(local=False)

    def local_main_process_first(self) -> AbstractContextManager:
        return self._trainer.args.main_process_first(local=True)

    def print(self, *values: Any, **kwargs: Any) -> None:
        if self.is_main_process:
            print(*values, **kwargs)

    # -- models and loaders

    def unwrap_model(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """The unwrapped model."""
        return core_of(self._trainer).backend.models.unwrap(model)

    def get_state_dict(self, model: Any, unwrap: bool = True) -> dict[str, Any]:
        """All weights of a model, also of one that is sharded; a collective then."""
        core = core_of(self._trainer)
        model = self.unwrap_model(model) if unwrap else model
        owner = core.strategy if model is self._trainer.model else core.backend.weights
        tensors, tied = owner.model_tensors(model)
        return {**tensors, **{name: tensors[first] for name, first in tied.items() if first in tensors}}

    def prepare(self, *objects: Any, **kwargs: Any) -> Any:
        """Loaders of PyTorch's class for this process and device. The rest of a Trainer is prepared by train()."""
        prepared = tuple(self._prepared(each) for each in objects)
        return prepared[0] if len(prepared) == 1 else prepared

    def _prepared(self, value: Any) -> Any:
        return self.prepare_data_loader(value) if _is_plain_loader(value) else value

    def prepare_model(self, model: Any, device_placement: bool | None = None, evaluation_mode: bool = False) -> Any:
        """Another model than the Trainer's, such as a reference: on the device, in the precision of the run."""
        core = core_of(self._trainer)
        if model is self._trainer.model:
            return self._trainer.model_wrapped
        if device_placement is not False:
            model = core.backend.devices.move_model(model, self.device)
        if core.engine.autocasts_forward:
            core.engine.forward_context(model).__enter__()  # for good: what prepared a model never ends
        elif self.mixed_precision != "no":
            model.forward = _within(core.engine.autocast, model.forward)
        return model

    def prepare_data_loader(self, data_loader: Any, device_placement: bool | None = None, **kwargs: Any) -> Any:
        """The batches of this process from a loader that oneloop did not make, on the device; needs accelerate."""
        from accelerate.data_loader import prepare_data_loader

        options = self.dataloader_config
        return prepare_data_loader(
            data_loader,
            self.device,
            num_processes=self.num_processes,
            process_index=self.process_index,
            split_batches=options.split_batches,
            put_on_device=device_placement is not False,
            dispatch_batches=options.dispatch_batches,
            even_batches=self.even_batches,
            non_blocking=self.non_blocking,
            use_seedable_sampler=options.use_seedable_sampler,
            data_seed=self._data_seed(),
        )

    def for_evaluation(self, loader: Any) -> Any:
        """accelerate's loader if a subclass has an evaluation loop of its own, which may ask `gradient_state` for the
        end of the data; otherwise the given one. On several processes it has been divided, and stays as it is."""
        is_torch = core_of(self._trainer).backend.NAME == "torch" and accelerate_state.is_imported()
        is_copied = not self.use_distributed and replaces(self._trainer, "evaluation_loop")
        return self.prepare_data_loader(loader) if is_torch and is_copied else loader

    def _data_seed(self) -> int | None:
        """The seed of the order of a prepared loader. None is the seed of torch's generator, which differs between
        processes: each would take its part of another order."""
        args = self._trainer.args
        return args.data_seed if not self.use_distributed else core_of(self._trainer).data_seed

    def free_memory(self, *objects: Any) -> Any:
        """Empty the device's cache; None in place of each object."""
        core_of(self._trainer).backend.devices.empty_cache(self.device)
        return tuple(None for _ in objects)

    clear = free_memory

    def end_training(self) -> None:
        """Writers are closed by the Trainer."""


def _is_plain_loader(value: Any) -> bool:
    """Whether this is torch's DataLoader itself: subclasses are accelerate's or oneloop's, and prepared."""
    return type(value).__module__.startswith("torch.utils.data") and type(value).__name__ == "DataLoader"


def _part(inputs: Any, rank: int, size: int, pad: bool) -> Any:
    """The items of one process; with pad, the last item is repeated until all processes have the same number."""
    if isinstance(inputs, dict):
        return {key: _part(value, rank, size, pad) for key, value in inputs.items()}
    each, rest = divmod(len(inputs), size)
    start = rank * each + min(rank, rest)
    end = start + each + (rank < rest)
    if not (pad and rest and rank >= rest):
        return inputs[start:end]
    padded = [*range(start, end), len(inputs) - 1]
    return type(inputs)(inputs[i] for i in padded) if isinstance(inputs, (list, tuple)) else inputs[padded]


def _within(context: Callable[[], AbstractContextManager], function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, run in a context."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with context():
            return function(*args, **kwargs)

    return run
