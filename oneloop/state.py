"""The state of a run (TrainerState) and the flags that control it (TrainerControl)."""

import copy
import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from . import behaviour
from .errors import CheckpointError, InvalidTypeError
from .formats.reading import read_json
from .formats.schema import anything, check, mapping
from .formats.structure import TRAINER_STATE
from .secrets import clean

if TYPE_CHECKING:
    from .arguments import TrainingArguments

Exportable = TypeVar("Exportable", bound="ExportableState")


@dataclass
class TrainerState:
    """The progress of a run, for logs and callbacks; written to trainer_state.json."""

    epoch: float | None = field(default_factory=lambda: behaviour.current().initial_epoch)
    global_step: int = 0
    max_steps: int = 0
    logging_steps: int = 500
    eval_steps: int = 500
    save_steps: int = 500
    train_batch_size: int | None = None
    num_train_epochs: int = 0
    num_input_tokens_seen: int = 0
    total_flos: float = 0
    log_history: list[dict[str, Any]] = field(default_factory=list)
    best_metric: float | None = None
    best_global_step: int | None = None
    best_model_checkpoint: str | None = None
    is_local_process_zero: bool = True
    is_world_process_zero: bool = True
    is_hyper_param_search: bool = False
    trial_name: str | None = None
    trial_params: dict[str, Any] | None = None
    stateful_callbacks: dict[str, Any] = field(default_factory=dict)
    """States by class; the constructor also accepts a list of callbacks, whose states it takes."""

    def __post_init__(self) -> None:
        if not isinstance(self.stateful_callbacks, dict):
            self.stateful_callbacks = states_by_class(self.stateful_callbacks or ())
        self.log_history = [] if self.log_history is None else self.log_history

    def to_json(self) -> str:
        """JSON with sorted keys. NaN and infinity, which JSON lacks, are strings that load_from_json converts back."""
        return self.with_rows([row(entry) for entry in self.log_history])

    def with_rows(self, rows: list[str]) -> str:
        """The JSON with these texts of the entries of the history."""
        rest = copy.copy(self)
        rest.log_history = []
        for name in ("stateful_callbacks", "trial_params", "trial_name"):
            setattr(rest, name, clean(getattr(rest, name)))
        text = json.dumps(to_plain(dataclasses.asdict(rest)), indent=2, sort_keys=True, allow_nan=False) + "\n"
        history = "[\n" + ",\n".join(rows) + "\n  ]" if rows else "[]"
        return text.replace('\n  "log_history": []', f'\n  "log_history": {history}', 1)

    def save_to_json(self, json_path: str | os.PathLike[str]) -> None:
        with open(json_path, "w", encoding="utf-8") as f:
            f.write(self.to_json())

    @classmethod
    def load_from_json(cls, json_path: str | os.PathLike[str]) -> "TrainerState":
        """Read trainer_state.json, also one written by another trainer: unknown fields are ignored."""
        return cls.from_json(lambda: read_json(Path(json_path)), json_path)

    @classmethod
    def from_json(cls, read: Callable[[], Any], source: str | os.PathLike[str]) -> "TrainerState":
        """A state of the fields that `read` returns, if they follow their rules."""
        try:
            data = from_plain(check(read(), mapping(anything), "it"))
            check(data, TRAINER_STATE, "it")
        except CheckpointError as error:
            raise CheckpointError(f"{source} is not a valid trainer_state.json: {error}") from error
        return cls.from_fields(data)

    @classmethod
    def from_fields(cls, data: dict[str, Any]) -> "TrainerState":
        """A state of these fields; unknown ones are ignored."""
        known = {f.name for f in dataclasses.fields(cls)}
        return cls(**{key: value for key, value in data.items() if key in known})

    def compute_steps(self, args: "TrainingArguments", max_steps: int) -> None:
        """Resolve the intervals to absolute steps: a value below 1 is a fraction of max_steps."""
        for name in ("logging_steps", "eval_steps", "save_steps"):
            value = getattr(args, name)
            if value is None:
                if args.eval_strategy == "no":  # nothing is evaluated by steps
                    continue
                value = args.logging_steps
            if value < 1:
                value = max(1, math.ceil(max_steps * value))
            setattr(self, name, int(value))
        times = getattr(args, "minimum_eval_times", None)
        if times is not None and times > 0 and max_steps > 0:
            self.eval_steps = max(1, min(self.eval_steps, max_steps // times))


def row(entry: Any) -> str:
    """An entry of the history, as json.dumps with indent=2 writes it. Without an indent it is ten times as fast."""
    plain = to_plain(entry)
    if isinstance(plain, dict) and plain and not any(isinstance(value, (dict, list)) for value in plain.values()):
        inner = json.dumps(plain, sort_keys=True, separators=(",\n      ", ": "), allow_nan=False)
        return f"    {{\n      {inner[1:-1]}\n    }}"
    lines = json.dumps(plain, indent=2, sort_keys=True, allow_nan=False).split("\n")
    return "\n".join(f"    {line}" for line in lines)


def to_plain(value: Any) -> Any:
    """The value in types that JSON supports; NaN and infinity as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, dict):
        return {str(key): to_plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(inner) for inner in value]
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    return to_plain(value.item()) if hasattr(value, "item") and getattr(value, "size", 1) == 1 else str(value)


def from_plain(value: Any) -> Any:
    """The value with the numbers that to_plain has made strings."""
    if value in ("nan", "inf", "-inf"):
        return float(value)
    if isinstance(value, dict):
        return {key: from_plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [from_plain(inner) for inner in value]
    return value


def states_by_class(owners: Iterable[Any]) -> dict[str, Any]:
    """The states of callbacks and of the control, by the name of the class; a list for several of a class."""
    states: dict[str, list[Any]] = {}
    for owner in owners:
        if not has_state(owner):
            raise InvalidTypeError(f"{type(owner).__name__} has no state to save: expected an ExportableState")
        states.setdefault(type(owner).__name__, []).append(copy.deepcopy(owner.state()))
    return {name: several[0] if len(several) == 1 else several for name, several in states.items()}


def has_state(owner: Any) -> bool:
    """Whether an object has state() and from_state(), as an ExportableState does."""
    return isinstance(owner, ExportableState) or (
        callable(getattr(owner, "state", None)) and hasattr(owner, "from_state")
    )


@dataclass
class TrainerControl:
    """Flags with which callbacks control the training loop."""

    should_training_stop: bool = False
    should_epoch_stop: bool = False
    should_save: bool = False
    should_evaluate: bool = False
    should_log: bool = False

    def _new_training(self) -> None:
        self.should_training_stop = False

    def _new_epoch(self) -> None:
        self.should_epoch_stop = False

    def _new_step(self) -> None:
        self.should_save = self.should_evaluate = self.should_log = False

    def state(self) -> dict[str, Any]:
        """The flags as saved in a checkpoint."""
        return {"args": dataclasses.asdict(self), "attributes": {}}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "TrainerControl":
        return cls(**state["args"])


class ExportableState:
    """A mixin for callbacks with state: `state()` is saved in the checkpoint and `from_state` restores it."""

    def state(self) -> dict[str, Any]:
        raise NotImplementedError(f"{type(self).__name__} is an ExportableState and must define state()")

    @classmethod
    def from_state(cls: type[Exportable], state: dict[str, Any]) -> Exportable:
        instance = cls(**state["args"])
        for key, value in state["attributes"].items():
            setattr(instance, key, value)
        return instance
