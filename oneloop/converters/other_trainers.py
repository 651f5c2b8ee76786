"""Which library's Trainer wrote a checkpoint, of those whose runs oneloop can continue."""

from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import CheckpointError
from . import dcp_checkpoint, deepspeed_checkpoint, mindnlp_checkpoint, paddlenlp_checkpoint, transformers_checkpoint
from .named_state import NamedState

# In the order in which they are asked: transformers' files have the most common names.
_LIBRARIES: tuple[ModuleType, ...] = (
    paddlenlp_checkpoint,
    mindnlp_checkpoint,
    deepspeed_checkpoint,
    dcp_checkpoint,
    transformers_checkpoint,
)
_WITHOUT_STATE = (deepspeed_checkpoint, dcp_checkpoint)  # also written by programs without a Trainer
_OF_TRANSFORMERS = (deepspeed_checkpoint, dcp_checkpoint, transformers_checkpoint)
WRITERS = (
    "transformers",
    *paddlenlp_checkpoint.WRITERS,
    *mindnlp_checkpoint.WRITERS,
    *dcp_checkpoint.WRITERS,
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


def is_of_trainer(path: Path) -> bool:
    """Whether a library's Trainer wrote it, and not another program."""
    return library_of(path) not in _WITHOUT_STATE or (path / STATE).is_file()


def missing(path: Path) -> list[str]:
    """What a run needs and the checkpoint does not have, and what happens instead."""
    named = named_state(path)
    return [] if named is None else list(named.missing)


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


def check_framework(path: Path, name: str) -> None:
    """Their optimizer states are those of one framework."""
    library = library_of(path)
    if library is not None and library not in _OF_TRANSFORMERS and name not in library.FRAMEWORKS:
        raise CheckpointError(
            f"{path} was written by the Trainer of {library.writer(path)} on {library.FRAMEWORK}, and this is a model "
            f"of {name}. Resume it with a {library.FRAMEWORK} model: the next checkpoint, which oneloop writes, can be "
            "resumed on any framework."
        )
