"""Create loaders from datasets: columns, order, collators, and the batches of this process."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import behaviour, randomness
from ..arguments.data import packing_of
from ..data import collators, streams
from ..data.collators.language import RandomCollator
from ..data.length_grouping import LengthGroups, SortishOrder, measure_lengths
from ..data.loader_options import LoaderOptions
from ..data.mixture import Mixture
from ..data.order import BatchSampler, Order
from ..data.packed_documents import PackedDocuments
from ..data.packed_streams import PackedStream
from ..data.process_sharding import (
    ProcessShard,
    every_nth,
    is_prepared,
    samplers_of,
    shards_itself,
    with_rng_state,
)
from ..data.samplers import GivenBatches, IndexSampler, SamplerBatches, shuffles, yields_batches
from ..data.samples import ColumnFilter
from ..data.stream_mixture import StreamMixture
from ..data.transformers_order import DrawnOrders, ShardedBatches, random_orders
from ..data.update_batches import UpdateBatches
from ..data.worker_seeding import RestoreRNGCollator, SeededData
from ..errors import DataError, UnknownDatasetError
from ..introspect import is_overridden, takes_arguments
from . import batch_costs, packing, validation
from .validation import has_length

if TYPE_CHECKING:
    from .core import Core

logger = logging.getLogger(__name__)


# -- order


def train_orders(core: "Core", dataset: Any) -> Any:
    """A function from the epoch to the order of the training samples."""
    args = core.trainer.args
    strategy = str(args.train_sampling_strategy)
    if isinstance(dataset, PackedDocuments):
        return packing.orders(core, dataset)
    if isinstance(dataset, Mixture):
        return _mixture_orders(core, dataset, strategy)
    if args.max_tokens_per_batch is not None:
        return batch_costs.orders(core, lengths_of(core, dataset, "max_tokens_per_batch"))
    if core.in_transformers_order and strategy != "sequential":
        return _reproduced_orders(core, dataset, strategy)
    if strategy == "group_by_length":
        per_update = core.trainer.get_total_train_batch_size(args)
        return partial(LengthGroups, lengths_of(core, dataset), per_update, core.data_seed)
    return partial(Order, len(dataset), core.data_seed, shuffle=strategy != "sequential")


def _mixture_orders(core: "Core", mixture: Mixture, strategy: str) -> Any:
    args = core.trainer.args
    for refused, name in (
        (strategy in ("group_by_length", "batch_rebalance"), f"train_sampling_strategy='{strategy}'"),
        (args.max_tokens_per_batch is not None, f"max_tokens_per_batch={args.max_tokens_per_batch}"),
        (core.in_transformers_order, "data_order='transformers'"),
    ):
        if refused:
            raise DataError(f"{name} cannot order a Mixture, which has an order of its own. Remove it.")
    per_update = core.trainer.get_total_train_batch_size(args)
    return mixture.orders(core.data_seed, per_update, shuffle=strategy != "sequential")


def _reproduced_orders(core: "Core", dataset: Any, strategy: str) -> Any:
    """The same for data_order="transformers"."""
    args, randperm = core.trainer.args, core.backend.randomness.randperm
    if strategy == "group_by_length":
        # Of one process, and as the arguments have it, also where a resume keeps another accumulation.
        batch = args.train_batch_size * args.gradient_accumulation_steps
        return DrawnOrders(lengths_of(core, dataset), batch, randperm, core.processes)
    return random_orders(len(dataset), core.data_seed, randperm)


def sortish_orders(core: "Core", dataset: Any) -> Any:
    """The same for sortish_sampler: batches of similar lengths, the longest one first."""
    per_update = core.trainer.get_total_train_batch_size(core.trainer.args)
    return partial(SortishOrder, lengths_of(core, dataset), per_update, core.data_seed)


def lengths_of(core: "Core", dataset: Any, purpose: str = "grouping by length") -> np.ndarray:
    trainer = core.trainer
    names = getattr(trainer.processing_class, "model_input_names", None)
    name = names[0] if names else "input_ids"
    shown = not trainer.args.disable_tqdm
    return measure_lengths(dataset, trainer.args.length_column_name, name, shown, purpose)


def _needs_lengths(args: Any) -> str | None:
    """The argument for which the lengths of the training samples have to be known."""
    if args.max_tokens_per_batch is not None:
        return f"max_tokens_per_batch={args.max_tokens_per_batch}"
    if args.train_sampling_strategy == batch_costs.REBALANCED:
        return f"train_sampling_strategy={batch_costs.REBALANCED!r}"
    groups = args.train_sampling_strategy == "group_by_length" or getattr(args, "sortish_sampler", False)
    return "train_sampling_strategy='group_by_length' (group_by_length, sortish_sampler)" if groups else None


# -- loaders

# The argument that holds the data, by the description that _get_dataloader is given.
ARGUMENT_OF = {"Training": "train_dataset", "Evaluation": "eval_dataset", "test": "test_dataset"}


def make_loader(
    core: "Core", dataset: Any, where: str, batch_size: int, sampler_fn: Any = None, train: bool = False
) -> Any:
    """The loader of a dataset; `where` is the name of the argument that it was passed as.

    sampler_fn(dataset) returns the sampler of a dataset that is not iterable; without a sampler, samples come in the
    order of the data.
    """
    args, loaders = core.trainer.args, core.backend.loaders
    validation.dataset(where, dataset, core.backend)
    _place_collator(core)
    if packing_of(args) is None:
        packing.warn_about_packing_fields(core)
        dataset, collate = _columns(core, dataset, where)
    else:
        # An evaluation set is read here. A loader that is kept is made once in a process, so reading must not change
        # the streams of the run. Training data is read before they begin, or are restored.
        with contextlib.nullcontext() if train else randomness.preserve_state(core.backend):
            dataset, collate = packing.packed(core, dataset, where, train)
    # An evaluation uses every sample, unless its figures are expected to be of whole batches.
    drop_last = args.dataloader_drop_last and (train or behaviour.current().eval_drops_last)
    options = LoaderOptions(
        collate,
        batch_size=batch_size,
        drop_last=drop_last,
        workers=args.dataloader_num_workers,
        pin=args.dataloader_pin_memory and core.backend.devices.kind(args.device) != "cpu",
        persistent=args.dataloader_persistent_workers,
        prefetch=args.dataloader_prefetch_factor,
        context=args.dataloader_multiprocessing_context,
        in_order=args.dataloader_in_order,
        seed=core.data_seed,
        draws_seed=core.in_transformers_order,
    )
    if loaders.is_iterable(dataset):
        if core.in_transformers_order:  # that order takes every batch of such data
            options, drop_last = replace(options, drop_last=False), False
        if train and (name := _needs_lengths(args)):
            raise DataError(
                f"batches by length need a dataset with __len__ and __getitem__, but {where} is an iterable "
                f"{type(dataset).__name__}. Remove {name}, or load the data into a map-style dataset."
            )
        dataset = _stream_of_process(core, dataset, where, options, train)
        return loaders.make_loader(dataset, options)
    if has_length(dataset) and len(dataset) == 0:
        raise DataError(f"{where} is empty. Pass a dataset with at least one sample.")
    sampler = _sampler(sampler_fn, dataset)
    if train and batch_costs.divides_by_cost(args):
        lengths = partial(lengths_of, core, dataset)
        by_cost = batch_costs.sampler_class(core, sampler, lengths)
        return _indexed_loader(core, dataset, where, options, sampler, by_cost)
    if args.world_invariant:
        divided = partial(UpdateBatches, accumulation=core.run.accumulation if train else 1)
        return _indexed_loader(core, dataset, where, options, sampler, divided)
    if not (train and core.in_transformers_order):
        return _indexed_loader(core, dataset, where, options, sampler)
    if shuffles(sampler, dataset):  # that order has random samples of its own
        sampler = IndexSampler(random_orders(len(dataset), core.data_seed, core.backend.randomness.randperm))
    return _indexed_loader(core, dataset, where, options, sampler, ShardedBatches)


def _place_collator(core: "Core") -> None:
    """Have a collator that draws from its own generator draw the same in all processes of a batch."""
    if isinstance(core.trainer.data_collator, RandomCollator):
        core.trainer.data_collator.batch_index = core.mesh.batch_index


def _stream_of_process(core: "Core", dataset: Any, where: str, options: LoaderOptions, train: bool) -> Any:
    """What this process reads of an iterable dataset: everything, of which it keeps its samples, or its own shards."""
    args, mesh = core.trainer.args, core.mesh
    documents = dataset.source if isinstance(dataset, PackedStream) else dataset
    streams.check(documents, where)
    streams.prepare(documents, options.batch_size, options.workers)
    if isinstance(documents, StreamMixture):
        per_update = core.trainer.get_total_train_batch_size(args)
        documents.prepare(core.data_seed, per_update, shuffle=train and args.train_sampling_strategy != "sequential")
    divided = streams.shards_natively(documents)
    if mesh.is_single:
        return dataset
    if shards_itself(documents) if divided is None else divided:
        _check_own_division(core, documents, where)
        return dataset
    if mesh.num_batches == 1:
        return dataset
    if train and args.stream_sharding == "shards":
        return _with_source(dataset, streams.local_shards(documents, mesh.batch_index, mesh.num_batches, where))
    documents = streams.unsharded(documents)
    seeds = str(streams.seeds(documents))
    # A collective, for pipelines of WebDataset: all processes have to read the same samples.
    differ = streams.seeds(documents) and len(set(core.processes.all_gather_object(seeds))) > 1
    if streams.unseeded_stages(documents) or differ:
        raise DataError(
            f"{where} is shuffled by a stage of WebDataset without a seed, so the processes would read different "
            "samples. Pass seed= to WebDataset and to shuffle, or use detshuffle."
        )
    of_all = (options.batch_size, mesh.num_batches, mesh.batch_index, options.drop_last, core.data_seed, core.backend)
    return ProcessShard(_with_source(dataset, documents), *of_all, fills=train and core.in_transformers_order)


def _check_own_division(core: "Core", data: Any, where: str) -> None:
    """Raise DataError for data that each process divides by its rank, if some have to have the same batch. A sampler
    with as many replicas as the mesh has batches is right."""
    mesh = core.mesh
    replicas = getattr(data, "num_replicas", getattr(data, "nranks", None))
    if mesh.size > mesh.num_batches and replicas != mesh.num_batches:
        raise DataError(
            f"{where}: {type(data).__name__} divides its samples by rank, but of the {mesh.size} processes "
            f"{mesh.size // mesh.num_batches} each have to read the same ones ({mesh.describe()}). Let it yield all "
            "samples, which are divided automatically (with a class attribute shards_itself = False if needed)."
        )


def _with_source(dataset: Any, documents: Any) -> Any:
    """A stream of other documents: packed, if it was."""
    if not isinstance(dataset, PackedStream):
        return documents
    return PackedStream(documents, dataset.packer, dataset.accepted, dataset.keeps_first_label, dataset.joins_pieces)


def _indexed_loader(
    core: "Core",
    dataset: Any,
    where: str,
    options: Any,
    sampler: Any,
    batch_sampler: Callable[..., BatchSampler] = BatchSampler,
) -> Any:
    """The loader of a dataset with __len__ and __getitem__; `batch_sampler` divides the orders of our own samplers."""
    args, mesh = core.trainer.args, core.mesh
    workers, own = args.dataloader_num_workers > 0, not isinstance(sampler, IndexSampler)
    alone = args.seed_each_sample or args.world_invariant
    placed = workers or alone
    collate, batch_size, drop_last = options.collate, options.batch_size, options.drop_last
    if placed:
        repeats = own or isinstance(dataset, Mixture)
        dataset = SeededData(dataset, core.data_seed, mesh.batch_index, core.backend.NAME, repeats, alone)
    if alone and not workers:
        options = replace(options, collate=RestoreRNGCollator(collate, dataset))
    if hasattr(sampler, "num_replicas") or hasattr(sampler, "nranks"):
        _check_own_division(core, sampler, where)
    if not own:
        batches: Any = batch_sampler(
            sampler.orders, batch_size, mesh.num_batches, mesh.batch_index, drop_last, placed=placed
        )
        if len(batches) == 0:
            raise DataError(
                f"{where} has {len(dataset)} samples, fewer than one batch of {batch_size}, and "
                "dataloader_drop_last=True drops it. Use a smaller batch, or dataloader_drop_last=False."
            )
    elif yields_batches(sampler):
        batches = GivenBatches(sampler, placed, mesh)
    else:
        batches = SamplerBatches(sampler, batch_size, drop_last, placed, core.processes, mesh)
    return core.backend.loaders.make_loader(dataset, replace(options, batches=batches))


def _sampler(sampler_fn: Any, dataset: Any) -> Any:
    sampler = None
    if sampler_fn is not None:
        # An older _get_train_sampler does not accept the dataset.
        sampler = sampler_fn(dataset) if takes_arguments(sampler_fn) else sampler_fn()
    return in_order(dataset) if sampler is None else sampler


def dataset_named(name: str, datasets: Any) -> Any:
    """One of the evaluation datasets of a Trainer."""
    if not isinstance(datasets, dict) or name not in datasets:
        known = list(datasets) if isinstance(datasets, dict) else "no named datasets"
        raise UnknownDatasetError(f"no evaluation dataset named {name!r}; the Trainer has {known}")
    return datasets[name]


def in_order(dataset: Any) -> IndexSampler:
    """A sampler that yields every index once, in the order of the data."""
    return IndexSampler(partial(Order, len(dataset), 0, shuffle=False))


# -- the batches of this process


def is_sharded(core: "Core", loader: Any) -> bool:
    """Whether a loader yields different batches in each process: ours do, those that were prepared for it, those
    with a DistributedSampler, and those that shard themselves, or whose sampler or iterable dataset does."""
    if core.mesh.is_single or core.backend.loaders.is_own(loader):
        return True
    divided = _divided_part(core, loader)
    if divided is None:
        return core.mesh.num_batches == 1
    _check_own_division(core, divided, "the data loader")
    return True


def _divided_part(core: "Core", loader: Any) -> Any:
    """The part of a loader of the user's that divides the data by rank; None if none does."""
    samplers = samplers_of(loader)
    if is_prepared(loader):
        return loader
    for sampler in samplers:
        if hasattr(sampler, "num_replicas"):
            return sampler
    for part in (loader, *samplers):
        if shards_itself(part, depth=0):
            return part
    dataset = getattr(loader, "dataset", None)
    is_sharded_model = dataset is not None and core.backend.loaders.is_iterable(dataset) and shards_itself(dataset)
    return dataset if is_sharded_model else None


