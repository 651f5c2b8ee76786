"""Which source of a mixture stands at a position: computed, not drawn or stored.

A source with the proportion w is due once in every 1/w positions: its j-th sample has to stand in the window of
positions in which j - 1 samples are no longer enough and j are not yet too many. Taking the sample whose window ends
first keeps the number of samples of each source, in every prefix, within one of its proportion (this is
proportionate-fair scheduling on one processor, for which the earliest deadline first is optimal). Windows are computed
with integers, so no rounding error adds up over 10^12 positions.

Positions are computed in blocks. The numbers at the borders of a block are a function of the border alone: each
proportion rounded down or up, up where the window ends first. A block is long enough that every source is due in it at
least once, so the numbers never decrease from one border to the next.
"""

import heapq
import math
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from ..errors import ArgumentError

BLOCK = 4096  # part of the checkpoint format, as is the order in a block
KEPT = 4  # blocks in memory
SMALLEST = Fraction(1, 10**6)  # the smallest share of a source: a block has its reciprocal of positions


class Block(NamedTuple):
    """For each position from `start` on: the source, and how many samples of that source stand before it."""

    start: int
    sources: np.ndarray
    numbers: np.ndarray


class Piece:
    """Positions with constant weights. Of every `whole` positions, source s has rates[s]; `length` None: no end."""

    def __init__(self, rates: Sequence[int], whole: int, length: int | None) -> None:
        common = math.gcd(whole, *rates)
        self.rates = [rate // common for rate in rates]
        self.whole = whole // common
        self.length = length
        self.step = max(BLOCK, -(-self.whole // min(rate for rate in self.rates if rate)))

    def opens(self, source: int, number: int) -> int:
        """The first position at which the source's sample `number`, counted from 0, may stand."""
        return number * self.whole // self.rates[source]

    def closes(self, source: int, number: int) -> int:
        """The end of its window."""
        return -(-(number + 1) * self.whole // self.rates[source])

    def borders(self, place: int) -> tuple[int, int]:
        """The block of a place. What is left at the end of a piece belongs to its last whole block."""
        number = place // self.step
        if self.length is None:
            return number * self.step, (number + 1) * self.step
        last = max(0, self.length // self.step - 1)
        number = min(number, last)
        return number * self.step, self.length if number == last else (number + 1) * self.step

    def numbers_at(self, border: int) -> list[int]:
        """The samples of each source before a border: its proportion rounded down or up, so that both sides can be
        ordered. After the border there must be room for all samples whose windows close early, and before it for all
        whose windows open late. So of the samples whose windows are open at the border, those that open first are
        taken, as soon as there is not enough room for all that close by then.
        """
        numbers = [border * rate // self.whole for rate in self.rates]
        crossing = [s for s, rate in enumerate(self.rates) if border * rate % self.whole]
        by_opening = sorted(crossing, key=lambda s: (self.opens(s, numbers[s]), s))
        taken: set[int] = set()
        closed: set[int] = set()
        later = 0  # samples whose windows close after the border, but for those that are open at it
        upcoming = [(self.closes(s, numbers[s]), s, numbers[s]) for s, rate in enumerate(self.rates) if rate]
        heapq.heapify(upcoming)
        while len(closed) < len(crossing):
            end = upcoming[0][0]
            while upcoming[0][0] == end:
                _, s, number = upcoming[0]
                heapq.heapreplace(upcoming, (self.closes(s, number + 1), s, number + 1))
                if s in crossing and number == numbers[s]:
                    closed.add(s)
                else:
                    later += 1
            lacking = len(closed - taken) - (end - border - later)
            if lacking > 0:
                taken.update([each for each in by_opening if each in closed - taken][:lacking])
        rest = border - sum(numbers) - len(taken)
        taken.update([s for s in by_opening if s not in taken][:rest])
        for s in taken:
            numbers[s] += 1
        return numbers

    def block(self, start: int, end: int) -> Block:
        """The sample whose window ends first, at every place of a block."""
        done, last = self.numbers_at(start), self.numbers_at(end)
        sources, numbers = np.empty(end - start, np.int64), np.empty(end - start, np.int64)
        waiting = [(self.opens(s, done[s]), s) for s in range(len(done)) if done[s] < last[s]]
        heapq.heapify(waiting)
        open_windows: list[tuple[int, int]] = []
        for place in range(start, end):
            while waiting and waiting[0][0] <= place:
                s = heapq.heappop(waiting)[1]
                heapq.heappush(open_windows, (self.closes(s, done[s]), s))
            s = heapq.heappop(open_windows)[1]
            sources[place - start], numbers[place - start] = s, done[s]
            done[s] += 1
            if done[s] < last[s]:
                heapq.heappush(waiting, (self.opens(s, done[s]), s))
        return Block(start, sources, numbers)


class Interleaving:
    """The source at every position, for weights that are piecewise constant: [(first position, weights), ...].

    A piece that ends has whole numbers of samples at its end, the sums of the proportions so far, rounded; and in it
    every source has its part of these.
    """

    def __init__(self, weights: Sequence[tuple[int, Sequence[Fraction]]]) -> None:
        self.size = len(weights[0][1])
        self.starts = [start for start, _ in weights]
        self.before: list[list[int]] = [[0] * self.size]  # the samples of each source before each piece
        self.pieces: list[Piece] = []
        due = [Fraction(0)] * self.size
        for i, (start, of_piece) in enumerate(weights):
            shares = _shares(of_piece)
            if i + 1 == len(weights):
                whole = math.lcm(*(share.denominator for share in shares))
                self.pieces.append(Piece([int(share * whole) for share in shares], whole, None))
                break
            length = self.starts[i + 1] - start
            due = [d + share * length for d, share in zip(due, shares)]
            more = _rounded(
                [d - b if share else Fraction(0) for d, b, share in zip(due, self.before[-1], shares)], length
            )
            self.pieces.append(Piece(more, length, length))
            self.before.append([b + m for b, m in zip(self.before[-1], more)])
        self._blocks: OrderedDict[int, Block] = OrderedDict()

    def at(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(source, number of samples of that source before it) of each position."""
        sources, numbers = np.empty(positions.shape, np.int64), np.empty(positions.shape, np.int64)
        left = np.arange(positions.size)
        while left.size:
            block = self._block_at(int(positions[left[0]]))
            places = positions[left] - block.start
            inside = (places >= 0) & (places < len(block.sources))
            sources[left[inside]] = block.sources[places[inside]]
            numbers[left[inside]] = block.numbers[places[inside]]
            left = left[~inside]
        return sources, numbers

    def counts(self, position: int) -> list[int]:
        """The number of samples of each source before a position."""
        i = bisect_right(self.starts, position) - 1
        border, _ = self.pieces[i].borders(position - self.starts[i])
        inside = self._block_at(position).sources[: position - self.starts[i] - border]
        found = np.bincount(inside, minlength=self.size)
        return [int(sum(parts)) for parts in zip(self.before[i], self.pieces[i].numbers_at(border), found)]

    def position_of(self, source: int, number: int) -> int | None:
        """The position of a source's sample `number`, counted from 0; None if it never comes."""
        i = bisect_right([before[source] for before in self.before], number) - 1
        piece, number_in_piece = self.pieces[i], number - self.before[i][source]
        if not piece.rates[source]:
            return None
        position = self.starts[i] + piece.opens(source, number_in_piece)
        while True:
            block = self._block_at(position)
            found = np.flatnonzero((block.sources == source) & (block.numbers == number))
            if found.size:
                return block.start + int(found[0])
            position = block.start + len(block.sources)

    def _block_at(self, position: int) -> Block:
        i = bisect_right(self.starts, position) - 1
        first, end = self.pieces[i].borders(position - self.starts[i])
        start = self.starts[i] + first
        block = self._blocks.get(start)
        if block is None:
            _, sources, numbers = self.pieces[i].block(first, end)
            block = self._blocks[start] = Block(start, sources, numbers + np.array(self.before[i])[sources])
            if len(self._blocks) > KEPT:
                self._blocks.popitem(last=False)
        else:
            self._blocks.move_to_end(start)
        return block


def _shares(weights: Sequence[Fraction]) -> list[Fraction]:
    total = sum(weights)
    listed = [float(weight) for weight in weights]
    if total <= 0 or min(weights) < 0:
        raise ArgumentError(f"Invalid weights {listed}: expected numbers >= 0, not all of them 0.")
    shares = [weight / total for weight in weights]
    if min(share for share in shares if share) < SMALLEST:
        raise ArgumentError(
            f"Invalid weights {listed}: a source has less than {float(SMALLEST):g} of the samples. Give it more, or 0."
        )
    return shares


def _rounded(due: list[Fraction], total: int) -> list[int]:
    """Whole numbers with this sum, each rounded down or up; up where most is missing."""
    numbers = [max(0, math.floor(each)) for each in due]
    while (rest := total - sum(numbers)) != 0:
        missing = sorted(range(len(due)), key=lambda s: (numbers[s] - due[s], s))
        wanted = [s for s in missing if due[s] > 0] if rest > 0 else [s for s in reversed(missing) if numbers[s]]
        for s in wanted[: abs(rest)]:
            numbers[s] += 1 if rest > 0 else -1
    return numbers
