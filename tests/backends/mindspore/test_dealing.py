"""Pipelines of mindspore.dataset on several processes."""

import numpy as np
import pytest

from oneloop.backends import loading
from oneloop.data.loader_options import LoaderOptions
from oneloop.data.process_sharding import ProcessShard
from oneloop.errors import DataError
from tests.backends.support import names

if "mindspore" not in names():
    pytest.skip("MindSpore is not installed", allow_module_level=True)


class Numbers:
    def __len__(self):
        return 11

    def __getitem__(self, index):
        return (np.int64(index),)


def pipeline(**options):
    import mindspore.dataset as ds

    return ds.GeneratorDataset(Numbers(), ["x"], shuffle=False, **options)


def loader(dataset, rank, batch_size=2, world=2):
    backend = loading.load("mindspore")
    dealt = ProcessShard(dataset, batch_size, world, rank, False, 0, backend)
    collate = lambda samples: [int(sample["x"]) for sample in samples]  # noqa: E731
    return backend.loaders.make_loader(dealt, LoaderOptions(collate, batch_size=batch_size))


def test_each_sample_goes_to_one_process():
    first, second = loader(pipeline(), 0), loader(pipeline(), 1)
    assert list(first) == [[0, 1], [4, 5], [8, 9]]
    assert list(second) == [[2, 3], [6, 7], [10]]
    assert len(first) == len(second) == 3


def test_all_processes_shuffle_alike():
    seen = []
    for rank in (0, 1):
        made = loader(pipeline().shuffle(11), rank)
        loading.load("mindspore").loaders.reseed_generator(made.dataset, 5)
        seen += [number for batch in made for number in batch]
    assert sorted(seen) == list(range(11))


def test_a_pipeline_with_num_shards_deals_itself_out():
    assert list(loader(pipeline(num_shards=2, shard_id=1), 1)) == [[1, 3], [5, 7], [9, 0]]


def test_batches_of_a_pipeline_cannot_be_dealt_out():
    with pytest.raises(DataError, match="cannot be sharded over 2 processes. Shard it with num_shards"):
        loader(pipeline().batch(2), 0, batch_size=1)
    own = loader(pipeline(num_shards=2, shard_id=0).batch(2), 0, batch_size=1)
    assert len(own) == 3
