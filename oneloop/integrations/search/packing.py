"""A Trainer in a form that can be sent to another process: without its model, which model_init creates there."""

from typing import TYPE_CHECKING, Any

from ... import backends
from ...callbacks import CallbackHandler
from ...checkpoint import store
from ...compat.accelerator import Accelerator
from ...errors import ArgumentError
from ...state import TrainerControl, TrainerState
from ...trainer.meter import MemoryTracker
from ..writers.base import Writer
from ..writers.json_log import JsonLinesCallback

if TYPE_CHECKING:
    from ...trainer import Trainer

# Attributes of a process or a run; train() creates some of them, and `unpack` the rest.
LEFT = (
    *("model", "model_wrapped", "optimizer", "lr_scheduler", "engine", "accelerator", "callback_handler", "memory"),
    *(
        "losses",
        "processes",
        "strategy",
        "backend",
        "state",
        "control",
        "_saver",
        "_buffers",
        "_leaving",
        "_watch",
        "_plan",
    ),
    *("_compiled_for_eval", "_model_parts", "_spare", "_past", "_given_optimizers", "_init_memory", "_unpadded"),
    *("_epoch_random", "_resume_random", "_resume_streams", "_place", "_trial", "_class_weights"),
)


def pack(trainer: "Trainer", dumps: Any) -> dict[str, Any]:
    """The parts, each of which can be pickled by `dumps`; raises an error that names one that cannot."""
    attributes = {name: value for name, value in trainer.__dict__.items() if name not in LEFT}
    packed = {
        "class": type(trainer),
        "framework": trainer.backend.NAME,
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
    from ...trainer import setup

    cls = packed["class"]
    trainer: Trainer = cls.__new__(cls)
    trainer.__dict__.update(packed["attributes"])
    args = trainer.args
    trainer.backend = backends.load(packed["framework"])
    trainer.processes = args.processes
    trainer.strategy = setup.strategy(args, trainer.backend, trainer.processes)
    trainer.model = trainer.model_wrapped = trainer.optimizer = trainer.lr_scheduler = trainer.engine = None
    trainer._given_optimizers = (None, None)
    trainer.memory, trainer._init_memory = MemoryTracker(not args.skip_memory_metrics), {}
    trainer._run_id = store.new_run_id()
    trainer.state, trainer.control = TrainerState(), TrainerControl()
    trainer._trial, trainer._plan = None, None
    trainer.accelerator = Accelerator(trainer)
    found = [_instantiate(callback, trainer) for callback in packed["callbacks"]]
    trainer.callback_handler = CallbackHandler(found, None, trainer.processing_class, None, None)
    setup.link_writers(trainer)
    return trainer


def _instantiate(callback: Any, trainer: "Trainer") -> Any:
    if isinstance(callback, type) and issubclass(callback, JsonLinesCallback):
        return callback(lambda: trainer._run_id)
    return callback() if isinstance(callback, type) else callback
