"""Options of a data loader, independent of the framework."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .order import Collated


@dataclass(frozen=True)
class LoaderOptions:
    """Batches from a batch sampler, or batch_size consecutive samples of an iterable dataset."""

    collate: Callable[[list[Any]], Any]
    batches: Any = None
    batch_size: int = 1
    drop_last: bool = False
    workers: int = 0
    pin: bool = False  # pin memory
    persistent: bool = False  # keep workers alive between epochs
    prefetch: int | None = None  # batches prefetched per worker
    context: str | None = None  # start method of the workers
    in_order: bool = True  # False: in the order in which workers finish
    seed: int = 0
    draws_seed: bool = False  # of the workers, from torch's default generator, as DataLoader does by itself

    @property
    def collator(self) -> Callable[[list[Any]], Any]:
        """With batches split across processes, or updates that keep their micro-batches, one may have no sample."""
        shared = self.batches is not None and max(self.batches.num_shards, getattr(self.batches, "accumulation", 1)) > 1
        return Collated(self.collate) if shared else self.collate
