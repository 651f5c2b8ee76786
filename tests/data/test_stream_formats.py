"""Formats of streams that are recognised by name: how they are divided, where they begin, and their states."""

import pytest

from oneloop import Mixture
from oneloop.data import streams


class Stream:
    """As a stream of another library: `called` has what it was told."""

    def __init__(self):
        self.called = []

    def __iter__(self):
        return iter(())

    def __getattr__(self, name):
        if name not in ("set_epoch", "reset_state_dict", "set_batch_size", "set_num_workers", "state_dict"):
            raise AttributeError(name)
        return lambda *given: self.called.append((name, *given)) or {"given": given}


MDS = type("StreamingDataset", (Stream,), {"__module__": "streaming.base"})
Lit = type("StreamingDataset", (Stream,), {"__module__": "litdata.streaming"})
Pipeline = type("DataPipeline", (Stream,), {"__module__": "webdataset.pipeline"})
Shuffle = type("detshuffle", (), {"__module__": "webdataset.filters", "epoch": -1})
Plain = type("Mapper", (), {"__module__": "webdataset.filters", "epoch": -1})


def pipeline(*stages):
    made = Pipeline()
    made.pipeline = list(stages)
    return made


@pytest.mark.parametrize("size", [7, 8, 1])
def test_the_samples_of_a_process_of_a_map_style_dataset(size):
    parts = [streams.EveryNth(range(size), rank, 3) for rank in range(3)]
    found = [[part[i] for i in range(len(part))] for part in parts]
    assert found == [list(range(rank, size, 3)) for rank in range(3)]


def test_what_counts_epochs_by_itself_is_told_of_them():
    stages = [Shuffle(), Plain(), Shuffle()]
    other, own = MDS(), Lit()
    for dataset in (pipeline(*stages), other, own):
        streams.begin_epoch(dataset, 3)
    assert [stage.epoch for stage in stages] == [2, -1, 2]  # it adds one when it begins
    assert other.next_epoch == 3 and own.called == [("reset_state_dict",), ("set_epoch", 3)]


def test_parts_of_a_mixture_are_told_of_epochs():
    first, second = Shuffle(), Shuffle()
    streams.begin_epoch(Mixture({"a": pipeline(first), "b": pipeline(second)}, [1, 1]), 5)
    assert (first.epoch, second.epoch) == (4, 4)


def test_states_that_are_counted():
    """MDS counts the samples of all processes, litdata those of one."""
    other, own = MDS(), Lit()
    assert streams.counted_state(other, 10, batch_size=2, workers=3, num_shards=4) == {"given": (40, True)}
    assert streams.counted_state(own, 10, batch_size=2, workers=3, num_shards=4) == {"given": (10, 3, 2)}
    streams.prepare(own, 2, 3)
    streams.prepare(other, 2, 3)
    assert own.called[1:] == [("set_batch_size", 2), ("set_num_workers", 3)] and len(other.called) == 1


def test_a_part_that_divides_itself_stays_as_it_is():
    own, listed = Lit(), list(range(6))
    mixture = streams.local_shards(Mixture({"own": own, "listed": listed}, [1, 1]), 1, 2)
    assert mixture.datasets["own"] is own and len(mixture.datasets["listed"]) == 3
    assert [streams.shards_natively(each) for each in (own, MDS(), pipeline(), listed)] == [True, True, False, None]
