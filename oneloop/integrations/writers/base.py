"""Base class of the writers: start or resume a run of the service, write logs, upload models, close."""

import logging
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from ... import secrets
from ...arguments import TrainingArguments
from ...arguments.reporting import default_log_directory
from ...callbacks import TrainerCallback
from ...errors import ArgumentError, MissingPackageError
from ...parser.values import TRUE_WORDS
from ...state import ExportableState, TrainerControl, TrainerState
from ...writers import WRITERS
from . import progress_marks
from .progress_marks import Mark

logger = logging.getLogger(__name__)


def tag(name: str) -> str:
    """eval_loss -> eval/loss, test_loss -> test/loss, loss -> train/loss."""
    for split in ("eval", "test"):
        if name.startswith(f"{split}_"):
            return f"{split}/{name[len(split) + 1 :]}"
    return f"train/{name}"


def untag(name: str) -> str:
    """The other way round: train/loss -> loss, eval/loss -> eval_loss."""
    split, _, rest = name.partition("/")
    return rest if split == "train" else f"{split}_{rest}" if split in ("eval", "test") else ""


def switch(variable: str, default: str = "") -> bool:
    """Whether an environment variable is set to a true value."""
    return os.environ.get(variable, default).strip().lower() in TRUE_WORDS


def configuration(model: Any) -> dict[str, Any]:
    """The model's configuration as plain data, without secrets."""
    config: Any = getattr(model, "config", None)
    found = config.to_dict() if callable(getattr(config, "to_dict", None)) else config
    return secrets.public(found) if isinstance(found, dict) else {}


