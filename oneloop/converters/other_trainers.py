"""Which library's Trainer wrote a checkpoint, of those whose runs oneloop can continue."""

import re
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import CheckpointError
from . import (
    dcp_checkpoint,
    deepspeed_checkpoint,
    file_checkpoint,
    mindnlp_checkpoint,
    paddlenlp_checkpoint,
    state_trees,
    transformers_checkpoint,
)
from .named_state import NamedState

# In the order in which they are asked: transformers' files have the most common names.
_LIBRARIES: tuple[ModuleType, ...] = (
    file_checkpoint,
    paddlenlp_checkpoint,
    mindnlp_checkpoint,
    deepspeed_checkpoint,
    dcp_checkpoint,
    transformers_checkpoint,
)
_WITHOUT_STATE = (file_checkpoint, deepspeed_checkpoint, dcp_checkpoint)  # need no trainer_state.json
_OF_TRANSFORMERS = (deepspeed_checkpoint, dcp_checkpoint, transformers_checkpoint)
WRITERS = (
    "transformers",
    *paddlenlp_checkpoint.WRITERS,
    *mindnlp_checkpoint.WRITERS,
    *dcp_checkpoint.WRITERS,
    *file_checkpoint.WRITERS,
    "DeepSpeed",
)
STATE = transformers_checkpoint.STATE
LOST_ORDER = (
    "transformers does not store the RNG state that the order of this epoch was drawn from, so it is drawn as its own "
    "resume does, and some samples of this epoch are repeated and others skipped"
)
steps_per_epoch = transformers_checkpoint.steps_per_epoch
_OWN_MARK = "run.json"  # a file of oneloop's that no other library writes


def library_of(path: Path) -> Any:
    """The module that describes the checkpoints of the library that wrote a directory without our manifest, complete or
    not; None if it is none of theirs."""
    states = (STATE, paddlenlp_checkpoint.PICKLED_STATE)
    if (path / _OWN_MARK).exists():
        return None
    has_state = any((path / name).is_file() for name in states)
    return next((each for each in _LIBRARIES if (has_state or each in _WITHOUT_STATE) and each.wrote(path)), None)


def files_in(folder: Path) -> list[Path]:
    """Checkpoints in a directory that need no folder of their own, or have one with a name that is not ours."""
    files = [path for path in folder.glob(f"*{file_checkpoint.SUFFIX}") if library_of(path) is file_checkpoint]
    folders = [path for path in folder.iterdir() if path.is_dir() and not re.match(r"\.|checkpoint-", path.name)]
    return sorted({*files, *(path for path in folders if _is_known_by_its_files(path))})


def _is_known_by_its_files(folder: Path) -> bool:
    """Whether it is a checkpoint under any name: others may also have a file that is called "latest"."""
    library = library_of(folder)
    return library in _WITHOUT_STATE and (library is not deepspeed_checkpoint or any(folder.glob("*/*_states.pt")))


def newest_file(folder: Path) -> Path | None:
    """The newest of those of Lightning."""
    files = [path for path in files_in(folder) if path.suffix == file_checkpoint.SUFFIX]
    return max(files, key=file_checkpoint.written, default=None)


def writer(path: Path) -> str:
    """The library's name."""
    library = library_of(path)
    return "another trainer" if library is None else library.writer(path)


def framework(path: Path) -> str | None:
    library = library_of(path)
    return None if library is None else library.FRAMEWORK


def version(path: Path) -> str | None:
    """Its release, as far as the files show."""
    library = library_of(path)
    return None if library is None else library.version(path)


def state(path: Path) -> dict[str, Any]:
    """The fields of the Trainer's state."""
    return library_of(path).state(path)


def problems(path: Path, contents: bool) -> list[str]:
    """Why a run cannot resume from a checkpoint of another library."""
    return library_of(path).problems(path, contents)


def has_known_order(path: Path) -> bool:
    """Whether the samples that its run was going to train on are known, from its seed."""
    return library_of(path) in _OF_TRANSFORMERS and (path / STATE).is_file()


def has_log(path: Path) -> bool:
    """Whether the losses of its run are stored."""
    return library_of(path) not in _WITHOUT_STATE or (path / STATE).is_file()


def is_of_trainer(path: Path) -> bool:
    """Whether a library's Trainer wrote it, and not another program."""
    return has_log(path) or library_of(path).writer(path) == file_checkpoint.WRITERS[0]


def missing(path: Path) -> list[str]:
    """What a run needs and the checkpoint does not have, and what happens instead."""
    named = named_state(path)
    if named is None:
        return []
    stored = _has_schedule(path, named) or any("schedule" in words for words in named.missing)
    return [*named.missing, *([] if stored else [state_trees.NO_SCHEDULE])]


def _has_schedule(path: Path, named: NamedState) -> bool:
    return named.scheduler is not None or (path / transformers_checkpoint.SCHEDULER).is_file()


def position(path: Path) -> tuple[int, int] | None:
    """The epoch, and the updates made in it, if the library counted them."""
    recorded = getattr(library_of(path), "position", None)
    return None if recorded is None else recorded(path)


def is_divided(path: Path) -> bool:
    """Whether a process can read the parts of tensors that it needs."""
    return hasattr(library_of(path), "opened")


def named_state(path: Path) -> NamedState | None:
    """Weights and optimizer state by name, if the checkpoint has its tensors in parts; None for whole files."""
    opened = getattr(library_of(path), "opened", None)
    return None if opened is None else opened(path)


def layout(path: Path) -> str | None:
    """How processes divided the checkpoint, in words; None for whole files."""
    described = getattr(library_of(path), "layout", None)
    return None if described is None else described(path)


def summary(path: Path) -> list[str]:
    """What a run that resumes from a checkpoint without problems has of it, and what not, in words."""
    library, named = library_of(path), named_state(path)
    by = f"the Trainer of {library.writer(path)}" if is_of_trainer(path) else library.writer(path)
    release, divided = library.version(path), layout(path)
    found = [f"written by {by}" + (f" {release}" if release else "") + (f" ({divided})" if divided else "")]
    if named is None:
        found.append("carried over: weights, optimizer state, schedule, step and log history")
    else:
        fields = ", ".join(named.fields()[:8])
        kept = [f"weights ({len(named.weights)} tensors)", f"optimizer state ({fields})", "step"]
        kept += (
            ["schedule"] if named.scheduler is not None or (path / transformers_checkpoint.SCHEDULER).is_file() else []
        )
        kept += ["loss scale"] if named.scaler is not None else []
        found.append(f"carried over: {', '.join(kept + ['log history'] * has_log(path))}")
        found += missing(path)
    if has_known_order(path):
        found.append('the order of the data and the random states are continued with data_order="transformers"')
    else:
        found.append("the order of the data is oneloop's: up to an epoch's samples may be repeated, and as many missed")
    return found


def check_framework(path: Path, name: str) -> None:
    """Their optimizer states are those of one framework."""
    library = library_of(path)
    if library is not None and hasattr(library, "FRAMEWORKS") and name not in library.FRAMEWORKS:
        raise CheckpointError(
            f"{path} was written by the Trainer of {library.writer(path)} on {library.FRAMEWORK}, and this is a model "
            f"of {name}. Resume it with a {library.FRAMEWORK} model: the next checkpoint, which oneloop writes, can be "
            "resumed on any framework."
        )
