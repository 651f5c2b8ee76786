"""One shape for all writers: open a run or go on with it, write what is logged, hand over models, close."""

import logging
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from ...arguments import TrainingArguments
from ...arguments.values import is_secret
from ...callbacks import TrainerCallback
from ...errors import ArgumentError, MissingPackageError
from ...state import ExportableState, TrainerControl, TrainerState
from . import progress_marks
from .progress_marks import Mark
from .table import WRITERS

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
    """Whether an environment variable says yes."""
    return os.environ.get(variable, default).strip().lower() in ("1", "true", "yes", "on", "y")


def configuration(model: Any) -> dict[str, Any]:
    """The model's configuration as plain data, without what looks like a secret."""
    config: Any = getattr(model, "config", None)
    found = config.to_dict() if callable(getattr(config, "to_dict", None)) else config
    return {name: value for name, value in found.items() if not _hidden(name)} if isinstance(found, dict) else {}


def _hidden(name: Any) -> bool:
    # A tokenizer's pad_token is no secret: what is hidden has to be a token of something that lets people in.
    text = str(name).lower()
    keys = ("api_key", "apikey", "password", "secret", "auth_token", "access_token", "hub_token", "hf_token")
    return text == "token" or text.endswith(keys)


def flat(values: dict[str, Any], prefix: str = "", joint: str = "/") -> dict[str, Any]:
    """Nested dictionaries as one, for services that take no others."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{joint}{name}" if prefix else str(name)
        found |= flat(value, key, joint) if isinstance(value, dict) and value else {key: value}
    return found


class Writer(TrainerCallback, ExportableState):
    """A subclass defines open, write and close, and what else its service has. Only the main process writes.

    `run` is what the service needs to go on with a run, such as its id; open() finds it empty for a new one, and fills
    it. Every checkpoint keeps it. A service that fails once training has begun costs the run nothing: values wait and
    are offered again with the next ones.
    """

    name = ""  # in report_to
    rewinds: bool = False  # open() takes out what lies at or after resumed_step; the history is written from there
    closes: bool = True  # at the end of training; False where scripts go on writing to the run themselves

    def __init__(self) -> None:
        self.is_open: bool = False
        self.run: dict[str, Any] = {}
        self.owner: str = ""  # the id of the run of oneloop that `run` belongs to
        self.mark: dict[str, Any] = {}
        self.resumed_step: int = 0
        self._seen = Mark()  # what the service had before this process
        self._waiting: list[tuple[int, dict[str, float]]] = []
        self._trained = self._failed = False
        self.run_id: Callable[[], str] = str
        self.save_model: Callable[[str], None] | None = None

    def link(self, run_id: Callable[[], str], save_model: Callable[[str], None]) -> None:
        """What the Trainer lends: the id of its run, and a way to save the model as it is."""
        self.run_id, self.save_model = run_id, save_model

    # -- what a subclass defines

    def open(self, args: TrainingArguments, state: TrainerState) -> None:
        """Start a run, or go on with self.run."""
        raise NotImplementedError

    def parameters(self, arguments: dict[str, Any], model: dict[str, Any]) -> None:
        """The arguments, without secrets, and the model's configuration."""

    def write(self, values: dict[str, float], step: int) -> None:
        """Values under the names that they were logged by."""
        raise NotImplementedError

    def reported(self) -> Mark | None:
        """How far the service has the run that goes on, where it can be asked. A service that writes in the background
        loses its last values when the process is killed; what was noted on the way is then too much."""
        return None

    def flush(self) -> None:
        """Make what was written visible to readers."""

    def close(self) -> None:
        raise NotImplementedError

    def wants(self, what: str) -> bool:
        """Whether to hand over every "checkpoint", or the "model" of the end."""
        return False

    def artifact(self, folder: Path, what: str, state: TrainerState) -> None:
        """Take over a folder: a checkpoint, or the model. It may be deleted afterwards."""

    # -- what they share

    def package(self, module: str = "") -> Any:
        """The module that serves the writer; an error in words when it is not installed."""
        known = WRITERS[self.name]
        try:
            return import_module(module or known.module)
        except ImportError as error:
            raise MissingPackageError(
                f"report_to={self.name!r} needs the package {known.package}, which cannot be imported ({error}). "
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
        if self._trained or resumed:  # a run that only an evaluation has opened is the one that is trained now
            self.shut()
            if not goes_on:
                self.run, self.mark = {}, {}
        self.resumed_step, before = state.global_step if goes_on else 0, self.run
        self._open(args, state)
        goes_on = goes_on and self.run == before  # the service may have lost it, or a script has opened another
        self._trained = True
        self.parameters(public_arguments(args), configuration(model))
        if resumed:
            self._catch_up(args, state, goes_on)
        else:
            self._seen = Mark()

    def _open(self, args: TrainingArguments, state: TrainerState) -> None:
        if self.is_open:
            return
        try:
            self.open(args, state)
        except OSError as error:
            raise ArgumentError(
                f"logging_dir={str(args.logging_dir)!r} cannot be written: {error.strerror or error}. Choose "
                'another directory, or report_to="none".'
            ) from error
        self.owner = self.run_id()
        self.is_open = True

    def _catch_up(self, args: TrainingArguments, state: TrainerState, goes_on: bool) -> None:
        """Write what the run has logged so far and the service does not have."""
        self._seen = Mark()
        if goes_on and self.rewinds:
            self._seen = Mark(self.resumed_step)
        elif goes_on:
            noted = Mark(**self.mark).later(progress_marks.kept(args.output_dir, self.name, self.run))
            found = self.reported()
            self._seen = noted if found is None else found
        self.mark = asdict(self._seen)
        for entry in list(state.log_history):
            self._offer(args, entry, int(entry.get("step", 0)))

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
            self._offer(args, logs, state.global_step)

    def on_predict(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        self.on_log(args, state, control, logs=metrics)

    def _offer(self, args: TrainingArguments, logs: dict[str, Any], step: int) -> None:
        numbers = {
            name: float(value)
            for name, value in logs.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool) and name != "step"
        }
        new = {name: value for name, value in numbers.items() if not self._seen.covers(step, name)}
        if Mark(**self.mark).covers(step, "epoch"):  # every log of a step has it
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
            self._tell(error)
        del self._waiting[:written]
        if written:
            self.mark = asdict(mark)
            progress_marks.keep(args.output_dir, self.name, self.run, mark)

    def _tell(self, error: Exception) -> None:
        """A run is worth more than its report: it goes on, and this is said once."""
        log = logger.debug if self._failed else logger.warning
        text = "Training goes on; values wait and are offered again with the next ones"
        log("report_to=%r failed: %s: %s. %s.", self.name, type(error).__name__, error, text)
        self._failed = True

    def _hand_over(self, folder: Path, what: str, state: TrainerState) -> None:
        try:
            self.artifact(folder, what, state)
        except Exception as error:
            logger.warning(
                "report_to=%r did not take the %s: %s: %s. Training goes on.",
                self.name,
                what,
                type(error).__name__,
                error,
            )

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if self.is_open and self.wants("checkpoint") and folder.is_dir():
            self._hand_over(folder, "checkpoint", state)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.is_open:
            self._write_waiting(args)
        if self.wants("model") and self.save_model is not None:
            with tempfile.TemporaryDirectory() as folder:
                self.save_model(folder)  # all processes do: each may hold a part of the model
                if self.is_open:
                    self._hand_over(Path(folder), "model", state)
        if self.closes:
            self.shut()

    def shut(self) -> None:
        """Close the run, if it is open. A later evaluation opens it again."""
        if not self.is_open:
            return
        if self._waiting:
            logger.error("report_to=%r: the values of %d logs were never taken.", self.name, len(self._waiting))
            self._waiting = []
        try:
            self.close()
        except Exception as error:
            self._tell(error)
        self.is_open, self.resumed_step = False, 0


def public_arguments(args: TrainingArguments) -> dict[str, Any]:
    """The arguments as plain data; whatever is named like a secret is left out altogether."""
    return {name: value for name, value in args.to_dict().items() if not is_secret(name) and not _hidden(name)}


def log_directory(args: TrainingArguments, run: dict[str, Any]) -> str:
    """Where a writer of files writes: on a resume where the run did so far, unless logging_dir names another place."""
    named = args.__dict__.get("_filled", {}).get("logging_dir") != args.logging_dir
    before = os.path.join(args.output_dir, run.get("directory", ""))  # the run may have been moved as a whole
    return before if run.get("directory") and not named and os.path.isdir(before) else str(args.logging_dir)


def remembered(args: TrainingArguments, directory: str) -> str:
    """A directory as a checkpoint keeps it: relative to output_dir when it lies in there."""
    inside = os.path.relpath(os.path.abspath(directory), os.path.abspath(args.output_dir))
    return os.path.abspath(directory) if inside.startswith("..") else inside