def length_of(core: "Core", loader: Any) -> int | None:
    """How many batches of a loader belong to this process, according to its length; None if it has none."""
    if not has_length(loader):
        return None
    return len(loader) if is_sharded(core, loader) else -(-len(loader) // core.mesh.num_batches)


def length_for_all(core: "Core", loader: Any) -> int | None:
    """The same, but of the process that has the most: all processes plan the same steps. A collective if the loader was
    prepared for several processes by somebody else."""
    batches = length_of(core, loader)
    if batches is None or core.mesh.is_single or not is_prepared(loader):
        return batches
    return int(max(row[0] for row in core.processes.all_gather((batches,))))


def local_batches(core: "Core", loader: Any) -> Iterator[Any]:
    """The batches of a loader that belong to this process. If the loader is not sharded, so that every process has the
    same batches, the processes take them in turn."""
    iterate, processes = core.backend.loaders.iterate, core.processes
    _place_collator(core)  # a loader of the user's may have it
    if is_prepared(loader) and hasattr(loader.batch_sampler, "even_batches"):
        loader.batch_sampler.even_batches = False  # no sample is repeated: the loops here need no even batches
    if is_sharded(core, loader):
        return iterate(loader)
    # A collective: the loader may draw its order from the RNGs, and all processes must see the same batches.
    streams = processes.broadcast_object(randomness.get_state(core.backend))
    if core.mesh.batch_index == 0:
        batches = iterate(loader)
    else:
        batches = with_rng_state(streams, core.backend, lambda: iterate(loader))
    return every_nth(batches, core.mesh.num_batches, core.mesh.batch_index)


# -- columns


def _is_hub_dataset(dataset: Any) -> bool:
    """Whether this is a datasets.Dataset, without importing the package."""
    return any(base.__module__.startswith("datasets.") and base.__name__ == "Dataset" for base in type(dataset).__mro__)


def _log_dropped_columns(where: str, names: list[str]) -> None:
    logger.info(
        "%s: dropping columns not used by model.forward: %s. Set remove_unused_columns=False to keep them.",
        where,
        ", ".join(sorted(map(str, names))),
    )


def _columns(core: "Core", dataset: Any, where: str) -> tuple[Any, Any]:
    """The dataset and the collator, without unused columns: by the methods of a subclass, if it has its own."""
    trainer, framework = core.trainer, core.backend.NAME
    description = next((each for each, name in ARGUMENT_OF.items() if name == where), where)
    if _is_hub_dataset(dataset):
        if not is_overridden(trainer, "_remove_unused_columns"):
            return select_columns(core, dataset, where)
        dataset = trainer._remove_unused_columns(dataset, description=description)
        length, signature = trainer.args.length_column_name, trainer._signature_columns
        collate = collators.for_framework(trainer.data_collator, framework)
        if _needs_lengths(trainer.args) and signature and length not in signature:
            collate = ColumnFilter(collate, set(dataset.column_names) - {length})
        return dataset, collate
    if not is_overridden(trainer, "_get_collator_with_removed_columns"):
        return select_columns(core, dataset, where)
    collate = trainer._get_collator_with_removed_columns(trainer.data_collator, description=description)
    return dataset, collators.for_framework(collate, framework)


def select_columns(core: "Core", dataset: Any, where: str) -> tuple[Any, Any]:
    """The dataset and the collator, without the columns that model.forward does not accept."""
    trainer = core.trainer
    collate = collators.for_framework(trainer.data_collator, core.backend.NAME)
    if not trainer.args.remove_unused_columns:
        return dataset, collate
    trainer._set_signature_columns_if_needed()
    if trainer._signature_columns is None:
        return dataset, collate
    keep = set(trainer._signature_columns)
    if _is_hub_dataset(dataset):
        return _select_hub_columns(core, dataset, where, keep, collate)
    if core.behaviour.collator_sees_all_columns:
        return dataset, collate
    tells = core.mesh.is_main and core.run.events.is_first_report(where, id(dataset))
    return dataset, ColumnFilter(collate, keep, partial(_log_dropped_columns, where) if tells else None)


def _select_hub_columns(core: "Core", dataset: Any, where: str, keep: set[str], collate: Any) -> tuple[Any, Any]:
    args = core.trainer.args
    length = args.length_column_name
    if _needs_lengths(args):
        keep = keep | {length}
    dropped = [name for name in dataset.column_names if name not in keep]
    if len(dropped) == len(dataset.column_names):
        raise DataError(
            f"{where} has the columns {dataset.column_names}, but model.forward accepts none of them; it "
            f"accepts {sorted(keep)}. Rename the columns (dataset.rename_column), tokenize the text first, or "
            "set remove_unused_columns=False and pass a data_collator that creates the model's inputs."
        )
    unknown = [name for name in dropped if name != length]
    if unknown and core.mesh.is_main and core.run.events.is_first_report(where, tuple(unknown)):
        _log_dropped_columns(where, unknown)
    if length in dataset.column_names and _needs_lengths(args):
        # Needed for grouping, but not by the model: dropped when the batch is created.
        return dataset.remove_columns(unknown), ColumnFilter(collate, keep - {length})
    return dataset.remove_columns(dropped), collate
