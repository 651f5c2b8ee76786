"""A Trainer in a form that can be sent to another process: without its model, which model_init creates there."""

from typing import TYPE_CHECKING, Any

from ...callbacks import CallbackHandler
from ...callbacks.json_log import JsonLinesCallback
from ...errors import ArgumentError
from ...state import TrainerControl, TrainerState
from ...trainer.core import core_of, install
from ..writers.base import Writer

if TYPE_CHECKING:
    from ...trainer.core import Core
    from .methods import SearchMethods as Trainer

# Attributes of a process; train() creates some of them, and `unpack` the rest.
LEFT = (
    *("model", "model_wrapped", "optimizer", "lr_scheduler", "accelerator", "callback_handler", "state", "control"),
    "_oneloop",
)


def pack(trainer: "Trainer", dumps: Any) -> dict[str, Any]:
    """The parts, each of which can be pickled by `dumps`; raises an error that names one that cannot."""
    attributes = {name: value for name, value in trainer.__dict__.items() if name not in LEFT}
    packed = {
        "class": type(trainer),
        "framework": core_of(trainer).backend.NAME,
        "attributes": attributes,
        "callbacks": [_portable(callback) for callback in trainer.callback_handler.callbacks],
    }
    try:
        dumps(packed)
    except Exception as error:
        for name, value in {**attributes, "class": type(trainer), "callbacks": packed["callbacks"]}.items():
            _try(name, value, dumps)
        raise ArgumentError(f"the Trainer cannot be sent to Ray's workers: {error}") from error
    return packed


def _try(name: str, value: Any, dumps: Any) -> None:
    try:
        dumps(value)
    except Exception as error:
        raise ArgumentError(
            f"{name} ({type(value).__name__}) cannot be sent to Ray's workers ({type(error).__name__}: {error}). Use a "
            "picklable object, or create it in model_init or in get_train_dataloader; or use backend='optuna', which "
            "searches in this process."
        ) from error


def _portable(callback: Any) -> Any:
    """The callback, or, if it holds files or the Trainer, its class, to be instantiated again."""
    return type(callback) if isinstance(callback, (Writer, JsonLinesCallback)) else callback


def unpack(packed: dict[str, Any]) -> "Trainer":
    """Restore the Trainer in this process. It has no model before train()."""
    cls = packed["class"]
    trainer: Trainer = cls.__new__(cls)
    trainer.__dict__.update(packed["attributes"])
    trainer.model = trainer.model_wrapped = trainer.optimizer = trainer.lr_scheduler = None
    trainer.state, trainer.control = TrainerState(), TrainerControl()
    core = install(trainer, packed["framework"])
    core.attach()
    trainer.create_accelerator_and_postprocess()
    found = [_instantiate(callback, core) for callback in packed["callbacks"]]
    trainer.callback_handler = CallbackHandler(found, None, trainer.processing_class, None, None)
    core.extensions.callbacks_changed()
    return trainer


def _instantiate(callback: Any, core: "Core") -> Any:
    if isinstance(callback, type) and issubclass(callback, JsonLinesCallback):
        return callback(lambda: core.run.id)
    return callback() if isinstance(callback, type) else callback
