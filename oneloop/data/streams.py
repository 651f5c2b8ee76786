"""Formats of streams that oneloop knows: which part each process reads, and where a stream is.

Classes are recognised by name, without importing the packages:

- `datasets`: shards are files; state_dict says where a stream is, except for a shuffle buffer.
- WebDataset: shards are tar files, divided by a stage of the pipeline; a pipeline has no state.
- torchdata.nodes.Loader: a state, no shards.
- MosaicML's StreamingDataset (MDS) and litdata's: each process reads its part by itself, and the state is computed from
  the number of samples, so it is known while workers read.
"""

import copy
import logging
from typing import Any

from ..errors import DataError, a_type
from .iterable import Source, has_shuffle_buffer, is_streamed
from .stream_mixture import StreamMixture, is_map_style

logger = logging.getLogger(__name__)

_SINGLE, _SPLIT = "single_node_only", "split_by_node"  # stages of WebDataset


def _is_a(dataset: Any, package: str, *names: str) -> bool:
    return any(
        base.__module__.partition(".")[0] == package and (not names or base.__name__ in names)
        for base in type(dataset).__mro__
    )


def is_pipeline(dataset: Any) -> bool:
    """Whether this is a pipeline of WebDataset."""
    return _is_a(dataset, "webdataset", "DataPipeline")


def is_mds(dataset: Any) -> bool:
    return _is_a(dataset, "streaming", "StreamingDataset")


def is_litdata(dataset: Any) -> bool:
    return _is_a(dataset, "litdata", "StreamingDataset")


def shards_natively(dataset: Any) -> bool | None:
    """Whether a known format gives each process its own samples without our help; None for other data."""
    if is_mds(dataset) or is_litdata(dataset):
        return True
    if is_pipeline(dataset):
        return _SPLIT in _stages(dataset)
    if isinstance(dataset, StreamMixture):
        return False
    return None


def keeps_state_across_epochs(stream: Any) -> bool:
    """Whether a stream with a state needs it at the start of an epoch too: a user's may keep anything in it, such as a
    generator. Known formats, and ours, begin each epoch anew."""
    source = stream.source if isinstance(stream, Source) else stream
    known = is_streamed(source) or counts_samples(source) or _is_a(source, "torchdata") or _is_a(source, "oneloop")
    return not known and not hasattr(source, "batch_sampler")


def has_partial_state(loader: Any) -> bool:
    """Whether the state of a loader does not say all of its position. That of a StatefulDataLoader of torchdata has
    neither the random numbers of its workers nor, once its data has been reset, which of them have ended."""
    return _is_a(loader, "torchdata", "StatefulDataLoader") and bool(getattr(loader, "num_workers", 0))


def _stages(pipeline: Any) -> list[str]:
    return [getattr(stage, "__name__", type(stage).__name__) for stage in pipeline.pipeline]


# -- the part of a process


class EveryNth:
    """The samples of one process of a map-style dataset in a mixture of streams."""

    def __init__(self, dataset: Any, shard_id: int, num_shards: int) -> None:
        self.dataset, self.shard_id, self.num_shards = dataset, shard_id, num_shards

    def __len__(self) -> int:
        return len(range(self.shard_id, len(self.dataset), self.num_shards))

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index * self.num_shards + self.shard_id]


def local_shards(dataset: Any, shard_id: int, num_shards: int, where: str = "train_dataset") -> Any:
    """The shards of one process, for stream_sharding="shards"; a DataError for data without enough of them."""
    if isinstance(dataset, StreamMixture):
        parts = {
            name: part if shards_natively(part) else local_shards(part, shard_id, num_shards, f"{where}[{name!r}]")
            for name, part in dataset.datasets.items()
        }
        return dataset.replaced(parts)
    if is_map_style(dataset):
        return EveryNth(dataset, shard_id, num_shards)
    if is_pipeline(dataset):
        return _with_stage(dataset, _SPLIT, where)
    if not is_streamed(dataset):
        raise DataError(
            f"stream_sharding='shards' expects a stream of `datasets` or WebDataset, but {where} is a "
            f"{type(dataset).__name__}, whose shards are not known. Use stream_sharding='samples', or let the data "
            "divide itself and say so: class attribute shards_itself = True."
        )
    if dataset.num_shards % num_shards:
        raise DataError(
            f"stream_sharding='shards' expects a number of shards that {num_shards} processes can divide, but {where} "
            f"has {dataset.num_shards}. Write the data into more files, or use stream_sharding='samples'."
        )
    from datasets.distributed import split_dataset_by_node

    return split_dataset_by_node(dataset, rank=shard_id, world_size=num_shards)


def unsharded(dataset: Any) -> Any:
    """The dataset as every process reads it completely, for stream_sharding="samples"."""
    if isinstance(dataset, StreamMixture):
        return dataset.replaced({name: unsharded(part) for name, part in dataset.datasets.items()})
    return _with_stage(dataset, None) if is_pipeline(dataset) else dataset


def _with_stage(pipeline: Any, name: str | None, where: str = "") -> Any:
    """A copy whose stage that raises an error on several processes is replaced, or left out if `name` is None."""
    made = copy.copy(pipeline)
    found = [i for i, stage in enumerate(_stages(pipeline)) if stage == _SINGLE]
    if name is None:
        made.pipeline = [stage for i, stage in enumerate(pipeline.pipeline) if i not in found]
        return made
    if not found:
        raise DataError(
            f"stream_sharding='shards', but the pipeline {where} has no stage that divides shards by process. Add "
            "webdataset.split_by_node after the list of shards, or use stream_sharding='samples'."
        )
    import webdataset

    made.pipeline = list(pipeline.pipeline)
    made.pipeline[found[0]] = getattr(webdataset, name)
    return made


