"""Process-sharded iterable data and the random streams: all processes walk alike, and each trains with its own."""

import json
import random

import numpy as np
import pytest

from oneloop import randomness
from oneloop.backends import loading
from oneloop.data.process_sharding import ProcessShard
from tests.backends.support import kit_module

BATCH, SAMPLES = 2, 11


class Drawing:
    """Samples that are numbers from all three streams, of data that keeps its place."""

    def __init__(self, draw):
        self.draw, self.given = draw, 0

    def __iter__(self):
        while self.given < SAMPLES:
            self.given += 1
            yield self.draw()
        self.given = 0

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given = state["given"]


@pytest.fixture
def draw(backend):
    """draw(): one number from each of the streams of Python, NumPy and the framework."""
    of_framework = kit_module(backend.name).Job().draw
    kept = randomness.get_state(loading.load(backend.name))
    yield lambda: (random.random(), np.random.normal(), of_framework())
    randomness.set_state(loading.load(backend.name), kept)


@pytest.fixture
def dealt(backend, draw):
    """dealt(rank): the data of this process, of two."""
    return lambda rank: ProcessShard(Drawing(draw), BATCH, 2, rank, False, 5, loading.load(backend.name))


def test_a_process_draws_as_if_nothing_was_walked_through(dealt, draw):
    for rank in (0, 1):
        randomness.set_seed(rank)
        undisturbed = [draw() for _ in range(6)]
        randomness.set_seed(rank)
        drawn = []
        for place, _ in enumerate(dealt(rank)):
            if place % BATCH == BATCH - 1:
                drawn.append(draw())
        assert drawn + [draw() for _ in range(6 - len(drawn))] == undisturbed


def test_all_processes_walk_alike(dealt):
    parts = []
    for rank in (0, 1):
        randomness.set_seed(rank)
        parts.append(list(dealt(rank)))
    whole = []
    for place in range(0, 6, BATCH):
        whole += parts[0][place : place + BATCH] + parts[1][place : place + BATCH]
    randomness.set_seed(7)
    source = dealt(0)
    source.batch_size, source.shard_count = SAMPLES, 1
    assert list(source) == whole and len(set(whole)) == SAMPLES


def test_a_walk_goes_on_from_its_state(dealt, draw):
    for rank in (0, 1):
        randomness.set_seed(rank)
        first, samples = dealt(rank), []
        for place, sample in enumerate(first):
            samples.append(sample)
            if place == BATCH - 1:
                draw()
                state = json.loads(json.dumps(first.state_dict()))
        randomness.set_seed(99)
        again = dealt(rank)
        again.load_state_dict(state)
        assert list(again) == samples[BATCH:]
        first.set_epoch(1)
        again.set_epoch(1)
        assert list(again) == list(first) != samples, "the state is that of one epoch"


def shard(backend, rank, source=range(7), **given):
    return ProcessShard(source, BATCH, 2, rank, given.pop("drop_last", False), 5, loading.load(backend.name), **given)


def test_the_last_samples(backend):
    """Divided evenly, dropped, or filled with the first ones."""
    assert [list(shard(backend, rank)) for rank in (0, 1)] == [[0, 1, 4, 5], [2, 3, 6]]
    assert [list(shard(backend, rank, drop_last=True)) for rank in (0, 1)] == [[0, 1], [2, 3]]
    assert [list(shard(backend, rank, fills=True)) for rank in (0, 1)] == [[0, 1, 4, 5], [2, 3, 6, 0]]
    assert [shard(backend, 0, drop_last=drops).known for drops in (False, True)] == [(2, 7), (1, 7)]


def test_a_state_of_one_process_is_that_of_its_source(backend):
    source = Drawing(lambda: 0)
    shard(backend, 1, source).load_state_dict({"given": 6})
    assert source.given == 6
