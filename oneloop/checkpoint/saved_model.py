"""The files of save_model, in a directory that has other files too: replaced as a set.

They are written to a hidden directory inside, flushed, and committed by a rename of it. Then each is moved to its name.
Where several files replace others, the one that readers open first (the entry) is removed before and moved last: nobody
reads old and new files together. An interruption before the commit leaves the old model. After it, the hidden directory
has what is not in place yet, and the next save or the next start moves it there.
"""

import contextlib
import json
import logging
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from ..errors import CheckpointError
from ..formats.durable import files_below, make_directory, sync_directory, sync_tree
from ..formats.reading import read_json
from ..formats.safetensors_io import write_bytes
from ..formats.schema import check, listing, text
from ..formats.structure import INDEX, WEIGHTS, is_inside
from .directory_lock import hold, is_in_use

logger = logging.getLogger(__name__)

LIST = ".files.json"  # of a committed directory: the names of its files
_NAME = re.compile(r"\.model\.[0-9a-f]{8}\.(partial|saved)")
WEIGHTS_NAME = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")
# Files that readers open first; of several that replace others, it is the last one in place.
ENTRIES = (INDEX, WEIGHTS, "adapter_model.safetensors", "peft_model.safetensors.index.json")
_APART = ("training_args.json", "README.md")  # no part of what loads the model
_SMALL = 1 << 20  # bytes of a file that is compared with the one it would replace


@contextlib.contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A hidden directory to write the files of a model to. At the end of the context they replace those in `folder`."""
    make_directory(folder)
    recover(folder)
    stage = folder / f".model.{uuid.uuid4().hex[:8]}.partial"
    stage.mkdir()
    with hold(stage):
        try:
            if (folder / "README.md").is_file():  # to which the library of an adapter adds
                shutil.copyfile(folder / "README.md", stage / "README.md")
            yield stage
            saved, names = _commit(stage)
        except BaseException:
            shutil.rmtree(stage, ignore_errors=True)
            raise
        _install(saved, names)


def recover(folder: Path) -> None:
    """Move a committed model into place whose save was interrupted, and remove the remains of others. Saves that are
    under way in another process are left alone."""
    for path in sorted(folder.glob(".model.*")):
        found = _NAME.fullmatch(path.name)
        if found is None or not path.is_dir() or is_in_use(path):
            continue
        if found[1] == "saved" and (path / LIST).is_file():
            logger.warning("Completing the model in %s: the save that wrote it was interrupted.", folder)
            _install(path, _listed(path))
        else:
            logger.warning("Removing %s, the remains of an interrupted save.", path)
            shutil.rmtree(path, ignore_errors=True)


def _commit(stage: Path) -> tuple[Path, list[str]]:
    folder = stage.parent
    names = _files(stage)
    for name in names:
        if (folder / name).is_dir():
            raise IsADirectoryError(f"{folder / name} is a directory, and save_model has a file of that name")
        with open(stage / name, "rb") as f:  # files of libraries are not flushed yet
            os.fsync(f.fileno())
    write_bytes(stage / LIST, [json.dumps(names).encode()])
    sync_tree(stage)
    saved = stage.rename(stage.with_suffix(".saved"))
    sync_directory(folder)
    return saved, names


def _files(folder: Path) -> list[str]:
    """The names of all files, as the directories list them."""
    return [path.relative_to(folder).as_posix() for path in files_below(folder) if path.name != LIST]


def _install(saved: Path, names: list[str]) -> None:
    """Move the files of a committed directory into place. It may be continued after an interruption."""
    try:
        _move(saved, names)
        _remove_former(saved.parent, names)
    except OSError:
        logger.error("The model is complete in %s; the next save or start moves it from there into place.", saved)
        raise
    (saved / LIST).unlink()
    shutil.rmtree(saved, ignore_errors=True)


def _listed(saved: Path) -> list[str]:
    names = check(read_json(saved / LIST), listing(text()), f"{saved / LIST}")
    if not all(map(is_inside, names)):
        raise CheckpointError(f"{saved / LIST} names files outside of its directory. Delete {saved}.")
    return names


def _move(saved: Path, names: list[str]) -> None:
    folder = saved.parent
    waiting = set(_files(saved))
    changed = [name for name in names if name in waiting and not _is_same(saved / name, folder / name)]
    apart = [name for name in changed if name in _APART]
    loaded = [name for name in changed if name not in _APART]
    entry = next((name for name in ENTRIES if name in names), "")
    others = [name for name in loaded if name != entry]
    if len(loaded) > 1 and any(os.path.lexists(folder / name) for name in others):
        # Several files replace others, which is not atomic: without its entry nobody reads the model meanwhile.
        for former in (INDEX, WEIGHTS) if entry in (INDEX, WEIGHTS) else (entry,):
            if former and os.path.lexists(folder / former):
                (folder / former).unlink()
        sync_directory(folder)
        loaded = [*others, entry] if entry in waiting else others
    _rename(saved, [name for name in loaded if name != entry])
    _rename(saved, [name for name in loaded if name == entry])
    _rename(saved, apart)


def _rename(saved: Path, names: list[str]) -> None:
    """Move these, durably."""
    for name in names:
        make_directory((saved.parent / name).parent)
        os.replace(saved / name, saved.parent / name)
    for folder in {(saved.parent / name).parent for name in names}:
        sync_directory(folder)


def _remove_former(folder: Path, names: list[str]) -> None:
    """Remove the weights of an earlier save that had another number of files: the entry first, since readers would
    follow it."""
    if not any(WEIGHTS_NAME.fullmatch(name) for name in names):
        return
    former = [path for path in folder.glob("model*.safetensors*") if WEIGHTS_NAME.fullmatch(path.name)]
    former = sorted((p for p in former if p.name not in names), key=lambda p: p.name not in ENTRIES)
    for position, path in enumerate(former):
        path.unlink()
        if path.name in ENTRIES or position == len(former) - 1:
            sync_directory(folder)


def _is_same(new: Path, old: Path) -> bool:
    """Whether a small file is the one that it would replace."""
    try:
        size = new.stat().st_size
        return size <= _SMALL and old.stat().st_size == size and new.read_bytes() == old.read_bytes()
    except FileNotFoundError:
        return False
