"""A computed shuffle: any position of any epoch costs the same, and no permutation is stored.

Up to SMALL samples, the permutation is the sort order of keyed hashes, which makes every permutation equally likely.
Above that, positions are cells of a grid of about sqrt(length) by sqrt(length), and a Feistel network adds keyed hashes
of the column to the row and of the row to the column. The grid has a few more cells than there are samples; a result
outside the range goes through the network again until it is inside (cycle walking), which keeps the mapping one-to-one.

The results are part of the checkpoint format: changing any constant here changes the data order of a resumed run.
"""

from math import isqrt

import numpy as np

MAX_LENGTH = 2**62
SMALL = 4096
ROUNDS = 8  # four pass most randomness tests, eight leave a margin for grids as small as 65 by 64

_CHUNK = 8192  # temporaries of one chunk fit into the processor's cache
_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # multipliers of splitmix64's finaliser
_FIRST_FACTOR, _SECOND_FACTOR = np.uint64(_FIRST), np.uint64(_SECOND)
_HALF, _LOWER, _UPPER = np.uint64(32), np.uint64(31), np.uint64(33)


def key_of(*parts: int) -> int:
    """A 64-bit key that depends on every part and on their order."""
    key = 0
    for part in parts:
        key = _mix(key ^ _mix(int(part) + _GOLDEN))
    return key


def hash_with(key: int, values: np.ndarray) -> np.ndarray:
    """64 well-mixed bits for each value; for one key, different values never collide."""
    mixed = values.astype(np.uint64) ^ np.uint64(key)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST_FACTOR
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND_FACTOR
    return mixed ^ (mixed >> np.uint64(31))


def permute(positions: np.ndarray, length: int, seed: int, epoch: int, inverse: bool = False) -> np.ndarray:
    """The sample at each position of the shuffled epoch (`inverse`: the position of each sample), as int64."""
    positions = np.asarray(positions)
    if not 1 <= length <= MAX_LENGTH:
        raise ValueError(f"Invalid length={length}: a permutation has 1 to 2**62 elements")
    if positions.size and not 0 <= positions.min() <= positions.max() < length:
        raise IndexError(
            f"positions {positions.min()} to {positions.max()} are out of range: expected 0 to {length - 1}"
        )
    flat = positions.ravel()
    if length <= SMALL:
        hashes = hash_with(key_of(seed, epoch), np.arange(length))
        result = np.argsort(hashes, kind="stable")
        if inverse:
            result = np.argsort(result, kind="stable")
        return result[flat].astype(np.int64, copy=False).reshape(positions.shape)
    keys = [np.uint64(key_of(seed, epoch, number)) for number in range(ROUNDS)]
    result = np.empty(flat.shape, np.int64)
    for start in range(0, flat.size, _CHUNK):
        chunk = slice(start, start + _CHUNK)
        result[chunk] = _walk(flat[chunk].astype(np.uint64), length, keys, inverse)
    return result.reshape(positions.shape)


def _walk(cells: np.ndarray, length: int, keys: list[np.uint64], inverse: bool) -> np.ndarray:
    rows = isqrt(length - 1) + 1
    columns = -(-length // rows)
    cells = _network(cells, rows, columns, keys, inverse)
    while (outside := np.flatnonzero(cells >= np.uint64(length))).size:
        cells[outside] = _network(cells[outside], rows, columns, keys, inverse)
    return cells.view(np.int64)


def _network(cells: np.ndarray, rows: int, columns: int, keys: list[np.uint64], inverse: bool) -> np.ndarray:
    """Apply all rounds, or their inverse, to cells of the grid, numbered row by row."""
    height, width = np.uint64(rows), np.uint64(columns)
    row = cells // width
    column = cells - row * width
    shift, scratch = np.empty_like(row), np.empty_like(row)
    rounds = list(enumerate(keys))
    for number, key in reversed(rounds) if inverse else rounds:
        target, source, size = (column, row, width) if number % 2 else (row, column, height)
        # Two multiplications with a fold in between; the upper bits, which are mixed best, are scaled to 0..size-1.
        np.bitwise_xor(source, key, out=shift)
        np.multiply(shift, _FIRST_FACTOR, out=shift)
        np.right_shift(shift, _HALF, out=scratch)
        np.bitwise_xor(shift, scratch, out=shift)
        np.multiply(shift, _SECOND_FACTOR, out=shift)
        np.right_shift(shift, _LOWER, out=shift)
        np.multiply(shift, size, out=shift)  # 33 bits times a size of at most 2**31: no overflow
        np.right_shift(shift, _UPPER, out=shift)
        if inverse:
            np.subtract(size, shift, out=shift)
        # Modulo without a division: unsigned numbers wrap around, so a sum below `size` minus `size` is huge.
        np.add(target, shift, out=target)
        np.subtract(target, size, out=scratch)
        np.minimum(target, scratch, out=target)
    np.multiply(row, width, out=row)
    return np.add(row, column, out=row)


def _mix(value: int) -> int:
    """splitmix64's finaliser, on one Python integer."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)
