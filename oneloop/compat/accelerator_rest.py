"""The rest of accelerate's Accelerator: what a Trainer's has no use for, as it is there, or refused with what to do."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import ModelError, UnsupportedError
from ..trainer.core import core_of
from . import accelerate_state

if TYPE_CHECKING:
    from ..trainer import Trainer

# What is refused, and what to do instead.
UNSUPPORTED_METHODS = {
    "save_state": "checkpoints are the Trainer's: set control.should_save in a callback, or use save_steps",
    "load_state": "checkpoints are the Trainer's: use train(resume_from_checkpoint=...)",
    "register_for_checkpointing": "add a callback with state of its own (ExportableState), which checkpoints have",
    "register_save_state_pre_hook": "override _save_checkpoint of the Trainer, or use a callback's on_save",
    "register_load_state_pre_hook": "override _load_from_checkpoint of the Trainer",
    "save_model": "use save_model of the Trainer",
    "profile": "use the argument profile",
    "lomo_backward": "optimizers that update weights in the backward pass are not supported",
    "deepspeed_ulysses_dl_adapter": "sequences are not divided over processes",
}
# What accelerate has where a Trainer has not asked for anything else.
_UNSET = (
    *("ao_recipe_handler", "autocast_handler", "ddp_handler", "fp8_recipe_handler", "init_handler", "logging_dir"),
    *("msamp_recipe_handler", "profile_handler", "project_dir", "scaler_handler", "te_recipe_handler"),
    *("torch_device_mesh", "flag_tensor"),
)
_RANKS = ("context_parallel", "data_parallel", "data_parallel_shard", "pipeline_parallel", "tensor_parallel")


class RestOfAccelerator:
    """Base class of `Accelerator`, without state of its own."""

    _trainer: "Trainer"
    _triggered: bool

    # -- constants

    device_placement = True
    step_scheduler_with_optimizer = True
    use_stateful_dataloader = False
    has_lomo_optimizer = has_fp8_handler = fp8_enabled = delayed_fp8_autocast = False
    fp8_backend = "NO"
    save_iteration = 0
    rng_types = ("generator",)

    @property
    def log_with(self) -> list[Any]:
        """No trackers of accelerate: the writers of `report_to` are callbacks."""
        return []

    trackers = log_with

    @property
    def native_amp(self) -> bool:
        return self._trainer.args.mixed_precision != "no"

    @property
    def multi_device(self) -> bool:
        """Whether there are several processes on accelerators."""
        args = self._trainer.args
        kind = str(accelerate_state.accelerator_state(args).distributed_type).rpartition(".")[-1]
        return args.world_size > 1 and kind != "MULTI_CPU"

    @property
    def should_save_model(self) -> bool:
        return self._trainer.is_local_process_zero()

    @property
    def deepspeed_plugin(self) -> Any:
        return accelerate_state.accelerator_state(self._trainer.args).deepspeed_plugin

    @property
    def project_configuration(self) -> Any:
        """accelerate's ProjectConfiguration, without directories; needs accelerate."""
        from accelerate.utils import ProjectConfiguration

        return ProjectConfiguration()

    # -- gradients

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """Clip each number of the gradients in place."""
        engine = core_of(self._trainer).backend.engine
        if engine.RECORDS_TRAINING_STEP:
            raise ModelError(
                "clip_grad_value_ is not supported on MindSpore, whose parameters have no gradients. Use the argument "
                "max_grad_norm, which clips every update."
            )
        self.unscale_gradients()
        with engine.no_gradients():
            for parameter in [parameters] if hasattr(parameters, "grad") else parameters:
                if parameter.grad is not None:
                    parameter.grad.clip_(-clip_value, clip_value)

    def unscale_gradients(self, optimizer: Any = None) -> None:
        """Nothing without a loss scaler; the Trainer unscales by itself."""
        if core_of(self._trainer).engine.scaler is not None:
            raise UnsupportedError(
                "accelerator.unscale_gradients and clip_grad_value_ cannot be used with the loss scaler of fp16: the "
                "Trainer unscales the gradients itself, before on_pre_optimizer_step. There the framework's own "
                "functions can clip them."
            )

    def trigger_sync_in_backward(self, model: Any) -> AbstractContextManager:
        """A context that changes nothing on one process."""
        if self._trainer.args.world_size > 1:
            raise _unsupported_error(
                "trigger_sync_in_backward", "gradients are exchanged in the last micro-batch of an update"
            )
        return nullcontext()

    def join_uneven_inputs(self, joinables: Any, even_batches: bool | None = None) -> AbstractContextManager:
        """A context that changes nothing: processes without a batch are waited for."""
        return nullcontext()

    def maybe_context_parallel(self, *args: Any, **kwargs: Any) -> AbstractContextManager:
        """A context that changes nothing: sequences are not divided over processes."""
        return nullcontext()

    # -- processes

    def on_last_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, called in the last process only; None in the others."""
        return called_if(lambda: self._trainer.args.process_index == self._trainer.args.world_size - 1, function)

    def on_process(self, function: Callable[..., Any] | None = None, process_index: int | None = None) -> Any:
        """The function, called in that process only; a decorator if the function is left out."""
        if function is None:
            return lambda given: self.on_process(given, process_index)
        return called_if(lambda: self._trainer.args.process_index == process_index, function)

    def on_local_process(
        self, function: Callable[..., Any] | None = None, local_process_index: int | None = None
    ) -> Any:
        """The same with the processes of each machine."""
        if function is None:
            return lambda given: self.on_local_process(given, local_process_index)
        return called_if(lambda: self._trainer.args.local_process_index == local_process_index, function)

    def set_trigger(self) -> None:
        """Let check_trigger() be True in all processes."""
        self._triggered = True

    def check_trigger(self) -> bool:
        """Whether any process has called set_trigger() since the last time; a collective."""
        rows = core_of(self._trainer).processes.all_gather([float(self._triggered)])
        self._triggered = False
        return any(row[0] for row in rows)

    # -- trackers

    def init_trackers(self, *args: Any, **kwargs: Any) -> None:
        """Nothing, as with transformers' Trainer, which has no trackers of accelerate."""

    def log(self, values: dict[str, Any], step: int | None = None, log_kwargs: Any = None) -> None:
        """Nothing, likewise. `trainer.log` reaches the writers of `report_to`."""

    def get_tracker(self, name: str, unwrap: bool = False) -> Any:
        """accelerate's empty tracker, whose methods do nothing; needs accelerate."""
        from accelerate.tracking import GeneralTracker

        return GeneralTracker(_blank=True)

    # -- models and loaders

    def prepare_optimizer(self, optimizer: Any, device_placement: bool | None = None) -> Any:
        """The optimizer as it is: train() prepares that of the Trainer."""
        return optimizer

    def prepare_scheduler(self, scheduler: Any) -> Any:
        """The scheduler as it is."""
        return scheduler

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """A loader without its first batches, for a loop of the script's own; needs accelerate."""
        from accelerate.data_loader import skip_first_batches

        return skip_first_batches(dataloader, num_batches)

    def save(self, obj: Any, f: Any, safe_serialization: bool = False) -> None:
        """Save an object of the script's by accelerate's function, in the main process; needs accelerate."""
        if not accelerate_state.is_imported():
            raise _unsupported_error(
                "save", "use the framework's own function in the main process (accelerator.is_main_process)"
            )
        from accelerate.utils import save

        save(obj, f, safe_serialization=safe_serialization)

    def verify_device_map(self, model: Any) -> bool:
        """Whether a model was loaded onto several devices."""
        modules: Iterable[Any] = model.modules() if hasattr(model, "modules") else ()
        return any(len(getattr(each, "hf_device_map", None) or ()) > 1 for each in modules)


def called_if(condition: Callable[[], bool], function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) if condition() else None

    return run


def _unsupported_error(name: str, instead: str) -> UnsupportedError:
    return UnsupportedError(f"accelerator.{name} is not supported by the Trainer's accelerator. Instead: {instead}.")


def _refused(name: str) -> Callable[..., NoReturn]:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise _unsupported_error(name, UNSUPPORTED_METHODS[name])

    refuse.__name__, refuse.__doc__ = name, f"Refused: {UNSUPPORTED_METHODS[name]}."
    return refuse


def _no_rank(kind: str) -> property:
    def refuse(self: Any) -> NoReturn:
        raise RuntimeError(f"accelerator.{kind}_rank: nothing is divided that way. Use accelerator.process_index.")

    return property(refuse)


for _name in UNSUPPORTED_METHODS:
    setattr(RestOfAccelerator, _name, _refused(_name))
for _name in _RANKS:
    setattr(RestOfAccelerator, f"{_name}_rank", _no_rank(_name))
for _name in _UNSET:
    setattr(RestOfAccelerator, _name, None)
