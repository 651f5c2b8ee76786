"""What a loader is asked for, in words that the loaders of all frameworks understand."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .order import Collated


@dataclass(frozen=True)
class Loading:
    """Batches by a batch sampler, or of batch_size samples in the order of data that is walked through."""

    collate: Callable[[list[Any]], Any]
    batches: Any = None
    batch_size: int = 1
    drop_last: bool = False
    workers: int = 0
    pin: bool = False  # in memory that a device copies from
    persistent: bool = False  # workers live on from epoch to epoch
    prefetch: int | None = None  # batches that each worker makes ahead
    context: str | None = None  # how workers are started
    in_order: bool = True  # or as workers have them ready
    seed: int = 0

    @property
    def collator(self) -> Callable[[list[Any]], Any]:
        """Where several processes share the batches, one of them may have no sample."""
        shared = self.batches is not None and self.batches.world > 1
        return Collated(self.collate) if shared else self.collate
