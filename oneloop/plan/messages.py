"""What processes exchange in a step, computed from the sizes of the parameters."""

from collections.abc import Iterable, Sequence

from .results import Messages

FIRST_BUCKET = 2**20  # of DDP: gradients that are ready early are sent early
DEFAULT_BUCKET_MB = 25
STEP_NUMBERS = 16  # that travel with the gradients
STEP_MESSAGE = 8  # numbers of a message before the update, with the two signals that are watched by default
_SENT = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "broadcast": 1.0, "all_to_all": 1.0}


def sent(kind: str, size: float, world: int) -> float:
    """Bytes that each process sends in a collective over a ring."""
    return _SENT[kind] * size * (world - 1) / world


def total(collectives: Iterable[tuple[str, int, int]]) -> Messages:
    """The sum over collectives, given as (name, bytes of the full tensor, number of processes)."""
    found = [each for each in collectives if each[2] > 1]
    return Messages(len(found), sum(size for _, size, _ in found), round(sum(sent(*each) for each in found)))


def buckets(gradients: Sequence[tuple[str, int]], cap: int, first: int = FIRST_BUCKET) -> list[int]:
    """Bytes of DDP's buckets: gradients as (type, bytes), in the order in which they are sent. A bucket is closed by
    the gradient that reaches its limit, which is lower for the first one of each type."""
    done: list[int] = []
    open_buckets: dict[str, int] = {}
    closed: set[str] = set()
    for kind, size in gradients:
        held = open_buckets.get(kind, 0) + size
        if held >= (cap if kind in closed else first):
            done.append(held)
            closed.add(kind)
            open_buckets.pop(kind, None)
        else:
            open_buckets[kind] = held
    return done + [held for held in open_buckets.values() if held]


def data_parallel(gradients: Sequence[tuple[str, int]], cap_mb: int | None, world: int, piggybacks: bool) -> Messages:
    """DDP: every bucket is reduced once per update. The numbers of a step travel in the last one, or separately."""
    sizes = list(reversed(gradients)) + [("float32", 4 * STEP_NUMBERS)] * piggybacks
    cap = int((cap_mb or DEFAULT_BUCKET_MB) * 2**20)
    reduced = [("all_reduce", size, world) for size in buckets(sizes, cap)]
    return total(reduced + ([] if piggybacks else before_update(world)))


def before_update(world: int) -> list[tuple[str, int, int]]:
    """The message of a step, and the loss."""
    return [("all_gather", 8 * STEP_MESSAGE * world, world), ("all_reduce", 4, world)]


def joined(first: Messages, second: Messages) -> Messages:
    counts = (first.collectives, second.collectives)
    together = None if None in counts else sum(count or 0 for count in counts)
    return Messages(together, first.bytes + second.bytes, first.sent + second.sent)
