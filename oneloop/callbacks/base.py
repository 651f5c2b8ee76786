"""The sixteen events of a run, and the handler that calls the callbacks."""

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import ArgumentError
from ..introspect import may_change_control
from ..state import TrainerControl, TrainerState

if TYPE_CHECKING:
    from ..arguments import TrainingArguments

logger = logging.getLogger(__name__)

EVENTS = (
    "on_init_end",
    "on_train_begin",
    "on_train_end",
    "on_epoch_begin",
    "on_epoch_end",
    "on_step_begin",
    "on_pre_optimizer_step",
    "on_optimizer_step",
    "on_substep_end",
    "on_step_end",
    "on_evaluate",
    "on_predict",
    "on_save",
    "on_log",
    "on_prediction_step",
    "on_push_begin",
)
# Finer events, which no method of TrainerCallback announces: a micro-batch was loaded (inputs), and around the
# optimizer step (scaler).
FINER_EVENTS = ("on_load_data_end", "on_optimizer_begin", "on_optimizer_end")


class TrainerCallback:
    """Subclass it and define the events you need: `def on_log(self, args, state, control, logs=None, **kwargs)`.

    kwargs contains model, processing_class (also as tokenizer), optimizer, lr_scheduler, train_dataloader and
    eval_dataloader. An event may change `control` in place or return a new one. Events that are not defined have no
    cost.
    """

    writes_logs: ClassVar[bool] = False  # its on_log is called after that of the others, which may add to the logs

    def on_init_end(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """The Trainer has been constructed."""

    def on_train_begin(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Training starts, or resumes from a checkpoint."""

    def on_train_end(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Training has ended."""

    def on_epoch_begin(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """An epoch starts."""

    def on_epoch_end(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """An epoch has ended."""

    def on_step_begin(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """An update starts, before its first micro-batch."""

    def on_pre_optimizer_step(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Gradients are accumulated and clipped; the optimizer has not stepped yet."""

    def on_optimizer_step(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """The optimizer has stepped; gradients have not been cleared yet."""

    def on_substep_end(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """A micro-batch has ended that is not the last of its update."""

    def on_step_end(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """An update has ended."""

    def on_evaluate(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """An evaluation has ended; kwargs contains metrics."""

    def on_predict(
        self,
        args: "TrainingArguments",
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float],
        **kwargs: Any,
    ) -> TrainerControl | None:
        """A prediction has ended."""

    def on_save(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """A checkpoint has been written completely."""

    def on_log(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """Something was logged; kwargs contains logs."""

    def on_prediction_step(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """A batch of an evaluation or prediction has ended."""

    def on_push_begin(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """The model is about to be uploaded."""


def _listens(callback: Any, event: str) -> bool:
    """Whether a callback defines an event itself. Definitions in base classes of other libraries do not count."""
    method = getattr(callback, event, None)
    if method is None:
        return False
    function = getattr(method, "__func__", method)
    return getattr(function, "__qualname__", "") != f"TrainerCallback.{event}"


class CallbackHandler(TrainerCallback):
    """Calls the callbacks in order. For each event it keeps a list of the callbacks that define it."""

    if TYPE_CHECKING:  # every event, as _event() below makes it

        def _called(
            self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, *extra: Any, **kwargs: Any
        ) -> TrainerControl: ...

        on_init_end = _called
        on_train_begin = _called
        on_train_end = _called
        on_epoch_begin = _called
        on_epoch_end = _called
        on_step_begin = _called
        on_pre_optimizer_step = _called
        on_optimizer_step = _called
        on_substep_end = _called
        on_step_end = _called
        on_evaluate = _called
        on_predict = _called
        on_save = _called
        on_log = _called
        on_prediction_step = _called
        on_push_begin = _called
        on_load_data_end = _called
        on_optimizer_begin = _called
        on_optimizer_end = _called

    def __init__(
        self, callbacks: Sequence[Any], model: Any, processing_class: Any, optimizer: Any, lr_scheduler: Any
    ) -> None:
        self.callbacks: list[Any] = []
        self._listeners: dict[str, list[Callable[..., TrainerControl | None]]] = {}
        self.model = model
        self.processing_class = processing_class
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.train_dataloader: Any = None
        self.eval_dataloader: Any = None
        for callback in callbacks:
            self.add_callback(callback)

    def add_callback(self, callback: Any) -> None:
        """Add a callback, given as an instance or a class; a second one of the same class is added with a warning."""
        instance = callback() if isinstance(callback, type) else callback
        if not any(callable(getattr(instance, event, None)) for event in EVENTS):
            raise ArgumentError(
                f"Invalid callback {type(instance).__name__}: it defines no event. Expected a TrainerCallback, as an "
                f"instance or a class, with methods such as {EVENTS[1]} or {EVENTS[9]}."
            )
        if type(instance) in [type(cb) for cb in self.callbacks]:
            logger.warning(
                "A callback of class %s has already been added; it will be called twice. Callbacks: %s",
                type(instance).__name__,
                self.callback_list.replace("\n", ", "),
            )
        self.callbacks.append(instance)
        self.refresh()

    def _find(self, callback: Any) -> Any:
        for known in self.callbacks:
            if isinstance(known, callback) if isinstance(callback, type) else known is callback or known == callback:
                return known
        return None

    def pop_callback(self, callback: Any) -> Any:
        """Remove a callback, given as an instance or a class, and return it; None if it is not found."""
        found = self._find(callback)
        if found is not None:
            self.callbacks.remove(found)
            self.refresh()
        return found

    def remove_callback(self, callback: Any) -> None:
        self.pop_callback(callback)

    @property
    def callback_list(self) -> str:
        return "\n".join(type(cb).__name__ for cb in self.callbacks)

    def refresh(self) -> None:
        """Update which callbacks define which events."""
        self._listeners = {
            event: [getattr(cb, event) for cb in self.callbacks if _listens(cb, event)]
            for event in (*EVENTS, *FINER_EVENTS)
        }
        # What a callback adds to the logs reaches every callback that writes them.
        in_order = sorted(self.callbacks, key=lambda cb: getattr(cb, "writes_logs", False))
        self._listeners["on_log"] = [cb.on_log for cb in in_order if _listens(cb, "on_log")]
        # Events that a callback defines or that clear a flag; the loop skips the others.
        self.active: set[str] = {event for event, methods in self._listeners.items() if methods or event in _CLEARED}
        self._may_change_control: bool | None = None

    @property
    def may_change_control(self) -> bool:
        """Whether any callback may set flags of `control` that callbacks of other processes do not set."""
        if self._may_change_control is None:
            self._may_change_control = any(
                may_change_control(callback, (*EVENTS, *FINER_EVENTS)) for callback in self.callbacks
            )
        return self._may_change_control

    def call_event(
        self, event: str, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Call one event on all callbacks that define it, and return the resulting control."""
        for method in self._listeners[event]:
            result = method(
                args,
                state,
                control,
                model=self.model,
                processing_class=self.processing_class,
                tokenizer=self.processing_class,
                optimizer=self.optimizer,
                lr_scheduler=self.lr_scheduler,
                train_dataloader=self.train_dataloader,
                eval_dataloader=self.eval_dataloader,
                **kwargs,
            )
            if result is not None:
                control = result
        return control


def _event(name: str, flags: tuple[str, ...] = ()) -> Callable[..., TrainerControl]:
    def call(
        self: CallbackHandler,
        args: "TrainingArguments",
        state: TrainerState,
        control: TrainerControl,
        *extra: Any,
        **kwargs: Any,
    ) -> TrainerControl:
        for flag in flags:
            setattr(control, flag, False)
        if extra:  # on_evaluate(args, state, control, metrics) and on_log(args, state, control, logs)
            kwargs[_POSITIONAL[name]] = extra[0]
        return self.call_event(name, args, state, control, **kwargs)

    call.__name__ = name
    call.__qualname__ = f"CallbackHandler.{name}"
    return call


_POSITIONAL = {"on_evaluate": "metrics", "on_predict": "metrics", "on_log": "logs"}
_CLEARED = {
    "on_train_begin": ("should_training_stop",),
    "on_epoch_begin": ("should_epoch_stop",),
    "on_step_begin": ("should_log", "should_evaluate", "should_save"),
    "on_evaluate": ("should_evaluate",),
    "on_save": ("should_save",),
    "on_log": ("should_log",),
}
for _name in (*EVENTS, *FINER_EVENTS):
    setattr(CallbackHandler, _name, _event(_name, _CLEARED.get(_name, ())))