def prepare(dataset: Any, batch_size: int, workers: int) -> None:
    """Configure a stream with how it is read, if its position depends on it: litdata divides what is left of an epoch
    anew if a state is of another batch size or number of workers."""
    if is_litdata(dataset):
        dataset.set_batch_size(batch_size)
        dataset.set_num_workers(workers)


# -- the position


def begin_epoch(dataset: Any, epoch: int) -> None:
    """Set the epoch of streams that count epochs themselves: a resumed run does not begin with the first."""
    if is_mds(dataset):
        dataset.next_epoch = epoch
    elif is_litdata(dataset):
        dataset.reset_state_dict()  # with one, it ignores the epoch
        dataset.set_epoch(epoch)
    elif is_pipeline(dataset):
        for stage in dataset.pipeline:
            if _is_a(stage, "webdataset", "detshuffle", "ResampledShards"):
                stage.epoch = epoch - 1
    elif isinstance(dataset, StreamMixture):
        for part in dataset.datasets.values():
            begin_epoch(part, epoch)
    elif hasattr(dataset, "source"):
        begin_epoch(dataset.source, epoch)


def counts_samples(dataset: Any) -> bool:
    """Whether its state is computed from the number of samples."""
    return is_mds(dataset) or is_litdata(dataset)


def counted_state(dataset: Any, samples: int, batch_size: int, workers: int, num_shards: int) -> dict[str, Any]:
    """The state after this process has had so many samples of the epoch."""
    if is_mds(dataset):
        return dataset.state_dict(samples * num_shards, True)
    return dataset.state_dict(samples, workers, batch_size)


# -- what a format cannot do, before the first step


def check(dataset: Any, where: str) -> None:
    """Raise DataError for a stream that cannot be trained on."""
    if _is_a(dataset, "torchdata", "BaseNode"):
        raise DataError(
            f"{where} is {a_type(dataset)}, a node of torchdata, which ends with its first epoch. Pass "
            "torchdata.nodes.Loader(node)."
        )
    if isinstance(dataset, StreamMixture):
        for name, part in dataset.datasets.items():
            check(part, f"{where}[{name!r}]")
            if counts_samples(part):
                raise DataError(
                    f"{where}[{name!r}] is {a_type(part)}, which counts the samples of all its readers and "
                    "cannot be interleaved by oneloop. Use the mixing of its own library."
                )


def unseeded_stages(dataset: Any) -> list[str]:
    """The stages of a pipeline whose order is another one in each process and each run."""
    if isinstance(dataset, StreamMixture):
        return [stage for part in dataset.datasets.values() for stage in unseeded_stages(part)]
    if not is_pipeline(dataset):
        return []
    found = []
    for stage in dataset.pipeline:
        options = getattr(stage, "kw", {})
        function = getattr(getattr(stage, "f", None), "__name__", "")
        if function == "_shuffle" and options.get("seed") is None and options.get("rng") is None:
            found.append("shuffle")
        if _is_a(stage, "webdataset", "ResampledShards") and not getattr(stage, "deterministic", False):
            found.append("resampled")
    return found


def samplers_with_generator(dataset: Any, depth: int = 8) -> list[str]:
    """The samplers in nodes of torchdata that draw the order of each epoch from a generator: the state of a node does
    not have it, so a later epoch is another one after a resume."""
    if not depth or not _is_a(dataset, "torchdata"):
        return []
    sampler = getattr(dataset, "sampler", None)
    found = [] if sampler is None or hasattr(sampler, "set_epoch") else [sampler]
    names = [type(each).__name__ for each in found if "generator" in getattr(each, "__dict__", {})]
    held = [value for value in vars(dataset).values() if _is_a(value, "torchdata")]
    names += [name for part in held for name in samplers_with_generator(part, depth - 1)]
    return list(dict.fromkeys(names))


def seeds(dataset: Any) -> list[Any]:
    """The seeds of the stages of a pipeline."""
    if isinstance(dataset, StreamMixture):
        return [seeds(part) for part in dataset.datasets.values()]
    if not is_pipeline(dataset):
        return []
    found = [getattr(stage, "kw", {}).get("seed", getattr(stage, "seed", None)) for stage in dataset.pipeline]
    return [str(seed) for seed in found if seed is not None]


def why_not_seekable(dataset: Any, workers: int) -> str | None:
    """Why a resumed run has to read a stream again up to its position; None if it has not."""
    if counts_samples(dataset):
        return None
    if workers:
        return f"it is read by {workers} workers, whose positions are not known"
    if isinstance(dataset, StreamMixture):
        names = dataset.without_state
        return f"the position in {', '.join(map(repr, names))} cannot be stored" if names else None
    if has_shuffle_buffer(dataset):
        return "it is shuffled through a buffer, which is not stored"
    if not all(callable(getattr(dataset, name, None)) for name in ("state_dict", "load_state_dict")):
        return "it has no state_dict and load_state_dict"
    return None


def properties(dataset: Any) -> dict[str, Any]:
    """What has to be the same in a resumed run."""
    found = seeds(dataset)
    return {"stream_seeds": found} if found else {}
