"""`gather` and `gather_object` of accelerate.utils, which libraries import by themselves, for processes of one batch.

accelerate gathers from all processes. Those that divide a model or a sequence have the same batch, which counts once
here, as in `Accelerator.gather`: a library that looks for its rows by `process_index` would find those of others.
"""

import sys
import weakref
from typing import TYPE_CHECKING, Any

from ..trainer.core import core_of

if TYPE_CHECKING:
    from ..distributed.mesh import Mesh
    from ..trainer import Trainer

_OPERATIONS = "accelerate.utils.operations"
_trainer: "weakref.ref[Trainer] | None" = None  # the last one that was asked for its accelerator


def follow(trainer: "Trainer") -> None:
    """Have them gather from one process of each batch of this Trainer."""
    global _trainer
    _trainer = weakref.ref(trainer)
    operations: Any = sys.modules.get(_OPERATIONS)
    if operations is None or getattr(operations._gpu_gather, "_is_per_batch", False):
        return
    tensors, objects = operations._gpu_gather, operations._gpu_gather_object

    def gather(tensor: Any) -> Any:
        found, mesh = tensors(tensor), _divided()
        return found if mesh is None else operations.recursively_apply(lambda rows: _of_leaders(rows, mesh), found)

    def gather_object(value: Any) -> Any:
        mesh = _divided()
        if mesh is None:
            return objects(value)
        return [each for part in mesh.per_batch(objects([value])) for each in part]

    gather._is_per_batch = True  # type: ignore[attr-defined]
    operations._gpu_gather, operations._gpu_gather_object = gather, gather_object


def _divided() -> "Mesh | None":
    """The mesh, if several processes have the same batch."""
    trainer = _trainer() if _trainer is not None else None
    mesh = core_of(trainer).mesh if trainer is not None else None
    return mesh if mesh is not None and mesh.size > mesh.num_batches else None


def _of_leaders(rows: Any, mesh: "Mesh") -> Any:
    parts = rows.unflatten(0, (mesh.size, -1))
    return parts[list(mesh.batch_leaders)].flatten(0, 1)
