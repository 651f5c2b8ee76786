"""The contents of a checkpoint, which any thread can write: the training thread has copied them."""

import errno
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..formats.safetensors_io import Raw, write, write_bytes
from ..formats.structure import INDEX, WEIGHTS

SHARD_BYTES = 5 * 10**9


@dataclass
class Contents:
    """Files by name: text files as bytes, tensor files as named tensors with their metadata."""

    texts: dict[str, bytes] = field(default_factory=dict)
    tensors: dict[str, tuple[dict[str, Raw], dict[str, str]]] = field(default_factory=dict)

    def add_json(self, name: str, data: Any) -> None:
        """Values that JSON does not support, such as in a field of a subclass of the arguments, are written as
        str()."""
        self.texts[name] = (json.dumps(data, indent=2, sort_keys=True, default=str) + "\n").encode()

    def add_weights(self, tensors: dict[str, Raw], metadata: dict[str, str]) -> None:
        """model.safetensors, or several files and an index if it exceeds the size of one."""
        shards = split(tensors, SHARD_BYTES)
        if len(shards) == 1:
            self.tensors[WEIGHTS] = (tensors, metadata)
            return
        places: dict[str, str] = {}
        for i, shard in enumerate(shards, 1):
            name = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
            self.tensors[name] = (shard, metadata)
            places |= dict.fromkeys(shard, name)
        total = sum(raw.size for raw in tensors.values())
        self.add_json(INDEX, {"metadata": {"total_size": total}, "weight_map": places})

    @property
    def size(self) -> int:
        """Bytes on disk, without the headers."""
        tensors = sum(raw.size for group, _ in self.tensors.values() for raw in group.values())
        return tensors + sum(map(len, self.texts.values()))

    def write(self, folder: Path) -> dict[str, dict[str, Any]]:
        """Write every file; returns their entries for the manifest."""
        for name in (*self.tensors, *self.texts):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
        facts = {name: write(folder / name, group, metadata) for name, (group, metadata) in self.tensors.items()}
        return facts | {name: write_bytes(folder / name, [text]) for name, text in self.texts.items()}


def split(tensors: dict[str, Raw], limit: int) -> list[dict[str, Raw]]:
    """Groups of at most `limit` bytes, in order; a larger tensor is alone in its group."""
    shards: list[dict[str, Raw]] = [{}]
    size = 0
    for name, raw in tensors.items():
        if shards[-1] and size + raw.size > limit:
            shards.append({})
            size = 0
        shards[-1][name] = raw
        size += raw.size
    return shards


def room_for(folder: Path, size: int) -> None:
    """Raise OSError before writing if the disk has too little space: the data and a bit more for headers."""
    try:
        total, _, free = shutil.disk_usage(folder)
    except OSError:  # unknown: writing will show
        return
    if not total:  # what file systems report that do not know, such as mounted object stores
        return
    if free < size * 1.02 + (1 << 20):
        raise OSError(errno.ENOSPC, f"{size / 2**20:.0f} MB needed, but only {free / 2**20:.0f} MB free", str(folder))
