"""The files of the model: weights, configuration and tokenizer, in the format of its own library."""

import contextlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..backends._common.helpers import preview
from ..errors import CheckpointError, DiskError, NonFiniteError
from ..formats.durable import make_directory, native_errors, replace_file, sync_directory
from ..formats.safetensors_io import Raw
from ..introspect import accepts, is_overridden
from . import preflight, saved_model, store
from .capture import Contents
from .run_state import ARGUMENTS, STATE
from .saved_run import SavedTrainer

logger = logging.getLogger(__name__)


def write_json(path: Path, data: Any) -> None:
    """Replace a file atomically."""
    replace_file(path, (json.dumps(data, indent=2, sort_keys=True) + "\n").encode())


@contextlib.contextmanager
def writing(directory: Any) -> Iterator[None]:
    """Turn errors of the disk into error messages that say what to do."""
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise DiskError(
            error.errno,
            f"cannot write to {str(directory)!r}: {why}. Choose another directory, free some space, or change its "
            "permissions.",
        ) from error


@contextlib.contextmanager
def _quietly(kind: type) -> Iterator[None]:
    """Suppress the log messages of the library of this class, which would name a temporary folder."""
    library = logging.getLogger(kind.__module__.partition(".")[0])
    level = library.level
    library.setLevel(max(library.getEffectiveLevel(), logging.WARNING))
    try:
        yield
    finally:
        library.setLevel(level)


def _saved_files(thing: Any) -> dict[str, bytes]:
    """The files that save_pretrained of an object writes."""
    if not hasattr(thing, "save_pretrained"):
        return {}
    with tempfile.TemporaryDirectory() as folder:
        with _quietly(type(thing)), native_errors():
            thing.save_pretrained(folder)
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(Path(folder).rglob("*"))
            if path.is_file()
        }


def check_writable(directory: Any) -> None:
    """Raise an error before training, rather than at the first save, if the output directory is not writable."""
    path = Path(directory)
    try:
        make_directory(path)
        with contextlib.suppress(OSError):  # of a directory that others have made, and may not belong to us
            sync_directory(path.absolute().parent)
        probe = path / ".oneloop-probe"  # a fixed name, so that runs that die here do not leave many of them
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"cannot write to output_dir {str(directory)!r}: {error.strerror or error}. Choose another directory, or "
            "change its permissions."
        ) from error


class ModelFiles:
    """Created for each run."""

    def __init__(self, core: SavedTrainer) -> None:
        self.core, self.trainer = core, core.trainer
        self.finite_values = FiniteValues(core)
        self._parts: Any = None  # complete weights by name, and which are tied, during a save
        self._tokenizer: dict[str, bytes] | None = None  # its files, since it does not change during training
        self._unsaved: dict[str, int] = {}  # checksums of buffers that are not saved, until the first save

    def begin(self) -> None:
        """Before the first step: an error or a warning for what cannot be stored."""
        preflight.check(self.core, self.is_default_writer)
        if self.core.mesh.is_main and self.trainer.args.save_strategy != "no":
            self._unsaved = preflight.unsaved_buffers(self.core)

    def start(self) -> None:
        """Training starts, with the weights that it starts from."""
        self.finite_values.start()

    @property
    def is_default_writer(self) -> bool:
        """Whether no override writes the model itself."""
        trainer = self.trainer
        return not is_overridden(trainer, "save_model") and not is_overridden(trainer, "_save")

    def save_without_side_effects(self, output_dir: str) -> None:
        """save_model as a part of another operation: without side effects such as a push."""
        trainer = self.trainer
        known = {"_internal_call": True} if accepts(trainer.save_model, "_internal_call") else {}
        with native_errors():
            trainer.save_model(output_dir, **known)

    @contextlib.contextmanager
    def weights_for(self, folder: Any) -> Iterator[None]:
        """A context in which the model has the weights to save there: in a checkpoint those that training continues
        with, elsewhere the average of a schedule-free optimizer, or that of save_average."""
        run = self.core.run
        if folder is not None and store.is_staged(Path(folder)):
            yield
            return
        with run.modes.evaluated_weights(), run.parts.weights_for("save"):
            yield

    @contextlib.contextmanager
    def full_model(self, is_sharded: bool = False) -> Iterator[None]:
        """A context in which the process that writes has all weights, or each process those that it writes if the save
        `is_sharded`. A collective if the weights are."""
        if self._parts is not None:
            yield
            return
        core, model = self.core, self.trainer.model
        if core.backend.models.is_adapter(core.backend.models.unwrap(model)):
            self._parts = core.strategy.adapter_tensors(model), {}
        else:
            self._parts = (core.strategy.local_model_tensors if is_sharded else core.strategy.model_tensors)(model)
        try:
            yield
        finally:
            self._parts = None

    @contextlib.contextmanager
    def saving_for_callbacks(self) -> Iterator[None]:
        """A context in which callbacks can save the model for a service, by ways that an extension provides."""
        extensions = self.core.extensions.every
        requested = self.core.processes.broadcast_object([each.models_requested() for each in extensions])
        if not any(requested):
            yield
            return
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.full_model())
            for each, names in zip(extensions, requested):
                stack.enter_context(each.saving_models(names, self.trainer._save))
            yield

    def write(self, output_dir: Any, state_dict: dict[str, Any] | None = None) -> None:
        """Write all files of the model to a directory."""
        folder = Path(output_dir)
        with writing(folder):
            if store.is_staged(folder):  # a checkpoint, which is committed with its other files
                self._write(folder, state_dict)
                return
            with saved_model.replacing(folder) as stage:
                self._write(stage, state_dict)

    def _write(self, folder: Path, state_dict: dict[str, Any] | None) -> None:
        contents = Contents()
        self.add_model(contents, folder, None, state_dict)
        contents.write(folder)

    def add_model(self, contents: Contents, folder: Path, copies: Callable | None, state_dict: Any = None) -> None:
        """Weights, configuration and tokenizer. An adapter writes its own small files to the folder immediately.

        `copies` copies tensors, which a save in the background needs.
        """
        core, trainer = self.core, self.trainer
        model = core.backend.models.unwrap(trainer.model)
        if self._unsaved and copies is not None:
            preflight.warn_about_changed_buffers(core, self._unsaved)
            self._unsaved = {}
        if core.backend.models.is_adapter(model):
            gathered = None if self._parts is None else self._parts[0]
            with native_errors():
                core.backend.weights.save_adapter(model, folder, state_dict or gathered)
        else:
            self.add_weights(contents, copies, state_dict)
            config: Any = getattr(model, "config", None)
            # Read by what loads the folder by class, such as pipelines and servers.
            if hasattr(config, "architectures"):
                config.architectures = [core.strategy.class_of(model).__name__]
            for part in ("config", "generation_config"):
                contents.texts.update(_saved_files(getattr(model, part, None)))
        if copies is None or self._tokenizer is None:
            self._tokenizer = _saved_files(trainer.processing_class)
        contents.texts.update(self._tokenizer)
        contents.add_json(ARGUMENTS, trainer.args.to_dict())

    def add_weights(self, contents: Contents, copies: Callable | None, state_dict: Any = None) -> None:
        core = self.core
        weights = core.backend.weights
        tensors, tied = self._parts or weights.model_tensors(core.backend.models.unwrap(core.trainer.model))
        tensors = {f"model/{name}": value for name, value in (state_dict or tensors).items()}
        tensors = tensors if copies is None else copies(tensors)
        metadata = {"format": weights.LAYOUT} | ({"tied": json.dumps(tied)} if tied else {})
        raws = {name.removeprefix("model/"): weights.raw(value) for name, value in tensors.items()}
        contents.add_weights(raws, metadata)


