"""Bits per byte that simpler methods need for held-out text: an n-gram model and a general-purpose compressor."""

import lzma
from collections.abc import Sequence

import numpy as np

ORDER = 6  # bytes, the predicted one included; their numbers fit into 64 bits up to 8


def ngram_bits_per_byte(train: Sequence[str], held_out: Sequence[str], order: int = ORDER) -> float:
    """An interpolated byte n-gram model (Witten-Bell), fitted on `train`.

    The probability of a byte after a context mixes the counts of that context with the probability after the context
    that is one byte shorter. The weight of the shorter one is the share of different bytes that followed.
    """
    known, new = joined(train), joined(held_out)
    probability = np.full(len(new), 1 / 256)
    for length in range(1, order + 1):
        seen = ngrams(known, length)
        wanted = ngrams(new, length)
        grams, counts = np.unique(seen, return_counts=True)
        first = np.flatnonzero(np.diff(grams >> np.uint64(8), prepend=np.uint64(2**64 - 1)))
        contexts, followers = grams[first] >> np.uint64(8), np.diff(first, append=len(grams))
        totals = np.add.reduceat(counts, first)
        count = look_up(grams, counts, wanted)
        total, different = (look_up(contexts, values, wanted >> np.uint64(8)) for values in (totals, followers))
        mixed = (count + different * probability[length - 1 :]) / np.maximum(total + different, 1)
        probability[length - 1 :] = np.where(total > 0, mixed, probability[length - 1 :])
    return float(-np.log2(probability).mean())


def joined(documents: Sequence[str]) -> np.ndarray:
    return np.frombuffer(b"\0".join(document.encode() for document in documents), np.uint8).astype(np.uint64)


def ngrams(data: np.ndarray, length: int) -> np.ndarray:
    """Every run of that many bytes as one number; its last byte is the lowest."""
    numbers = np.zeros(len(data) - length + 1, np.uint64)
    for offset in range(length):
        numbers = (numbers << np.uint64(8)) | data[offset : offset + len(numbers)]
    return numbers


def look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The value of each wanted key; 0 for those that `keys`, which are sorted, do not hold."""
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, values[places], 0).astype(np.float64)


def xz_bits_per_byte(train: Sequence[str], held_out: Sequence[str]) -> float:
    """How much longer the compressed training text becomes by the held-out text."""
    known, new = ("\0".join(documents).encode() for documents in (train, held_out))
    return 8 * (xz_size(known + new) - xz_size(known)) / len(new)


def xz_size(data: bytes) -> int:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 1 << 26}]  # the dictionary holds all of the text
    return len(lzma.compress(data, format=lzma.FORMAT_RAW, filters=filters))
