"""One checkpoint, found once and passed on: its manifest, run.json and trainer_state.json are read a single time."""

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any

from ..converters import other_trainers
from ..errors import CheckpointError
from ..formats import links, structure
from ..formats.reading import LARGEST, open_file
from ..formats.schema import format_short
from ..formats.structure import FORMAT, MANIFEST, RUN, STATE, CheckpointFiles
from ..state import TrainerState
from .run_state import RunState


class Checkpoint(CheckpointFiles):
    """A checkpoint directory, of oneloop or of another trainer, and what its files say."""

    def __init__(self, path: Path, manifest: dict[str, Any] | None = None) -> None:
        super().__init__(path)
        if manifest is not None:  # it has been read, or written by this run
            self.manifest, self.is_external = manifest, False

    @cached_property
    def is_external(self) -> bool:
        """Whether another library's Trainer wrote it."""
        return is_external(self.path)

    @cached_property
    def run(self) -> RunState | None:
        """run.json; None if there is none."""
        return RunState.from_json(self.json(RUN), self.path / RUN) if self.has(RUN) else None

    def complete_run(self) -> RunState:
        """run.json; an error if there is none."""
        if self.run is None:
            raise CheckpointError(
                f"cannot resume from {self.path}: it contains the model without optimizer and RNG state (saved with "
                "save_only_model=True). Load its weights into the model and start a new run."
            )
        return self.run

    def trainer_state(self) -> TrainerState:
        """A new TrainerState with the values of the checkpoint."""
        if self.is_external and not (self.path / STATE).is_file():  # a pickle
            return TrainerState.from_fields(other_trainers.state(self.path))
        return TrainerState.from_json(lambda: self.json(STATE), self.path / STATE)

    def problems(self, contents: bool = True) -> list[str]:
        """Why it is incomplete or corrupt; without `contents`, only names and sizes are compared."""
        if self.is_external:
            outside = [links.problem(name) for name in links.leading_out(self.path)]
            return outside or other_trainers.problems(self.path, contents)
        try:
            manifest = self.manifest
        except CheckpointError as error:
            reason = f": {error}" if (self.path / MANIFEST).exists() else ""
            return [f"{MANIFEST} is missing or cannot be read{reason}"]
        if manifest["format"] != FORMAT:
            return [f"its format is {format_short(manifest['format'])}; this release reads format {FORMAT}"]
        wrong = structure.step_mismatch(self.path, manifest)
        found = [] if wrong is None else [wrong]
        for name, facts in manifest["files"].items():
            try:
                problem = self._problem(name, facts, contents)
            except OSError as error:
                problem = f"cannot read {name}: {error}"
            found += [] if problem is None else [problem]
        if not found and STATE not in manifest["files"]:
            found.append(f"{MANIFEST} does not list {STATE}")
        return found or (structure.problems(self) if contents else [])

    def _problem(self, name: str, facts: dict[str, Any], contents: bool) -> str | None:
        """What is wrong with a file, compared with its entry in the manifest."""
        file = self.path / name
        if not file.is_file():
            return f"{name} is missing"
        if links.leads_out(self.path, name):
            return links.problem(name)
        size = file.stat().st_size
        if size != facts["bytes"]:
            return f"{name} has {size} bytes instead of {facts['bytes']}"
        if contents and self._checksum(name, size) != facts["sha256"]:
            return f"{name} has changed since it was written (checksum)"
        return None

    def _checksum(self, name: str, size: int) -> str:
        """What is parsed later is kept, so that it is not read again."""
        if name not in (RUN, STATE) or size > LARGEST:
            return checksum(self.path / name)
        with open_file(self.path / name) as f:
            data = self._data[name] = f.read()
        return hashlib.sha256(data).hexdigest()


def checksum(path: Path) -> str:
    with open_file(path) as f:
        return hashlib.file_digest(f, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _digest(f)


def _digest(f: Any) -> str:
    digest = hashlib.sha256()
    while block := f.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def is_external(path: Path) -> bool:
    """Whether a checkpoint was written by another library's Trainer, rather than an incomplete one of ours."""
    return not (path / MANIFEST).exists() and other_trainers.library_of(path) is not None


def read_manifest(path: Path) -> dict[str, Any] | None:
    """The manifest of a checkpoint directory; None if it is missing or invalid."""
    try:
        return structure.load_manifest(path)
    except CheckpointError:
        return None


def problems(path: Path, contents: bool = True) -> list[str]:
    """Why a checkpoint is incomplete or corrupt; without `contents`, only names and sizes are compared."""
    return Checkpoint(path).problems(contents)