def flat(values: dict[str, Any], prefix: str = "", joint: str = "/") -> dict[str, Any]:
    """Flatten nested dictionaries, for services that do not support them."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{joint}{name}" if prefix else str(name)
        found |= flat(value, key, joint) if isinstance(value, dict) and value else {key: value}
    return found


class Writer(TrainerCallback, ExportableState):
    """Subclasses define open, write and close, and whatever else the service supports. Only the main process writes.

    `run` is what the service needs to resume a run, such as its id; it is empty for a new run, and open()
    fills it. It is saved in every checkpoint. If the service fails during training, the run continues: values are kept
    and sent again with the next ones.
    """

    writes_logs = True

    name = ""  # in report_to
    rewinds: bool = False  # open() removes values at or after resumed_step; the history is written again from there
    closes: bool = True  # close at the end of training; False if scripts continue to write to the run

    def __init__(self) -> None:
        self.is_open: bool = False
        self.run: dict[str, Any] = {}
        self.owner: str = ""  # the oneloop run id that `run` belongs to
        self.mark: dict[str, Any] = {}
        self.resumed_step: int = 0
        self._seen = Mark()  # what the service had received before this process
        self._waiting: list[tuple[int, dict[str, float]]] = []
        self._trained = self._failed = False
        self.run_id: Callable[[], str] = str
        self.save_model: Callable[[str], None] | None = None
        self._folder: Callable[[], Path] | None = None  # output_dir, which a run resolves when it starts

    def link(
        self, run_id: Callable[[], str], save_model: Callable[[str], None], folder: Callable[[], Path] | None = None
    ) -> None:
        """Called by the Trainer with functions that return its run id, save the current model, and return its output
        directory."""
        self.run_id, self.save_model, self._folder = run_id, save_model, folder

    def output_folder(self, args: TrainingArguments) -> Path:
        return Path(args.output_dir or "") if self._folder is None else self._folder()

    # -- to be defined by subclasses

    def open(self, args: TrainingArguments, state: TrainerState) -> None:
        """Start a run, or resume self.run."""
        raise NotImplementedError

    def parameters(self, arguments: dict[str, Any], model: dict[str, Any]) -> None:
        """The arguments, without secrets, and the model's configuration."""

    def write(self, values: dict[str, float], step: int) -> None:
        """Write values under their logged names."""
        raise NotImplementedError

    def reported(self) -> Mark | None:
        """The progress of the resumed run as known to the service, if it can be queried. A service that writes in the
        background loses its last values when the process is killed; the local mark is then too far ahead."""
        return None

    def flush(self) -> None:
        """Make what was written visible to readers."""

    def close(self) -> None:
        raise NotImplementedError

    def wants(self, what: str) -> bool:
        """Whether to upload every "checkpoint", or the final "model"."""
        return False

    def artifact(self, folder: Path, what: str, state: TrainerState) -> None:
        """Upload a folder: a checkpoint, or the model. It may be deleted afterwards."""

    # -- common to all writers

    def package(self, module: str = "") -> Any:
        """The writer's module; raises MissingPackageError if it is not installed."""
        known = WRITERS[self.name]
        try:
            return import_module(module or known.module)
        except ImportError as error:
            raise MissingPackageError(
                f"report_to={self.name!r} requires the package {known.package}, which cannot be imported ({error}). "
                f"pip install {known.package}"
            ) from error

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"run": self.run, "owner": self.owner, "mark": self.mark}}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero:
            return
        resumed = state.global_step > 0
        goes_on = resumed and bool(self.run) and self.owner == self.run_id()
        if self._trained or resumed:  # a run opened by an evaluation is reused for training
            self.shut()
            if not goes_on:
                self.run, self.mark = {}, {}
        self.resumed_step, before = state.global_step if goes_on else 0, self.run
        self._open(args, state)
        goes_on = goes_on and self.run == before  # the service may have lost it, or the script may have opened another
        self._trained = True
        self.parameters(public_arguments(args), configuration(model))
        if resumed:
            self._replay_missed(args, state, goes_on)
        else:
            self._seen = Mark()

    def _open(self, args: TrainingArguments, state: TrainerState) -> None:
        if self.is_open:
            return
        try:
            self.open(args, state)
        except OSError as error:
            raise ArgumentError(
                f"logging_dir={str(args.logging_dir)!r} cannot be written: {error.strerror or error}. Use "
                'another directory, or report_to="none".'
            ) from error
        self.owner = self.run_id()
        self.is_open = True

    def _replay_missed(self, args: TrainingArguments, state: TrainerState, goes_on: bool) -> None:
        """Write what the run has logged so far and the service has not received."""
        self._seen = Mark()
        if goes_on and self.rewinds:
            self._seen = Mark(self.resumed_step)
        elif goes_on:
            noted = Mark(**self.mark).later(progress_marks.kept(self.output_folder(args), self.name, self.run))
            found = self.reported()
            self._seen = noted if found is None else found
        self.mark = asdict(self._seen)
        for entry in list(state.log_history):
            self._queue(args, entry, int(entry.get("step", 0)))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if state.is_world_process_zero and logs:
            self._open(args, state)
            self._queue(args, logs, state.global_step)

    def on_predict(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        self.on_log(args, state, control, logs=metrics)

    def _queue(self, args: TrainingArguments, logs: dict[str, Any], step: int) -> None:
        numbers = {
            name: float(value)
            for name, value in logs.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool) and name != "step"
        }
        new = {name: value for name, value in numbers.items() if not self._seen.covers(step, name)}
        if Mark(**self.mark).covers(step, "epoch"):  # every log of a step contains it
            new.pop("epoch", None)
        if new:
            self._waiting.append((step, new))
        self._write_waiting(args)

    def _write_waiting(self, args: TrainingArguments) -> None:
        mark, written = Mark(**self.mark), 0
        try:
            for step, values in self._waiting:
                self.write(values, step)
                mark.add(step, values)
                written += 1
            if written:
                self.flush()
        except Exception as error:
            self._warn_once(error)
        del self._waiting[:written]
        if written:
            self.mark = asdict(mark)
            progress_marks.keep(self.output_folder(args), self.name, self.run, mark)

    def _warn_once(self, error: Exception) -> None:
        """A failing writer must not stop the run; warn once."""
        log = logger.debug if self._failed else logger.warning
        text = "Training continues; values are kept and sent again with the next ones"
        why = secrets.clean_text(str(error))
        log("report_to=%r failed: %s: %s. %s.", self.name, type(error).__name__, why, text)
        self._failed = True

    def _upload(self, folder: Path, what: str, state: TrainerState) -> None:
        try:
            self.artifact(folder, what, state)
        except Exception as error:
            logger.warning(
                "report_to=%r could not upload the %s: %s: %s. Training continues.",
                self.name,
                what,
                type(error).__name__,
                secrets.clean_text(str(error)),
            )

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        folder = self.output_folder(args) / f"checkpoint-{state.global_step}"
        if self.is_open and self.wants("checkpoint") and folder.is_dir():
            self._upload(folder, "checkpoint", state)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.is_open:
            self._write_waiting(args)
        if self.wants("model") and self.save_model is not None:
            with tempfile.TemporaryDirectory() as folder:
                self.save_model(folder)  # called in all processes: each may hold a shard of the model
                if self.is_open:
                    self._upload(Path(folder), "model", state)
        if self.closes:
            self.shut()

    def shut(self) -> None:
        """Close the run if it is open. A later evaluation reopens it."""
        if not self.is_open:
            return
        if self._waiting:
            logger.error("report_to=%r: the values of %d logs could not be written.", self.name, len(self._waiting))
            self._waiting = []
        try:
            self.close()
        except Exception as error:
            self._warn_once(error)
        self.is_open, self.resumed_step = False, 0


def public_arguments(args: TrainingArguments) -> dict[str, Any]:
    """The arguments as plain data; anything named like a secret is removed."""
    return secrets.public(args.to_dict())


def log_directory(args: TrainingArguments, run: dict[str, Any], output_dir: Path, wanted: str | None = None) -> str:
    """The directory of a file writer: on a resume that of the run so far, unless logging_dir is another one. Absolute,
    since writers open their files again by name.

    `wanted` is used where logging_dir is not given. Arguments that are a library's own may have no logging_dir.
    """
    directory = args.logging_dir
    named = directory is not None and args.__dict__.get("_defaulted", {}).get("logging_dir") != directory
    if not named and wanted is not None:
        return os.path.abspath(wanted)
    before = os.path.join(output_dir, run.get("directory", ""))  # the output directory may have been moved
    goes_on = run.get("directory") and not named and os.path.isdir(before)
    return os.path.abspath(before if goes_on else directory or default_log_directory(args.output_dir or ""))


def stored_directory(directory: str, output_dir: Path) -> str:
    """A directory as stored in a checkpoint: relative to output_dir if it is inside."""
    inside = os.path.relpath(os.path.abspath(directory), os.path.abspath(output_dir))
    return os.path.abspath(directory) if inside.startswith("..") else inside
