"""trace/step-000000.json in the output directory: what one update has computed, as digests (see trace_steps).

The file ends with a checksum of everything before it, so that one that was cut off or changed is not compared.
"""

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from .durable import make_directory, replace_file
from .reading import parse_json, read_bytes
from .schema import check, flag, integer, listing, mapping, number, optional, record, text

FOLDER = "trace"
VERSION = 1
LARGEST = 1 << 28  # bytes of a file that is read
LONGEST = 500  # characters of a name
NAME = re.compile(r"step-(\d{6,9})\.json")
KINDS = ("weight", "buffer", "input", "output", "output_gradient", "input_gradient", "gradient", "clipped", "state",
         "update", "buffer_after")  # fmt: skip


@dataclass
class Record:
    """The digest of one tensor; see formats/digests.py for the numbers."""

    kind: str
    name: str  # of the layer, or of the parameter
    item: str  # which of several outputs or inputs, or which state of the optimizer
    call: int  # of a layer that is called several times
    type: str  # of the layer
    shape: list[int]  # sizes in the order of the names of the axes
    dtype: str
    has_samples: bool  # one of the axes is that of the samples
    norm: float
    largest: float
    bad: int  # values that are not finite
    projections: list[float]
    column_sum: float
    rounding: float  # how far rounding errors move a projection
    transposed: list[float] | None = None  # of a square matrix: its projections with the axes exchanged
    parts: list[float] | None = None  # the column sums by batch, if there are several at a time
    replicas: float = 0.0  # how far copies in several processes are apart

    @property
    def key(self) -> tuple[str, str, str, int]:
        return self.kind, self.name, self.item, self.call


@dataclass
class Trace:
    """One update."""

    run: str
    step: int  # updates before it
    framework: str
    settings: dict[str, Any]
    columns: dict[str, str]  # of the batch: contents, as hexadecimal numbers that do not depend on the order
    samples: list[str]  # contents of each, in the order of processes and micro-batches
    shapes: dict[str, list[int]]  # of the columns of the first micro-batch
    has_rounding: bool  # rounding errors were measured, not estimated
    records: list[Record] = field(default_factory=list)


_SHORT = text(rf"[^\n\ud800-\udfff]{{0,{LONGEST}}}", "a short text")
_SIZE = integer(0, 1 << 48)
_NUMBER, _POSITIVE = number(-1e60, 1e60), number(0, 1e60)  # sums of numbers in float32
_HEX = text(r"[0-9a-f]{1,16}", "a hexadecimal number")
_RECORD = record(
    {
        "kind": text("|".join(KINDS), "a kind of record"),
        "name": _SHORT,
        "item": _SHORT,
        "call": integer(0, 1 << 30),
        "type": _SHORT,
        "shape": listing(_SIZE),
        "dtype": text(r"[a-z0-9_]{1,20}", "the name of a type"),
        "has_samples": flag,
        "norm": _POSITIVE,
        "largest": _POSITIVE,
        "bad": integer(0),
        "projections": listing(_NUMBER, 8),
        "column_sum": _NUMBER,
        "rounding": _POSITIVE,
        "transposed": optional(listing(_NUMBER, 8)),
        "parts": optional(listing(_NUMBER)),
        "replicas": _POSITIVE,
    },
    is_closed=True,
)
_SETTINGS = record(
    {
        "processes": integer(1),
        "mesh": mapping(integer(1)),
        "micro_batches": integer(0),
        "half": text("|fp16|bf16", "fp16, bf16 or nothing"),
        "loss_scale": _POSITIVE,
        "max_grad_norm": _NUMBER,
        "grad_norm": _NUMBER,
        "learning_rate": _NUMBER,
        "optimizer": _SHORT,
        "groups": listing(mapping(_NUMBER)),
    },
    is_closed=True,
)
_TRACE = record(
    {
        "format": text("oneloop.trace", "oneloop.trace"),
        "version": integer(1),
        "factors": integer(1),
        "run": _SHORT,
        "step": integer(0),
        "framework": text(r"[a-z]{1,30}", "the name of a framework"),
        "settings": _SETTINGS,
        "columns": mapping(_HEX),
        "samples": listing(_HEX),
        "shapes": mapping(listing(_SIZE)),
        "has_rounding": flag,
        "records": listing(_RECORD),
    },
    is_closed=True,
)


def path_of(output_dir: Path, step: int) -> Path:
    return Path(output_dir) / FOLDER / f"step-{step:06d}.json"


def write(output_dir: Path, trace: Trace, factors: int) -> Path:
    """Write the file of an update; one of the same step is replaced."""
    path = path_of(output_dir, trace.step)
    make_directory(path.parent)
    content = {"format": "oneloop.trace", "version": VERSION, "factors": factors, **vars(trace)}
    content["records"] = [vars(record) for record in trace.records]
    body = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
    replace_file(path, body + b"\n" + _checksum(body) + b"\n")
    return path


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()


def read(path: Path, factors: int) -> Trace:
    """Read a file as if it were made by somebody else; CheckpointError if it is not what was written."""
    body, _, rest = read_bytes(path, LARGEST).partition(b"\n")
    if rest != _checksum(body) + b"\n":
        raise CheckpointError(
            f"{path} is incomplete or was changed: its checksum does not match. Record the step again (trace_steps)."
        )
    content = parse_json(body, str(path))
    version = content.get("version") if isinstance(content, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise CheckpointError(f"{path} has version {version}, this oneloop reads up to {VERSION}. Update oneloop.")
    check(content, _TRACE, path)
    if content["factors"] != factors:
        raise CheckpointError(
            f"{path} was recorded with other random factors ({content['factors']}) than this version of oneloop uses "
            f"({factors}). Record both runs with the same version."
        )
    found = NAME.fullmatch(path.name)
    if found is None or int(found[1]) != content["step"]:
        raise CheckpointError(f"{path} has the update of step {content['step']}: it was renamed")
    records = [Record(**each) for each in content["records"]]
    if len({each.key for each in records}) < len(records):
        raise CheckpointError(f"{path} is not valid: it has a record twice")
    rest_of = {key: content[key] for key in Trace.__dataclass_fields__ if key != "records"}
    return Trace(**rest_of, records=records)


def steps_in(folder: Path) -> list[int]:
    """The recorded steps in an output directory."""
    try:
        names = sorted(entry.name for entry in (folder / FOLDER).iterdir())
    except OSError:
        return []
    return [int(found[1]) for name in names if (found := NAME.fullmatch(name))]
