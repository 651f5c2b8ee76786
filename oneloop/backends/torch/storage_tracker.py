"""The memory of tensors over time, by their storages; for tensors of torch's FakeTensorMode, which allocate nothing."""

import weakref
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._tools.common_utils import get_untyped_storages
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.weak import WeakIdKeyDictionary

REST = "rest"


class StorageTracker(TorchDispatchMode):
    """A dispatch mode that counts every storage that an operation returns, from its creation until it is freed.

    torch's own MemTracker also attributes memory to modules, and therefore supports one forward pass of a model only,
    which excludes gradient accumulation and losses that call the model twice.
    """

    def __init__(self, mode: Any) -> None:
        super().__init__()
        self._mode = mode  # DTensor propagates shapes in one of its own, on tensors that are never allocated
        self._known: Any = WeakIdKeyDictionary()  # storage -> its record
        self.held: Counter[str] = Counter()
        self.total = self.peak = self.most_rest = 0
        self.counts_rest = True
        self.collectives: list[tuple[str, int, int]] = []

    # -- what counts

    def label(self, tensors: Iterable[Any], kind: str) -> None:
        """Count these under another name than REST."""
        for tensor in tensors:
            for storage in get_untyped_storages(tensor) if isinstance(tensor, torch.Tensor) else ():
                self._add(storage)
                record = self._known[storage]
                self.held[record.kind] -= record.size
                record.kind = kind
                self.held[kind] += record.size

    def start(self) -> None:
        """Forget the peaks so far."""
        self.peak, self.most_rest, self.collectives = self.total, self.held[REST], []

    def _add(self, storage: Any) -> None:
        record = self._known.get(storage)
        if record is None:
            record = _Record(self, storage)
            self._known[storage] = record
        record.resize(storage.nbytes())

    def _note(self) -> None:
        self.peak = max(self.peak, self.total)
        if self.counts_rest:
            self.most_rest = max(self.most_rest, self.held[REST])

    # -- where it is seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind is DTensor for kind in types):  # it comes back with its local tensors
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        if torch._guards.active_fake_mode() is not self._mode:
            return result
        name = COLLECTIVES.get(func.name().partition(".")[0])
        if name is not None:
            self.collectives.append((name, whole_size((args, result)), _processes(args)))
        for value in tree_iter(result):
            if isinstance(value, torch.Tensor):
                for storage in get_untyped_storages(value):
                    self._add(storage)
        self._note()
        return result

    def __enter__(self) -> Any:
        # FSDP frees and allocates the storage of a layer by resizing it, which is no operation on tensors.
        self._resize = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            result = self._resize(storage, size)
            if storage in self._known:
                self._known[storage].resize(storage.nbytes())
                self._note()
            return result

        torch.UntypedStorage.resize_ = resize
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.UntypedStorage.resize_ = self._resize


class _Record:
    """The size of a storage as it was counted, and what it counts as."""

    def __init__(self, tracker: StorageTracker, storage: Any) -> None:
        self.tracker, self.kind, self.size = tracker, REST, 0
        self.reference = weakref.ref(storage, self._freed)

    def resize(self, size: int) -> None:
        self.tracker.held[self.kind] += size - self.size
        self.tracker.total += size - self.size
        self.size = size

    def _freed(self, _: Any) -> None:
        self.resize(0)


COLLECTIVES = {
    "c10d::_allgather_base_": "all_gather",
    "c10d::allgather_": "all_gather",
    "c10d::_reduce_scatter_base_": "reduce_scatter",
    "c10d::allreduce_": "all_reduce",
    "c10d::broadcast_": "broadcast",
    "c10d::alltoall_base_": "all_to_all",
    # Those of DTensors, whose results are new tensors.
    "_c10d_functional::all_gather_into_tensor": "all_gather",
    "_c10d_functional::reduce_scatter_tensor": "reduce_scatter",
    "_c10d_functional::all_reduce": "all_reduce",
    "_c10d_functional::all_to_all_single": "all_to_all",
}


def whole_size(values: Any) -> int:
    """Bytes of the tensor that a collective is about: the gathered one, or the one before it is scattered."""
    tensors = [value for value in tree_iter(values) if isinstance(value, torch.Tensor)]
    return max((tensor.numel() * tensor.element_size() for tensor in tensors), default=0)


def _processes(args: Any) -> int:
    """The processes of a collective, whose group is an object, or a name as its last argument."""
    for value in tree_iter(args):
        if isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type()):
            return dist.ProcessGroup.unbox(value).size()
    return dist.distributed_c10d._resolve_process_group(args[-1]).size()
