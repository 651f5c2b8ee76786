"""The order in which the gradients of an update are added up, so that the sum has the same bits on any number of
processes (world_invariant=True).

The V micro-batches of an update are the leaves of a tree that halves them again and again; where their number is odd,
the first half has one more. Each process adds up a block of consecutive leaves, as far as it can without the others: to
the largest subtrees that lie in its block, whose sums are its *roots*. Of 12 leaves, a process has 1, 3, 1 or 2 roots
on 2, 3, 4 or 6 processes. The rest of the tree is added from the roots of all.

A node is (first leaf, the one after its last).
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Generic, TypeVar

Node = tuple[int, int]
Value = TypeVar("Value")


def halves(node: Node) -> tuple[Node, Node]:
    start, stop = node
    middle = start + (stop - start + 1) // 2
    return (start, middle), (middle, stop)


@cache
def roots(leaves: int, parts: int) -> tuple[tuple[Node, ...], ...]:
    """The roots of each part, in order, where so many leaves are divided into so many equal parts."""
    each = leaves // parts
    return tuple(tuple(_cover((0, leaves), part * each, (part + 1) * each)) for part in range(parts))


def _cover(node: Node, start: int, stop: int) -> list[Node]:
    """The largest subtrees of a node that lie between two leaves."""
    if stop <= node[0] or node[1] <= start:
        return []
    if start <= node[0] and node[1] <= stop:
        return [node]
    return [root for half in halves(node) for root in _cover(half, start, stop)]


def add_up(node: Node, parts: dict[Node, Value], add: Callable[[Value, Value], Value]) -> Value:
    """The sum of a node, from the sums of nodes below it."""
    if node in parts:
        return parts[node]
    left, right = halves(node)
    return add(add_up(left, parts, add), add_up(right, parts, add))


class BlockSum(Generic[Value]):
    """Adds up the leaves of a block as they come, in order, to its roots. Until a sum has its other half it is kept:
    of n leaves, about log2(n) sums."""

    def __init__(self, leaves: int, part: int, parts: int, add: Callable[[Value, Value], Value]) -> None:
        self._parents = _parents(roots(leaves, parts)[part])
        self._start = self._next = part * (leaves // parts)
        self._stop = self._start + leaves // parts
        self._sums: list[tuple[Node, Value]] = []
        self._add = add

    def put(self, place: int, value: Value, absent: Value) -> None:
        """The value of the leaf at this place of the block; those that were left out before it are `absent`."""
        while self._next < self._start + place:
            self._append(absent)
        self._append(value)

    def finish(self, absent: Value) -> list[Value]:
        """The sums of the roots, in order."""
        while self._next < self._stop:
            self._append(absent)
        return [value for _, value in self._sums]

    def _append(self, value: Value) -> None:
        node = (self._next, self._next + 1)
        self._next += 1
        while self._sums and (self._sums[-1][0], node) in self._parents:
            before, left = self._sums.pop()
            node, value = self._parents[before, node], self._add(left, value)
        self._sums.append((node, value))


@cache
def _parents(nodes: Sequence[Node]) -> dict[tuple[Node, Node], Node]:
    """All nodes of these subtrees that have halves, by their halves."""
    found: dict[tuple[Node, Node], Node] = {}
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node[1] - node[0] > 1:
            found[halves(node)] = node
            waiting.extend(halves(node))
    return found
