"""Data sets to loaders: columns, order, collators."""

import logging
from collections.abc import Iterator, MutableMapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..data import collators
from ..data.columns import ColumnFilter
from ..data.length_grouping import LengthGroups, measure_lengths
from ..data.loader_options import Loading
from ..data.order import BatchSampler, NoBatch, Order
from ..data.process_sharding import ProcessShard, minds_processes
from ..data.samplers import GivenBatches, IndexSampler, SamplerBatches, makes_batches
from ..data.worker_seeding import GivesBack, SeededData
from ..errors import DataError
from . import validation
from .evaluation import batch_rows
from .loss import split_labels, weigh_labels
from .parts import TrainerParts
from .validation import has_length

logger = logging.getLogger(__name__)

END = object()  # what next() gives when there is no batch left


def _is_hub_dataset(dataset: Any) -> bool:
    """A datasets.Dataset, found without importing the package."""
    return any(base.__module__.startswith("datasets.") and base.__name__ == "Dataset" for base in type(dataset).__mro__)


def say_dropped(where: str, names: list[str]) -> None:
    logger.warning(
        "%s: the model's forward does not take the columns %s; they are left out. "
        "Set remove_unused_columns=False to keep them.",
        where,
        ", ".join(sorted(map(str, names))),
    )


class TrainerData(TrainerParts):
    """get_train_dataloader and its like."""

    def get_train_dataloader(self) -> Any:
        """The loader of the training data: in oneloop's order, which is a pure function of (seed, epoch, position)."""
        if self.train_dataset is None:
            raise DataError("training needs data: pass train_dataset= to the Trainer")
        return self._make_loader(self.train_dataset, "train_dataset", self._train_batch_size, train=True)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """The loader of an evaluation set: one given here, or one of the Trainer's by name, or the Trainer's."""
        if isinstance(eval_dataset, str):
            if not isinstance(self.eval_dataset, dict) or eval_dataset not in self.eval_dataset:
                known = list(self.eval_dataset) if isinstance(self.eval_dataset, dict) else "no named sets"
                raise DataError(f"there is no evaluation set {eval_dataset!r}; the Trainer has {known}")
            eval_dataset = self.eval_dataset[eval_dataset]
        if eval_dataset is None:
            eval_dataset = self.eval_dataset
        if eval_dataset is None:
            raise DataError("evaluation needs data: pass eval_dataset= to the Trainer or to evaluate()")
        return self._make_loader(eval_dataset, "eval_dataset", self.args.eval_batch_size, train=False)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """The loader of a set to predict on."""
        if test_dataset is None:
            raise DataError("prediction needs data: pass test_dataset to predict().")
        return self._make_loader(test_dataset, "test_dataset", self.args.eval_batch_size, train=False)

    def num_examples(self, dataloader: Any) -> int:
        """Samples in a loader; estimated from its batches where the data set does not say."""
        try:
            return len(dataloader.dataset)
        except (TypeError, AttributeError, NotImplementedError, ValueError, RuntimeError):
            return len(dataloader) * self.args.per_device_train_batch_size

    # -- order

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        """Sample indices in training order, with set_epoch; None for data that can only be walked through."""
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if dataset is None or self.backend.loaders.is_iterable(dataset) or not has_length(dataset):
            return None
        return IndexSampler(self._orders(dataset))

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        return IndexSampler(partial(Order, len(eval_dataset), 0, shuffle=False))

    def _orders(self, dataset: Any) -> Any:
        """epoch -> order of the training samples."""
        args, seed = self.args, self._data_seed
        strategy = str(args.train_sampling_strategy)
        if strategy == "group_by_length":
            lengths = self._lengths(dataset)
            return partial(LengthGroups, lengths, self.get_total_train_batch_size(args), seed)
        return partial(Order, len(dataset), seed, shuffle=strategy != "sequential")

    def _lengths(self, dataset: Any) -> np.ndarray:
        names = getattr(self.processing_class, "model_input_names", None)
        name = names[0] if names else "input_ids"
        return measure_lengths(dataset, self.args.length_column_name, name, progress=not self.args.disable_tqdm)

    @property
    def _data_seed(self) -> int:
        return self.args.seed if self.args.data_seed is None else self.args.data_seed

    # -- loaders

    def _make_loader(self, dataset: Any, where: str, batch_size: int, train: bool) -> Any:
        args, loaders = self.args, self.backend.loaders
        validation.dataset(where, dataset, self.backend)
        dataset, collate = self._columns(dataset, where)
        iterable = loaders.is_iterable(dataset)
        drop_last = train and args.dataloader_drop_last  # an evaluation counts every sample
        asked = Loading(
            collate,
            batch_size=batch_size,
            drop_last=drop_last,
            workers=args.dataloader_num_workers,
            pin=args.dataloader_pin_memory and self.backend.devices.kind(args.device) != "cpu",
            persistent=args.dataloader_persistent_workers,
            prefetch=args.dataloader_prefetch_factor,
            context=args.dataloader_multiprocessing_context,
            in_order=args.dataloader_in_order,
            seed=self._data_seed,
        )
        if iterable:
            if train and (args.train_sampling_strategy == "group_by_length" or getattr(args, "sortish_sampler", False)):
                raise DataError(
                    f"grouping by length needs a data set with a length and indices, and {where}, a "
                    f"{type(dataset).__name__}, is walked through. Leave train_sampling_strategy (group_by_length, "
                    "sortish_sampler) out, or load the data into a map-style data set."
                )
            if self.processes.size > 1 and not minds_processes(dataset):
                of_all = (
                    batch_size,
                    self.processes.size,
                    self.processes.rank,
                    drop_last,
                    self._data_seed,
                    self.backend,
                )
                dataset = ProcessShard(dataset, *of_all)
            return loaders.make_loader(dataset, asked)
        if has_length(dataset) and len(dataset) == 0:
            raise DataError(f"{where} is empty. Pass a data set with at least one sample.")
        sampler = self._get_train_sampler_for(dataset) if train else self._get_eval_sampler(dataset)
        workers, own = args.dataloader_num_workers > 0, not isinstance(sampler, IndexSampler)
        alone = args.seed_each_sample
        placed = workers or alone
        if placed:
            dataset = SeededData(dataset, self._data_seed, args.process_index, self.backend.NAME, own, alone)
        if alone and not workers:
            asked = replace(asked, collate=GivesBack(collate, dataset))
        if not own:
            batches: Any = BatchSampler(
                sampler.orders, batch_size, args.world_size, args.process_index, drop_last, placed=placed
            )
            if len(batches) == 0:
                raise DataError(
                    f"{where} has {len(dataset)} samples, fewer than one batch of {batch_size}, and "
                    "dataloader_drop_last=True drops it. Use a smaller batch, or dataloader_drop_last=False."
                )
        elif makes_batches(sampler):
            batches = GivenBatches(sampler, placed, self.processes)
        else:
            batches = SamplerBatches(sampler, batch_size, drop_last, placed, self.processes)
        return loaders.make_loader(dataset, replace(asked, batches=batches))

    def _get_train_sampler_for(self, dataset: Any) -> Any:
        from .loss import accepts

        # Overrides written for 4.x take no data set.
        if accepts(self._get_train_sampler, "train_dataset") or accepts(self._get_train_sampler, "dataset"):
            return self._get_train_sampler(dataset)
        return self._get_train_sampler()

    def _columns(self, dataset: Any, where: str) -> tuple[Any, Any]:
        """The data set and the collator, without columns that the model does not take."""
        collate = collators.for_framework(self.data_collator, self.backend.NAME)
        if not self.args.remove_unused_columns:
            return dataset, collate
        self._set_signature_columns_if_needed()
        if self._signature_columns is None:
            return dataset, collate
        keep = set(self._signature_columns)
        if self.args.train_sampling_strategy == "group_by_length" or getattr(self.args, "sortish_sampler", False):
            keep = keep | {self.args.length_column_name} if _is_hub_dataset(dataset) else keep
        if _is_hub_dataset(dataset):
            dropped = [name for name in dataset.column_names if name not in keep]
            if len(dropped) == len(dataset.column_names):
                raise DataError(
                    f"{where} has the columns {dataset.column_names}, and the model's forward takes none of them; it "
                    f"takes {sorted(keep)}. Rename the columns (dataset.rename_column), tokenize the text first, or "
                    "set remove_unused_columns=False and pass a data_collator that makes what the model takes."
                )
            unknown = [name for name in dropped if name != self.args.length_column_name]
            if unknown and self.first_time(where, tuple(unknown)):
                say_dropped(where, unknown)
            if self.args.length_column_name in dataset.column_names:
                # Needed for grouping and useless to the model: dropped when the batch is made.
                return dataset.remove_columns(
                    [name for name in dropped if name != self.args.length_column_name]
                ), ColumnFilter(collate, keep - {self.args.length_column_name})
            return dataset.remove_columns(dropped), collate
        if self._as_paddlenlp:  # there a collator sees whole samples
            return dataset, collate
        say = partial(say_dropped, where) if self.first_time(where, id(dataset)) else None
        return dataset, ColumnFilter(collate, keep, say)

    def first_time(self, *what: Any) -> bool:
        """Whether this has not been said yet: an evaluation every hundred steps need not say it every hundred steps."""
        new = what not in self._said
        self._said.add(what)
        return new

    # -- batches

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: Any = None
    ) -> tuple[list, Any]:
        """The micro-batches of the next update, and how many items they hold together (None when nothing needs it)."""
        batches = []
        for _ in range(num_batches):
            batch = next(epoch_iterator, END)
            if batch is END:
                break
            if isinstance(batch, NoBatch):  # fewer samples than processes were left at the end of the epoch
                continue
            if batch is None:
                raise DataError("the data_collator returned None; expected a batch. Does it end with a return?")
            batches.append(batch)
        if not self._counts_items or not batches:
            return batches, None
        self._micro_items = [self._count_items(batch) for batch in batches]
        return batches, sum(self._micro_items)

    def _count_items(self, batch: Any) -> Any:
        """How much a micro-batch weighs in its update; see losses.py. Batches are still on the host here."""
        _, labels = split_labels(batch, self.label_names)
        labels = labels[0] if isinstance(labels, tuple) else labels
        if labels is None:
            return batch_rows(batch) or 1
        tensors = self.backend.tensors
        if self._class_weights is not None:
            array = tensors.to_numpy(labels) if tensors.is_tensor(labels) else np.asarray(labels)
            if array.dtype.kind in "iu":  # labels that are shares of classes have a plain mean
                ignored = -100 if self._ignore_index is None else self._ignore_index
                return weigh_labels(array, self._class_weights, ignored, self._shifts_labels)
        return int(tensors.count_labels(labels, self._shifts_labels, self._ignore_index))

    def _prepare_inputs(self, inputs: Any) -> Any:
        """The batch on the device, with the past of the step before when past_index asks for it."""
        inputs = self.backend.devices.move(inputs, self.args.device, self._non_blocking)
        if inputs is None or (hasattr(inputs, "__len__") and len(inputs) == 0):
            raise DataError(
                "a batch is empty: the data_collator returned nothing that the model's forward takes. "
                "Look at the columns of the data set, or set remove_unused_columns=False."
            )
        if self._half_inputs is not None:
            inputs = self._in_half(inputs, self._half_inputs)
        if self.args.past_index >= 0 and self._past is not None:
            if not isinstance(inputs, MutableMapping):
                raise DataError(
                    f"past_index={self.args.past_index} hands `mems` to the model by name, but a batch is a "
                    f"{type(inputs).__name__}. Use a data set or collator that makes dicts, or leave past_index out."
                )
            inputs["mems"] = self._past
        return inputs

    def _in_half(self, inputs: Any, kind: str) -> Any:
        """Inputs for weights in pure half; labels keep their precision."""
        in_half = self.backend.tensors.in_half
        if not isinstance(inputs, MutableMapping):
            return in_half(inputs, kind)
        for name in inputs:
            if name not in self.label_names:
                inputs[name] = in_half(inputs[name], kind)
        return inputs