def write_state(state: Any, output_dir: Any) -> None:
    """Write trainer_state.json to the output directory."""
    folder = Path(output_dir)
    with writing(folder):
        make_directory(folder)
        replace_file(folder / STATE, state.to_json().encode())


# -- values that are not finite: a checkpoint with them would be resumed from instead of the good one

BLOCK = 1 << 20  # elements looked at together, so that other threads can run in between

# Types that NumPy lacks, as unsigned integers: the bits of the exponent, which are all set if a value is not finite.
_EXPONENTS = {"BF16": 0x7F80, "F8_E5M2": 0x7C, "F8_E4M3": 0x7F}


def is_finite(raw: Raw) -> bool:
    """Whether a stored tensor has neither NaN nor infinity; types without them do not."""
    if not raw.size or not raw.dtype.startswith(("F", "BF")):
        return True
    values, bits = raw.array().reshape(-1), _EXPONENTS.get(raw.dtype)
    blocks = (values[start : start + BLOCK] for start in range(0, values.size, BLOCK))
    if bits is None:
        return all(bool(np.isfinite(block).all()) for block in blocks)
    return not any(bool(((block & bits) == bits).any()) for block in blocks)


class FiniteValues:
    """Looks at what a checkpoint stores of the model: trainable parameters, and buffers that were finite when train()
    began. Created for each run."""

    def __init__(self, core: SavedTrainer) -> None:
        self.core, self.trainer = core, core.trainer
        self._exempt: set[str] = set()

    def start(self) -> None:
        """When train() begins, with the weights that it starts from: masks of minus infinity are meant to be so."""
        self._exempt = set(self._bad_buffers())

    def _bad_buffers(self) -> list[str]:
        models, tensors = self.core.backend.models, self.core.backend.tensors
        return [buffer.name for buffer in models.buffers(self.trainer.model) if not tensors.is_finite(buffer.current)]

    def names(self) -> set[str]:
        """Names of the tensors that have to be finite. Called by the training thread."""
        core = self.core
        models, model = core.backend.models, core.trainer.model
        trained = {name for name, _ in models.named_parameters(model)}
        return (trained | {buffer.name for buffer in models.buffers(model)}) - self._exempt

    def check(self, contents: Contents, names: set[str], what: str) -> None:
        """Look at copies of these tensors, in the thread that writes them."""
        bad = [
            name
            for file, (group, _) in contents.tensors.items()
            if file.startswith("model")
            for name, raw in group.items()
            if name in names and not is_finite(raw)
        ]
        if bad:
            self._report(bad, what)

    def check_model(self, what: str) -> None:
        """Look at the model itself, whose files others write. A host sync."""
        core = self.core
        if core.strategy.is_sharded:  # each process has a shard of some tensors
            return
        models, tensors = core.backend.models, core.backend.tensors
        bad = [name for name, p in models.named_parameters(core.trainer.model) if not tensors.is_finite(p)]
        bad += [name for name in self._bad_buffers() if name not in self._exempt]
        if bad:
            self._report(bad, what)

    def _report(self, bad: list[str], what: str) -> None:
        words = f"the model has weights or buffers that are not finite: {preview(sorted(bad))}"
        if self.trainer.args.nonfinite != "ignore":
            raise NonFiniteError(words)
        logger.warning("%s is saved, but %s (nonfinite='ignore').", what, words)
