"""Mixtures of streams: the proportions of map-style data, each stream in its own order, continued from any state."""

import json
from collections import Counter

import pytest

from oneloop import Mixture
from oneloop.backends import loading
from oneloop.data.mixture import source_lookup
from oneloop.data.process_sharding import ProcessShard
from tests.backends.support import rows


class Lines:
    """A stream that knows its place."""

    def __init__(self, name, size):
        self.name, self.size = name, size
        self.epoch = self.place = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        while self.place < self.size:
            self.place += 1
            yield self.name, self.epoch, self.place - 1
        self.place = 0

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


class Forgetful:
    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        return iter(self.samples)


def mixture(stop="first_exhausted", weights=(3, 1), sizes=(30, 20)):
    return Mixture({"a": Lines("a", sizes[0]), "b": Lines("b", sizes[1])}, list(weights), stop=stop)


def test_proportions_and_order_are_those_of_the_interleaving():
    found = list(mixture())
    indexed = Mixture({"a": range(30), "b": range(20)}, [3, 1])
    expected = [indexed.source_of(i) for i in indexed.orders(0, 1, shuffle=False)(0).take(0, 40)]
    assert [(name, place) for name, _, place in found] == expected
    counts = Counter(name for name, _, _ in found[:20])
    assert counts == {"a": 15, "b": 5}


def test_an_epoch_ends_with_the_first_stream_that_has_no_next_sample():
    assert Counter(name for name, _, _ in mixture())["a"] == 30


def test_streams_are_repeated_until_all_have_ended():
    found = list(mixture("all_exhausted", (1, 1), (5, 12)))
    passes = Counter(epoch for name, epoch, _ in found if name == "a")
    assert {place for name, _, place in found if name == "b"} == set(range(12))
    assert list(passes.values())[:2] == [5, 5] and len(passes) == 3


def test_a_number_of_samples_and_epochs_of_their_own():
    data = mixture(7)
    assert len(list(data)) == 7
    data.set_epoch(4)
    assert {epoch for _, epoch, _ in data} == {4}


@pytest.mark.parametrize("stop", ["first_exhausted", "all_exhausted", 100])
@pytest.mark.parametrize("place", [1, 17, 33])
def test_a_state_continues_with_the_next_sample(stop, place):
    data, again = mixture(stop), mixture(stop)
    samples = iter(data)
    for _ in range(place):
        next(samples)
    state = json.loads(json.dumps(data.state_dict()))
    rest = list(samples)
    again.load_state_dict(state)
    assert list(again) == rest and rest


@pytest.mark.parametrize("place", [18, 20])
def test_a_state_at_the_end_of_a_stream_and_after_it(place):
    data, again = (mixture("all_exhausted", (1, 1), (9, 12)) for _ in range(2))
    samples = iter(data)
    assert [name for name, _, _ in (next(samples) for _ in range(place))].count("a") == place / 2
    again.load_state_dict(data.state_dict())
    assert list(again) == list(samples)


def test_a_stream_without_state_leaves_the_mixture_without_one():
    data = Mixture({"a": Lines("a", 5), "b": Forgetful(range(5))}, [1, 1])
    assert data.state_dict() is None and data.without_state == ["b"]


def test_map_style_datasets_are_shuffled_anew_in_each_pass():
    data = Mixture({"a": Lines("a", 100), "b": list(range(6))}, [1, 1])
    data.prepare(seed=3, samples_per_step=4)
    found = [sample for sample in data if not isinstance(sample, tuple)]
    assert len(found) == 100 or data.stop == "first_exhausted"
    repeated = Mixture({"a": Lines("a", 100), "b": list(range(6))}, [1, 1], stop=24)
    repeated.prepare(seed=3, samples_per_step=4)
    found = [sample for sample in repeated if not isinstance(sample, tuple)]
    assert sorted(found[:6]) == sorted(found[6:]) == list(range(6)) and found[:6] != found[6:]


def test_map_style_datasets_have_orders_of_their_own():
    parts = {"a": Lines("a", 100)} | {name: [(name, i) for i in range(12)] for name in "bc"}
    data = Mixture(parts, [1, 1, 1], stop=36)
    data.prepare(seed=3, samples_per_step=4)
    found = {name: [sample[1] for sample in data if sample[0] == name] for name in "bc"}
    assert sorted(found["b"]) == sorted(found["c"]) == list(range(12)) and found["b"] != found["c"]


def test_weights_change_by_the_step():
    data = Mixture({"a": Lines("a", 99), "b": Lines("b", 99)}, [(0, [1, 0]), (2, [0, 1])], stop=16)
    data.prepare(seed=0, samples_per_step=4)
    assert [name for name, _, _ in data] == ["a"] * 8 + ["b"] * 8


@pytest.mark.parametrize("rank", [0, 1])
def test_the_datasets_of_the_samples_of_each_process(backend, rank):
    names = [name for name, _, _ in ProcessShard(mixture(40, (7, 4)), 4, 2, rank, False, 0, loading.load(backend.name))]
    found = source_lookup(mixture(40, (7, 4)), None, (4, 2, rank))
    assert ["ab"[source] for number in range(5) for source in found(1, number)] == names


def test_a_mixture_of_other_datasets_has_the_seed_and_the_weights_of_the_first():
    def parts():
        return {"a": Lines("a", 99), "b": [("b", i) for i in range(20)]}

    data = Mixture(parts(), [(0, [1, 0]), (2, [1, 1])], stop=30)
    data.prepare(seed=7, samples_per_step=4)
    assert list(data.replaced(parts())) == list(data)


def test_training_resumes_in_the_middle_and_logs_each_dataset(backend, trained, tmp_path):
    class Samples(Lines):
        def __iter__(self):
            for _, _, place in super().__iter__():
                yield data[place]

    data = rows(40)

    def both():
        return Mixture({"a": Samples("a", 40), "b": rows(9, seed=1)}, [2, 1], stop=1000)

    given = {"per_device_train_batch_size": 4, "max_steps": 8, "save_strategy": "steps", "save_steps": 3}
    given |= {"logging_steps": 4, "save_total_limit": None}
    whole = trained(backend.classifier(), both(), output_dir=tmp_path / "whole", **given)
    checkpoint = str(tmp_path / "whole" / "checkpoint-6")
    again = trained(backend.classifier(), both(), output_dir=tmp_path / "again", resume=checkpoint, **given)
    left, right = backend.weights(whole.model), backend.weights(again.model)
    assert all(left[name].tobytes() == right[name].tobytes() for name in left)
    entries = [[e for e in each.state.log_history if "loss" in e] for each in (whole, again)]
    assert entries[0] == entries[1] and entries[0][-1]["num_samples/a"] in (21, 22)
    assert {"loss/a", "loss/b"} <= entries[0][0].keys()
