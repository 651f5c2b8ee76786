"""The model on its own as files: weights, configuration and tokenizer, for the library that it comes from."""

import contextlib
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..checkpoint.contents import Contents
from ..compat import service_callbacks
from ..errors import CheckpointError, DiskError
from .course import ARGUMENTS, STATE
from .loss import accepts
from .parts import TrainerParts

logger = logging.getLogger(__name__)


def write_json(path: Path, data: Any) -> None:
    """A whole file or none: written beside its place and moved there."""
    unfinished = path.with_name(f".{path.name}.partial")
    try:
        unfinished.write_text(json.dumps(data, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def writing(directory: Any) -> Iterator[None]:
    """What the disk does not take is said in words."""
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise DiskError(
            error.errno,
            f"{str(directory)!r} cannot be written: {why}. Choose another directory, free some space, or change its "
            "permissions.",
        ) from error


def _as_they_are(tensors: dict[str, Any]) -> dict[str, Any]:
    return tensors


@contextlib.contextmanager
def _quietly(kind: type) -> Iterator[None]:
    """Without the messages of the library of this class: they would name a folder that is gone a moment later."""
    library = logging.getLogger(kind.__module__.partition(".")[0])
    level = library.level
    library.setLevel(max(library.getEffectiveLevel(), logging.WARNING))
    try:
        yield
    finally:
        library.setLevel(level)


def _saved_files(thing: Any) -> dict[str, bytes]:
    """The files that an object writes with save_pretrained."""
    if not hasattr(thing, "save_pretrained"):
        return {}
    with tempfile.TemporaryDirectory() as folder:
        with _quietly(type(thing)):
            thing.save_pretrained(folder)
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(Path(folder).rglob("*"))
            if path.is_file()
        }


def check_writable(directory: Any) -> None:
    """An output directory that cannot be written is an error before training, not at the first save."""
    path = Path(directory)
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".oneloop-probe"  # always the same, so that a run that dies just here leaves no trail of them
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"output_dir {str(directory)!r} cannot be written: {error.strerror or error}. Choose another directory, or "
            "change its permissions."
        ) from error


class TrainerModelFiles(TrainerParts):
    """save_model and save_state."""

    def save_model(
        self, output_dir: Any = None, _internal_call: bool = False, merge_tensor_parallel: bool = False
    ) -> None:
        """Write the model, its configuration and its tokenizer so that the model's own library can open them.

        All processes call it: they may hold a part of the model each. One of them writes. What it writes is whole,
        whether PaddleNLP's merge_tensor_parallel asks for it or not.
        """
        with self._whole_model():
            if self.args.should_save:
                self._save(str(output_dir or self.args.output_dir))
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub("Model save", blocking=False)

    def _save_quietly(self, output_dir: str) -> None:
        """save_model, as a part of something else: nothing follows from it, such as a push."""
        known = {"_internal_call": True} if accepts(self.save_model, "_internal_call") else {}
        self.save_model(output_dir, **known)

    @contextlib.contextmanager
    def _whole_model(self) -> Iterator[None]:
        """Within it, the process that writes has all weights."""
        if self._model_parts is not None:
            yield
            return
        adapter = self.backend.models.is_adapter(self.backend.models.unwrap(self.model))
        self._model_parts = ({}, {}) if adapter else self.strategy.model_tensors(self.model)
        try:
            yield
        finally:
            self._model_parts = None

    @contextlib.contextmanager
    def _saving_for_callbacks(self) -> Iterator[None]:
        """Within it, callbacks of transformers and PaddleNLP can save the model for their service, as they do there."""
        asked = self.processes.broadcast_object(service_callbacks.trainers_asked(self.callback_handler.callbacks))
        if not asked:
            yield
            return
        with self._whole_model(), service_callbacks.standing_in(asked, self._save):
            yield

    def _save(
        self,
        output_dir: str | None = None,
        state_dict: dict[str, Any] | None = None,
        merge_tensor_parallel: bool = False,
    ) -> None:
        folder = Path(output_dir or self.args.output_dir)
        contents = Contents()
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._add_model(contents, folder, _as_they_are, state_dict)
            contents.write_over(folder)

    def _add_model(self, contents: Contents, folder: Path, copies: Any, state_dict: Any = None) -> None:
        """Weights, configuration and tokenizer. An adapter writes its own, small, files into the folder at once."""
        models, weights = self.backend.models, self.backend.weights
        model = models.unwrap(self.model)
        if models.is_adapter(model):
            weights.save_adapter(model, folder)
        else:
            self._add_weights(contents, copies, state_dict)
        contents.texts.update(self._companion_files(model, in_training=copies is not _as_they_are))
        contents.add_json(ARGUMENTS, self.args.to_dict())

    def _add_weights(self, contents: Contents, copies: Any, state_dict: Any = None) -> None:
        weights = self.backend.weights
        tensors, tied = self._model_parts or weights.model_tensors(self.backend.models.unwrap(self.model))
        tensors = copies({f"model/{name}": value for name, value in (state_dict or tensors).items()})
        metadata = {"format": weights.LAYOUT} | ({"tied": json.dumps(tied)} if tied else {})
        raws = {name.removeprefix("model/"): weights.raw(value) for name, value in tensors.items()}
        contents.add_weights(raws, metadata)

    def _companion_files(self, model: Any, in_training: bool) -> dict[str, bytes]:
        """Configuration and tokenizer files. A tokenizer does not change while training and is then asked once."""
        found: dict[str, bytes] = {}
        if not self.backend.models.is_adapter(model):
            config: Any = getattr(model, "config", None)
            if hasattr(config, "architectures"):  # what opens the folder by its class, as pipelines and servers do
                config.architectures = [self.strategy.class_of(model).__name__]
            for part in ("config", "generation_config"):
                found |= _saved_files(getattr(model, part, None))
        if not in_training:
            return found | _saved_files(self.processing_class)
        if self._tokenizer_files is None:
            self._tokenizer_files = _saved_files(self.processing_class)
        return found | self._tokenizer_files

    def save_state(self) -> None:
        """trainer_state.json in the output directory."""
        self.store_flos()
        if self.args.should_save:
            folder = Path(self.args.output_dir)
            unfinished = folder / f".{STATE}.partial"
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
                self.state.save_to_json(unfinished)
                os.replace(unfinished, folder / STATE)
