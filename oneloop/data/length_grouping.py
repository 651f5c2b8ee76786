"""Batches of samples of similar length, to reduce padding, and the lengths that this requires."""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from ..errors import ArgumentError, DataError, a_type
from .feistel import hash_with, key_of, permute
from .order import Order

BATCHES_PER_BLOCK = 50
_SLICE = 1000  # rows of a column measured per update of the progress bar
_BATCHES = -1  # separates the key that shuffles batches from those of the permutation, which are numbered from 0


class LengthGroups(Order):
    """A shuffled order in which consecutive runs of `batch` samples have similar lengths.

    The shuffled epoch is split into blocks of up to fifty batches. Each block is sorted by length and split into
    batches, and its batches are shuffled, so that lengths do not decrease steadily. Any position costs one block. The
    batch with the longest sample comes first: if it does not fit into memory, the first step fails.

    `batch` should be the number of samples in one update, over all processes and accumulation steps. The order then
    stays the same when a run resumes with another number of processes and the same number of samples per update.
    """

    def __init__(self, lengths: Sequence[int] | np.ndarray, batch: int, seed: int = 0, epoch: int = 0):
        super().__init__(len(lengths), seed, epoch)
        if batch < 1:
            raise ArgumentError(f"Invalid batch size {batch}: expected at least 1; increase the batch size")
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.batch = batch
        # At least four blocks, or a small dataset would have the same batches in every epoch.
        self.block = batch * max(1, min(BATCHES_PER_BLOCK, self.length // (4 * batch)))
        self._key = key_of(seed, epoch, _BATCHES)
        self._longest = self._find_longest()

    def at(self, positions: np.ndarray) -> np.ndarray:
        if positions.size == 0:
            return positions
        flat = positions.ravel()
        if self._longest:  # swap this batch and the first one
            away, number = self._longest * self.batch, flat // self.batch
            flat = np.where(number == 0, flat + away, np.where(number == self._longest, flat - away, flat))
        blocks, which = np.unique(flat // self.block, return_inverse=True)
        return self._arrange(blocks)[which * self.block + flat % self.block].reshape(positions.shape)

    def _arrange(self, blocks: np.ndarray) -> np.ndarray:
        """The samples of these blocks (in ascending order), one block after the other."""
        positions = (blocks[:, None] * self.block + np.arange(self.block)).ravel()
        positions = positions[: np.searchsorted(positions, self.length)]  # the last block of the epoch may be short
        samples = permute(positions, self.length, self.seed, self.epoch)
        samples = samples[_sort_runs(-self.lengths[samples], self.block)]
        whole = len(samples) // self.batch * self.batch
        draws = hash_with(self._key, positions[: whole : self.batch])
        batches = samples[:whole].reshape(-1, self.batch)[_sort_runs(draws, self.block // self.batch)]
        return np.concatenate((batches.ravel(), samples[whole:]))

    def _find_longest(self) -> int:
        """The index of the batch with the longest sample; 0 if it is the short last one, which must stay last."""
        if self.length == 0:
            return 0
        sample = np.argmax(self.lengths)
        home = permute(np.array([sample]), self.length, self.seed, self.epoch, inverse=True) // self.block
        place = int(home[0]) * self.block + int(np.flatnonzero(self._arrange(home) == sample)[0])
        number = place // self.batch
        return number if (number + 1) * self.batch <= self.length else 0


def _sort_runs(keys: np.ndarray, run: int) -> np.ndarray:
    """Indices that sort each run of this many keys separately; the sort is stable."""
    whole = len(keys) // run * run
    rows = np.argsort(keys[:whole].reshape(-1, run), axis=1, kind="stable") + np.arange(0, whole, run)[:, None]
    return np.concatenate((rows.ravel(), np.argsort(keys[whole:], kind="stable") + whole))


class SortishOrder(LengthGroups):
    """The order of `sortish_sampler`: groups of similar lengths for training, longest to shortest for evaluation.

    With `shuffle=False` samples are not in dataset order; the caller that collects predictions restores it.
    """

    def __init__(
        self,
        lengths: Sequence[int] | np.ndarray,
        batch: int,
        seed: int = 0,
        epoch: int = 0,
        shuffle: bool = True,
    ):
        super().__init__(lengths, batch, seed, epoch)
        self.shuffle = shuffle
        self._sorted = None if shuffle else np.argsort(-self.lengths, kind="stable")

    def at(self, positions: np.ndarray) -> np.ndarray:
        return super().at(positions) if self._sorted is None else self._sorted[positions]


def measure_lengths(
    dataset: Any,
    column_name: str = "length",
    model_input_name: str = "input_ids",
    progress: bool = True,
    purpose: str = "grouping by length",
) -> np.ndarray:
    """The length of each sample: its `column_name` if present, otherwise the length of its `model_input_name`.
    `purpose` is what they are for, in errors."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise DataError(
            f"{purpose} requires a dataset with a length and indices, but {type(dataset).__name__} is an "
            "iterable dataset. Disable it, or load the data into a map-style dataset."
        )
    columns = getattr(dataset, "column_names", None) or ()
    if column_name in columns or model_input_name in columns:
        # A transform of the dataset could need columns that are not read here.
        plain = dataset.with_format(None) if hasattr(dataset, "with_format") else dataset
        if column_name in columns:
            return _checked(plain[column_name][:], column_name)
        if hasattr(dataset, "with_format"):
            lengths = _of_lists(dataset.with_format("arrow"), model_input_name, progress)
            if lengths is not None:
                return lengths
        return _of_column(plain[model_input_name], len(dataset), model_input_name, progress)
    return _of_samples(dataset, column_name, model_input_name, progress, purpose)


def _of_lists(tables: Any, name: str, progress: bool) -> np.ndarray | None:
    """The lengths of an Arrow column of lists, without reading their values; None for any other column."""
    import pyarrow
    import pyarrow.compute

    rows = len(tables)
    lengths = np.empty(rows, np.int64)
    with _bar(rows, progress) as bar:
        for start in range(0, rows, 100 * _SLICE):
            column = tables[start : start + 100 * _SLICE][name]
            if not (pyarrow.types.is_list(column.type) or pyarrow.types.is_large_list(column.type)):
                return None
            measured = pyarrow.compute.list_value_length(column)
            if measured.null_count:
                return None
            lengths[start : start + len(measured)] = measured.to_numpy()
            bar.update(len(measured))
    return lengths


def _of_column(column: Any, rows: int, name: str, progress: bool) -> np.ndarray:
    lengths = np.empty(rows, np.int64)
    with _bar(rows, progress) as bar:
        for start in range(0, rows, _SLICE):
            measured = [_size(value, name, start + row) for row, value in enumerate(column[start : start + _SLICE])]
            lengths[start : start + len(measured)] = measured
            bar.update(len(measured))
    return lengths


def _of_samples(dataset: Any, column_name: str, model_input_name: str, progress: bool, purpose: str) -> np.ndarray:
    lengths = np.empty(len(dataset), np.int64)
    with _bar(len(dataset), progress) as bar:
        for index in range(len(dataset)):
            sample = dataset[index]
            if isinstance(sample, Mapping) and column_name in sample:
                value = sample[column_name]
                lengths[index] = _checked([value.item() if hasattr(value, "item") else value], column_name, index)[0]
            elif isinstance(sample, Mapping) and model_input_name in sample:
                lengths[index] = _size(sample[model_input_name], model_input_name, index)
            else:
                has = f"the keys {', '.join(map(repr, sample))}" if isinstance(sample, Mapping) else "no keys"
                raise DataError(
                    f"{purpose} found neither {column_name!r} nor {model_input_name!r} in sample {index}, a "
                    f"{type(sample).__name__} with {has}. Add one of them to every sample, set length_column_name to "
                    "the column with the lengths, or disable it."
                )
            bar.update()
    return lengths


def _checked(values: Any, name: str, first: int = 0) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim == 1 and array.dtype.kind in "iu" and (array.size == 0 or array.min() >= 0):
        return array.astype(np.int64, copy=False)
    for index, value in enumerate(np.asarray(array, dtype=object).tolist()):
        if not isinstance(value, Integral) or isinstance(value, bool) or value < 0:
            raise DataError(
                f"sample {first + index} has the length {value!r} in {name!r}; expected an integer of at least 0. "
                "Fix the column, or set length_column_name to another one."
            )
    return np.asarray(array, dtype=np.int64)


def _size(value: Any, name: str, index: int) -> int:
    shape = getattr(value, "shape", None)
    if shape:
        return int(shape[-1])
    try:
        return len(value)
    except TypeError:
        raise DataError(
            f"sample {index} has {a_type(value)} in {name!r}, which has no length; expected a sequence. "
            "Tokenize the data first, or add a column of lengths and set length_column_name to it."
        ) from None


def _bar(total: int, progress: bool) -> Any:
    from tqdm.auto import tqdm

    return tqdm(total=total, desc="Measuring lengths", unit=" samples", disable=not progress, leave=False)
