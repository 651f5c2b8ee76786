"""Symbolic links in a checkpoint. One that leads out of it could show a file of this machine to whoever made it."""

import os
from pathlib import Path

ADVICE = "Copy the files that it links to into it, as `cp -rL` does"


def leads_out(folder: Path, name: str) -> bool:
    """Whether a file of a checkpoint is a link to a file outside of it. The cache of the Hugging Face Hub, which has
    the contents of all files in one place, is no other place."""
    root, target = os.path.realpath(folder), os.path.realpath(folder / name)
    return not any(_is_within(target, place) for place in (root, *_hub_blobs(root)))


def leading_out(folder: Path) -> list[str]:
    """The names of the files of a directory that are such links."""
    found = [Path(place, name).relative_to(folder) for place, _, names in os.walk(folder) for name in names]
    return sorted(name.as_posix() for name in found if leads_out(folder, name.as_posix()))


def problem(name: str) -> str:
    return f"{name} is a link to a file outside of the checkpoint. {ADVICE}"


def _is_within(target: str, place: str) -> bool:
    return target.startswith(place.rstrip(os.sep) + os.sep)


def _hub_blobs(root: str) -> list[str]:
    """REPOSITORY/blobs, for a directory within REPOSITORY/snapshots."""
    above = Path(root).parents
    return [os.path.realpath(each.parent / "blobs") for each in above if each.name == "snapshots"]
