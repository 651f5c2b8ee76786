"""Mixtures: the proportions hold everywhere, no position costs more than another, and processes agree on the order."""

from collections import Counter
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oneloop import Mixture
from oneloop.data import interleaving
from oneloop.data.interleaving import Interleaving
from oneloop.data.mixture import source_lookup, training_data
from oneloop.data.order import BatchSampler
from oneloop.errors import ArgumentError, DataError
from tests.backends.support import rows

weights_of_all = st.lists(st.one_of(st.integers(1, 200), st.floats(0.01, 1.0)), min_size=1, max_size=9)


@pytest.fixture(autouse=True, scope="module")
def short_blocks():
    """So that a few hundred positions have many borders."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interleaving, "BLOCK", 8)
        yield


def shares(weights):
    return [Fraction(str(weight)) / sum(Fraction(str(each)) for each in weights) for weight in weights]


def plan_of(*pieces):
    return Interleaving([(start, [Fraction(str(weight)) for weight in weights]) for start, weights in pieces])


# -- proportions


@given(weights_of_all, st.sampled_from([0, 1, 10**6 + 7, 10**9, 10**12 + 1]), st.integers(1, 400))
@settings(max_examples=60, deadline=None)
def test_counts_in_any_prefix_are_within_one_of_their_proportion(weights, start, count):
    plan = plan_of((0, weights))
    sources, numbers = plan.at(np.arange(start, start + count))
    counts = plan.counts(start)
    for place, (source, number) in enumerate(zip(sources, numbers), start + 1):
        assert number == counts[source]
        counts[source] += 1
        for found, share in zip(counts, shares(weights)):
            assert abs(found - share * place) < 1
    assert counts == plan.counts(start + count)


@given(weights_of_all, st.integers(0, 10**12), st.data())
@settings(max_examples=40, deadline=None)
def test_counts_in_any_window_are_within_two(weights, start, data):
    plan = plan_of((0, weights))
    length = data.draw(st.integers(1, 500))
    sources, _ = plan.at(np.arange(start, start + length))
    for source, share in enumerate(shares(weights)):
        assert abs(int((sources == source).sum()) - share * length) < 2


@given(
    st.lists(st.lists(st.integers(0, 30), min_size=4, max_size=4).filter(any), min_size=1, max_size=5),
    st.lists(st.sampled_from([1, 2, 5, 40, 300]), min_size=5, max_size=5),
)
@settings(max_examples=60, deadline=None)
def test_weights_that_change(pieces, lengths):
    """Each piece has its own proportions, and what was rounded at a change is made up for."""
    starts = [sum(lengths[:i]) for i in range(len(pieces))]
    plan = plan_of(*zip(starts, pieces))
    end = starts[-1] + lengths[len(pieces) - 1]
    sources, numbers = plan.at(np.arange(end))
    counts, due = [0] * 4, [Fraction(0)] * 4
    for place in range(end):
        weights = pieces[max(i for i, start in enumerate(starts) if start <= place)]
        assert weights[sources[place]] > 0 and numbers[place] == counts[sources[place]]
        counts[sources[place]] += 1
        due = [d + share for d, share in zip(due, shares(weights))]
        assert all(abs(found - d) < 2 for found, d in zip(counts, due))


@given(weights_of_all, st.integers(0, 2000), st.data())
@settings(max_examples=40, deadline=None)
def test_the_position_of_a_sample_leads_back_to_it(weights, number, data):
    source = data.draw(st.integers(0, len(weights) - 1))
    plan = plan_of((0, weights))
    position = plan.position_of(source, number)
    assert [int(found[0]) for found in plan.at(np.array([position]))] == [source, number]


def test_positions_may_be_asked_for_in_any_order():
    plan = plan_of((0, [5, 3, 1]), (50, [1, 1, 1]))
    whole = np.stack(plan.at(np.arange(300)))
    order = np.random.RandomState(0).permutation(300)
    assert np.array_equal(np.stack(plan.at(order)), whole[:, order])


def test_the_order_is_part_of_the_format(monkeypatch):
    """Checkpoints rely on these very numbers."""
    monkeypatch.setattr(interleaving, "BLOCK", 4096)
    mixture = Mixture({"a": range(10), "b": range(5)}, [0.7, 0.3])
    order = mixture.orders(seed=42, samples_per_step=4)(0)
    assert order.take(0, 14).tolist() == [7, 4, 14, 3, 9, 11, 8, 6, 5, 13, 0, 2, 12, 1]


# -- the samples


def of_epochs(mixture, epochs, seed=3, **given):
    orders = mixture.orders(seed, samples_per_step=8, **given)
    return [[mixture.source_of(i) for i in orders(epoch).take(0, len(orders(epoch)))] for epoch in range(epochs)]


def test_no_sample_repeats_inside_a_pass_and_passes_differ():
    mixture = Mixture({"small": range(7), "large": range(50)}, {"small": 0.5, "large": 0.5}, stop="all_exhausted")
    found = of_epochs(mixture, 3)
    small = [place for epoch in found for name, place in epoch if name == "small"]
    passes = [small[i : i + 7] for i in range(0, len(small) - 6, 7)]
    assert len(passes) > 10 and all(sorted(each) == list(range(7)) for each in passes)
    assert len({tuple(each) for each in passes}) > 10
    assert {place for name, place in found[0] if name == "large"} == set(range(50))


def test_an_epoch_ends_before_the_first_dataset_repeats():
    mixture = Mixture([range(30), range(30)], [3, 1])
    (epoch,) = of_epochs(mixture, 1)
    counts = Counter(name for name, _ in epoch)
    assert counts["0"] == 30 and counts["1"] == 10 and len(set(epoch)) == len(epoch)


def test_a_dataset_that_was_not_exhausted_goes_on_in_the_next_epoch():
    mixture = Mixture([range(30), range(30)], [3, 1])
    found = of_epochs(mixture, 3)
    assert sorted(place for epoch in found for name, place in epoch if name == "1") == list(range(30))


def test_a_given_number_of_samples_and_no_shuffling():
    mixture = Mixture([range(3), range(3)], stop=8)
    assert of_epochs(mixture, 1, shuffle=False) == [[(name, i % 3) for i in range(4) for name in "01"]]


def test_weights_by_size_and_temperature():
    sizes = {"a": range(810), "b": range(10)}
    assert shares([float(w) for w in Mixture(sizes).schedule[0][1]]) == [Fraction(81, 82), Fraction(1, 82)]
    assert shares([float(w) for w in Mixture(sizes, temperature=2).schedule[0][1]]) == pytest.approx([0.9, 0.1])


def test_weights_by_name_may_be_in_any_order():
    by_name = Mixture({"a": range(9), "b": range(9)}, {"b": 0.25, "a": 0.75})
    assert by_name.schedule == Mixture([range(9), range(9)], [0.75, 0.25]).schedule


def test_counts_are_those_of_one_epoch():
    mixture = Mixture({"a": range(30), "b": range(12)}, [0.6, 0.4], stop=17)
    order = mixture.orders(seed=3, samples_per_step=4)(2)
    found = Counter(mixture.source_of(i)[0] for i in order.take(0, 11))
    assert order.counts(11) == found and order.counts(0) == {"a": 0, "b": 0}


def test_weights_by_size_are_those_of_the_packs():
    mixture = Mixture({"a": range(10), "b": range(10)})
    order = mixture.orders(seed=3, samples_per_step=4, packs=[6, 2])(0)
    assert len(order) == 8 and order.counts(8) == {"a": 6, "b": 2}


@pytest.mark.parametrize("epoch", [0, 3])
def test_the_datasets_of_the_rows_of_each_micro_batch(epoch, monkeypatch):
    monkeypatch.setattr("oneloop.data.mixture.AT_ONCE", 3)
    mixture = Mixture({"a": range(100), "b": range(33)}, [(0, [0.8, 0.2]), (3, [0.3, 0.7])], stop=43)
    for rank in (0, 1):
        sampler = BatchSampler(mixture.orders(1, samples_per_step=8), 4, 2, rank)
        found = source_lookup(mixture, SimpleNamespace(batch_sampler=sampler), (4, 2, rank))
        sampler.set_epoch(epoch)
        for number, batch in enumerate(sampler):
            names = [mixture.source_of(index)[0] for index in batch]
            assert [mixture.names[source] for source in found(epoch, number)] == names


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("epoch", [0, 10**7])
def test_the_same_batches_on_any_number_of_processes(world, epoch):
    mixture = Mixture({"a": range(100), "b": range(33)}, [(0, [0.8, 0.2]), (3, [0.3, 0.7])], stop=1000)
    orders = mixture.orders(1, samples_per_step=48)
    expected = orders(epoch).take(0, 960).reshape(-1, 48)
    of_rank = []
    for rank in range(world):
        sampler = BatchSampler(orders, 48 // world, world, rank)
        sampler.set_epoch(epoch)
        of_rank.append(list(sampler)[:20])
    for number, batch in enumerate(expected):
        assert [i for rank in range(world) for i in of_rank[rank][number]] == batch.tolist()


# -- with the Trainer, on every framework


class Seen:
    def __init__(self, samples):
        self.samples, self.asked = samples, []

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        self.asked.append(index)
        return self.samples[index]


def test_training_resumes_in_the_middle_of_a_mixture(backend, trained, tmp_path):
    def mixture():
        return Mixture({"a": rows(20), "b": rows(9, seed=1)}, [(0, [0.75, 0.25]), (4, [0.5, 0.5])], stop=48)

    given = {"per_device_train_batch_size": 4, "num_train_epochs": 2, "save_strategy": "steps", "save_steps": 5}
    given |= {"logging_steps": 1, "save_total_limit": None}
    whole = trained(backend.classifier(), mixture(), output_dir=tmp_path / "whole", **given)
    assert whole.state.global_step == 24
    checkpoint = str(tmp_path / "whole" / "checkpoint-15")
    again = trained(backend.classifier(), mixture(), output_dir=tmp_path / "again", resume=checkpoint, **given)
    for name, weight in backend.weights(whole.model).items():
        assert np.array_equal(weight, backend.weights(again.model)[name]), name


def test_each_dataset_is_read_in_its_proportion(backend, trained):
    parts = {"a": Seen(rows(40)), "b": Seen(rows(40, seed=1))}
    trained(backend.classifier(), Mixture(parts, [0.75, 0.25]), per_device_train_batch_size=4, max_steps=10)
    assert len(parts["a"].asked) == 30 and len(parts["b"].asked) == 10


def test_a_mixture_is_evaluated_dataset_by_dataset(backend, trained):
    mixture = Mixture({"a": rows(8), "b": rows(4, seed=1)})
    trainer = trained(backend.classifier(), rows(8), eval_dataset=mixture, max_steps=1)
    metrics = trainer.evaluate()
    assert metrics.keys() >= {"eval_a_loss", "eval_b_loss"}
    assert trainer.evaluate(mixture)["eval_b_loss"] == metrics["eval_b_loss"]


@pytest.mark.parametrize("given", [{"train_sampling_strategy": "group_by_length"}, {"data_order": "transformers"}])
def test_another_order_is_refused(backend, trained, given):
    if backend.name != "torch" and "data_order" in given:
        pytest.skip("refused for the framework before")
    with pytest.raises(DataError, match="cannot order a Mixture"):
        trained(backend.classifier(), Mixture([rows(8)]), max_steps=1, **given)


# -- a dict of datasets


def options(**given):
    return SimpleNamespace(
        **{"mixture_weights": None, "mixture_temperature": 1.0, "mixture_stop": "first_exhausted"} | given
    )


def test_a_dict_of_datasets_is_mixed_as_the_arguments_say():
    found = training_data({"a": range(9), "b": range(4)}, options(mixture_temperature=2.0, mixture_stop=7))
    assert [float(weight) for weight in found.schedule[0][1]] == [3.0, 2.0] and found.stop == 7
    for other in (None, [1, 2], {0: "a sample", 1: "another"}):
        assert training_data(other, options()) is other


def test_weights_for_something_else_are_refused():
    for other in ([1, 2], Mixture([range(3)])):
        with pytest.raises(ArgumentError, match="mixture_weights applies to a train_dataset that is a dict"):
            training_data(other, options(mixture_weights={"a": 1}))


def test_splits_of_a_dataset_are_not_mixed():
    datasets = pytest.importorskip("datasets")
    splits = datasets.DatasetDict(train=datasets.Dataset.from_dict({"x": [1]}))
    assert training_data(splits, options()) is splits


# -- what is wrong


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (([],), "at least one dataset"),
        ((iter([1]),), "expected a dict or a list"),
        (({"a": iter([1])},), "can be read only once"),
        (({"a": 5},), "which is not a dataset"),
        (([range(3), []],), "dataset '1' of the mixture is empty"),
        (([range(3)], [1, 2]), "2 of them for 1 datasets"),
        (({"a": range(3)}, {"b": 1}), "expected one for each of"),
        (([range(3)], ["x"]), "Invalid weight 'x'"),
        (([range(3)], [float("nan")]), "Invalid weight nan"),
        (([range(3)], [(1, [1])]), "expected 0 first"),
        (([range(3)], [(0, [1]), (0, [1])]), "expected 0 first"),
    ],
)
def test_bad_mixtures(given, message):
    with pytest.raises((ArgumentError, DataError), match=message):
        Mixture(*given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"stop": "never"}, "Invalid stop='never'"),
        ({"stop": 0}, "Invalid stop=0"),
        ({"temperature": 0}, "Invalid temperature=0"),
        ({"temperature": 2, "weights": [1]}, "temperature applies to weights by size"),
    ],
)
def test_bad_options(given, message):
    with pytest.raises(ArgumentError, match=message):
        Mixture([range(3)], **given)


@pytest.mark.parametrize(
    ("weights", "message"), [([0, 0], "not all of them 0"), ([-1, 2], ">= 0"), ([1, 1e-9], "less than 1e-06")]
)
def test_bad_weights(weights, message):
    with pytest.raises(ArgumentError, match=message):
        Mixture([range(3), range(3)], weights).orders(0, 8)


def test_a_dataset_that_never_ends_its_pass():
    mixture = Mixture([range(3), range(3)], [(0, [1, 1]), (1, [1, 0])], stop="all_exhausted")
    with pytest.raises(ArgumentError, match=r"\['1'\] are never exhausted"):
        mixture.orders(0, samples_per_step=2)
