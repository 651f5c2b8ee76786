"""trace_steps=: what is recorded of a step, that training is none the wiser, and files that were changed."""

import contextlib
import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from oneloop import Trainer, TrainerCallback, TrainingArguments
from oneloop.backends import loading
from oneloop.backends._common.tracing import BLOCK, fold, sampled, spread_of
from oneloop.errors import ArgumentError, CheckpointError, UnsupportedError
from oneloop.formats import digests, trace_file
from oneloop.formats.digests import Axis
from oneloop.trainer.trace_collector import Entry, Key, read_entries
from oneloop.trainer.trace_records import merge_records, piece_of
from tests.backends.support import kit_module, rows, same_bytes


def recorded(trainer, step):
    return trace_file.read(trace_file.path_of(Path(trainer.args.output_dir), step), digests.VERSION)


def by_key(trace):
    return {record.key: record for record in trace.records}


@pytest.fixture
def traced(backend, trained, tmp_path):
    def train(name="out", **given):
        options = {"max_steps": 3, "per_device_train_batch_size": 8, "trace_steps": "0-1"} | given
        model = options.pop("model", None) or backend.classifier(dropout=0.2, norm=True)
        return trained(model, rows(24), output_dir=tmp_path / name, **options)

    return train


def test_a_recorded_step_has_everything_and_changes_nothing(backend, traced, tmp_path):
    """Weights, running means, random numbers, logs and events of a recorded run are those of any other."""
    seen = []

    class Counts(TrainerCallback):
        def on_substep_end(self, args, state, control, **kwargs):
            seen.append(state.global_step)

    both = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4, "logging_steps": 1}
    plain = traced("plain", trace_steps="", callbacks=[Counts()], **both)
    before, seen[:] = list(seen), []
    trainer = traced(callbacks=[Counts()], **both)
    assert same_bytes(backend.weights(trainer.model), backend.weights(plain.model))
    assert seen == before, "callbacks are called as often"
    losses = [[entry["loss"] for entry in one.state.log_history if "loss" in entry] for one in (plain, trainer)]
    assert losses[0] == losses[1]
    assert not (tmp_path / "plain" / "trace").exists()
    assert trace_file.steps_in(tmp_path / "out") == [0, 1]
    trace = recorded(trainer, 1)
    assert (trace.step, trace.framework, trace.has_rounding) == (1, backend.name, True)
    assert len(trace.samples) == 8 and set(trace.columns) == {"x", "labels"}
    kinds = {record.kind for record in trace.records}
    assert kinds == set(trace_file.KINDS), "of every kind"
    found = by_key(trace)
    weight, bias = [record for record in trace.records if record.kind == "weight"][:2]
    for kind in ("gradient", "clipped", "update"):
        assert found[(kind, weight.name, "", 0)].shape == weight.shape
    for word in ("exp_avg", "exp_avg_sq"):
        assert found[("state", bias.name, word, 0)].norm > 0
    events = [json.loads(line) for line in (tmp_path / "out" / "run.jsonl").read_text().splitlines()]
    assert [event["path"] for event in events if event["event"] == "traced"] == [
        "trace/step-000000.json",
        "trace/step-000001.json",
    ]


def test_numbers_of_a_record_are_those_of_the_tensor(backend, traced):
    model = backend.classifier(norm=True)
    start = backend.weights(model)
    trainer = traced(model=model, max_steps=1, trace_steps="0", learning_rate=1e-2)
    end = backend.weights(trainer.model)
    layout = {name: place for name, place in _layout(trainer).items() if place.axes != "-"}
    found = by_key(recorded(trainer, 0))
    checked = 0
    for name, place in layout.items():
        for kind, array in (("weight", start[name]), ("update", end[name] - start[name])):
            record = found.get((kind, place.name, "", 0))
            if record is None:  # running means
                continue
            axes = digests.weight_axes(place.axes, array.shape, [0] * array.ndim, array.shape)
            factors = digests.weights_of(axes, None)
            matrix = array.astype(np.float64).reshape(factors.shape)
            expected = np.einsum("ak,ab,bk->k", factors.left, matrix, factors.right)
            scale = np.linalg.norm(matrix) or 1.0
            assert record.norm == pytest.approx(np.linalg.norm(matrix), rel=1e-5)
            assert record.largest == pytest.approx(np.abs(matrix).max(), rel=1e-5)
            np.testing.assert_allclose(record.projections, expected, atol=2e-6 * scale)
            checked += 1
    assert checked >= 8


def _layout(trainer):
    return loading.of_model(trainer.model).framework_layout.layout(trainer.model)


def test_micro_batches_and_their_order_do_not_matter(backend, traced):
    """Activations and gradients of the same samples have the same projections, up to rounding, however they are
    accumulated."""
    whole = recorded(traced("whole", model=backend.classifier(), trace_steps="0"), 0)
    parts = recorded(
        traced(
            "parts",
            model=backend.classifier(),
            trace_steps="0",
            per_device_train_batch_size=2,
            gradient_accumulation_steps=4,
        ),
        0,
    )
    assert sorted(whole.samples) == sorted(parts.samples) and whole.columns == parts.columns
    other = by_key(parts)
    assert whole.settings["micro_batches"] == 1 and parts.settings["micro_batches"] == 4
    for record in whole.records:
        if record.kind in ("output", "output_gradient", "input_gradient", "gradient") and record.name != "(loss)":
            twin = other[record.key]
            if record.has_samples or record.kind == "gradient":
                assert twin.shape == record.shape
                assert twin.norm == pytest.approx(record.norm, rel=1e-4)
                np.testing.assert_allclose(twin.projections, record.projections, atol=2e-5 * max(record.norm, 1e-8))


def test_values_that_are_not_finite_are_counted_and_left_out(backend):
    tracing = loading.load(backend.name).tracing
    array = np.array([[1.0, np.nan, 2.0], [-np.inf, 0.5, np.inf]], np.float32)
    factors = digests.weights_of([Axis("a", 2), Axis("b", 3)], None)
    (row,) = tracing.read([tracing.digest(backend.tensor(array), factors)])
    finite = np.where(np.isfinite(array), array, 0.0)
    assert (row[digests.BAD], row[digests.LARGEST]) == (3, 2.0)
    assert row[digests.NORM] == pytest.approx(np.linalg.norm(finite))
    expected = np.einsum("ak,ab,bk->k", factors.left, finite, factors.right)
    np.testing.assert_allclose(row[digests.FIRST : digests.COLUMN_SUM], expected, rtol=1e-5, atol=1e-6)
    assert row[digests.COLUMN_SUM] == pytest.approx(float(finite.sum(0) @ factors.right[:, 0]), rel=1e-5)
    (alone,) = tracing.read([tracing.digest(backend.tensor(array), factors, only_projections=True)])
    np.testing.assert_allclose(alone[digests.FIRST :], row[digests.FIRST :], rtol=1e-6)
    (empty,) = tracing.read(
        [tracing.digest(backend.tensor(array[:0]), digests.weights_of([Axis("a", 0), Axis("b", 3)], None))]
    )
    assert len(empty) == digests.SIZE and not empty.any()


@pytest.mark.parametrize("size", [24, 23])
def test_a_fingerprint_depends_on_every_bit_and_place(backend, size):
    tracing = loading.load(backend.name).tracing
    array = np.random.default_rng(0).standard_normal(size).astype(np.float32)

    def of(values):
        return np.asarray(tracing.fingerprint(backend.tensor(values)).tolist()).tolist()

    seen = {tuple(of(array))}
    for place in range(size):
        for bit in (0, 12, 31):
            other = array.copy()
            other.view(np.int32)[place] ^= np.int32(-(2**31)) if bit == 31 else np.int32(1 << bit)
            seen.add(tuple(of(other)))
    assert len(seen) == 1 + 3 * size and of(array) in map(list, seen)
    for one, two in ((0, 1), (2, 3), (1, size - 1)):
        other = array.copy()
        other[[one, two]] = other[[two, one]]
        assert of(other) != of(array), f"{one} and {two} have changed places"


def test_values_that_change_places_between_blocks():
    def of(words):
        return fold(words, lambda part: part.astype(np.int64), np.arange)

    words = np.arange(2 * BLOCK + 8, dtype=np.int32)
    other = words.copy()
    other[[5, 5 + BLOCK]] = other[[5 + BLOCK, 5]]
    with np.errstate(over="ignore"):
        assert all(one != two for one, two in zip(of(words), of(other), strict=True))
        assert of(words[:0]) == [0, 0]


def test_the_spread_of_a_large_update_is_estimated_from_a_part():
    random = np.random.default_rng(0)
    update, gradient = (random.standard_normal((3000, 1000)) for _ in range(2))
    share = 0.1 / (np.abs(gradient) + 0.1)
    assert len(sampled(gradient)) < 1 << 18
    assert spread_of(update, sampled(gradient), 0.1) == pytest.approx(np.linalg.norm(2 * update * share), rel=0.01)
    small = slice(0, 30)
    exact = np.linalg.norm((2 * update * share)[small])
    assert spread_of(update[small], gradient[small].reshape(-1), 0.1) == pytest.approx(exact, rel=1e-9)


def test_a_parameter_without_axes_is_recorded(backend, arguments):
    """Such as the temperature of CLIP."""
    model = backend.classifier()
    layer = next(each for name, each in _layers(model) if name and getattr(each, "weight", None) is not None)
    layer.temperature, name = _scalar(backend), "construct" if hasattr(layer, "construct") else "forward"
    before = getattr(layer, name)
    setattr(layer, name, lambda x: before(x) * layer.temperature)
    given = {"max_steps": 2, "trace_steps": "0-1", "verify_steps": 1, "per_device_train_batch_size": 8}
    trainer = Trainer(model, arguments(**given), train_dataset=rows(24))
    trainer.train()
    found = [each for each in recorded(trainer, 1).records if each.name.endswith("temperature")]
    assert {"weight", "gradient", "clipped", "update"} <= {each.kind for each in found}
    assert all(each.shape == [] and each.norm > 0 for each in found)


def _scalar(backend):
    if backend.name == "torch":
        import torch

        return torch.nn.Parameter(torch.ones(()))
    if backend.name == "paddle":
        import paddle

        return paddle.create_parameter([], "float32", default_initializer=paddle.nn.initializer.Constant(1.0))
    import mindspore

    return mindspore.Parameter(mindspore.Tensor(1.0, mindspore.float32), name="temperature")


def _layers(model):
    named = getattr(model, "named_modules", None) or getattr(model, "cells_and_names", None)
    return list(named()) if named else [("", model), *model.named_sublayers()]


def test_other_steps_have_no_hooks(backend, traced, monkeypatch):
    """Layers are watched in a recorded step only, and in each of its passes."""
    tracing, watched, attached = loading.load(backend.name).tracing, [], []
    watch = tracing.watch

    def counted(*given):
        remove = watch(*given)
        attached.append(1)
        return lambda: (attached.pop(), remove())

    class Seen(TrainerCallback):
        def on_substep_end(self, args, state, control, **kwargs):
            watched.append((state.global_step, len(attached)))

        def on_step_end(self, args, state, control, **kwargs):
            watched.append((state.global_step, len(attached)))

    monkeypatch.setattr(tracing, "watch", counted)
    options = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "callbacks": [Seen()]}
    traced(max_steps=3, trace_steps="1", **options)
    assert watched == [(0, 0), (1, 0), (1, 1), (2, 0), (2, 0), (3, 0)]
    watched.clear()
    traced("verified", max_steps=3, trace_steps="", verify_steps=2, **options)
    assert watched == [(0, 0), (1, 0), (1, 1), (2, 0), (2, 0), (3, 0)]


def test_a_run_that_fails_in_a_recorded_step_leaves_no_hooks(backend, traced, monkeypatch):
    tracing, attached = loading.load(backend.name).tracing, []
    watch = tracing.watch

    def counted(*given):
        remove = watch(*given)
        attached.append(1)
        return lambda: (attached.pop(), remove())

    class Fails(TrainerCallback):
        def on_substep_end(self, args, state, control, **kwargs):
            assert attached
            raise RuntimeError("between two micro-batches")

    monkeypatch.setattr(tracing, "watch", counted)
    for name, given in (("traced", {"trace_steps": "0"}), ("verified", {"trace_steps": "", "verify_steps": 1})):
        with pytest.raises(RuntimeError, match="between two micro-batches"):
            traced(name, per_device_train_batch_size=4, gradient_accumulation_steps=2, callbacks=[Fails()], **given)
        assert not attached, name


def test_a_recording_that_cannot_be_written_is_told(backend, traced, tmp_path, caplog):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "trace").write_text("a file where the folder has to be")
    trainer = traced(max_steps=2, trace_steps="0")
    assert trainer.state.global_step == 2 and "Cannot write the recording of step 0" in caplog.text


def test_rounding_is_carried_over_steps_that_follow_each_other(backend, traced, tmp_path):
    """What the weights have of it after a step that was not recorded is not known, nor does it add to the noise."""

    def of(name, steps):
        trace = recorded(traced(name, model=backend.classifier(), trace_steps=steps, learning_rate=0.1), 2)
        return {record.key: record.rounding for record in trace.records}

    every, gap, last = of("all", "0-2"), of("gap", "0,2"), of("last", "2")
    weights = [key for key in every if key[0] == "weight"]
    before = {each.key: each.rounding for each in trace_file.read(trace_file.path_of(tmp_path / "all", 1), 1).records}
    for key in weights:
        assert every[key] == pytest.approx(math.hypot(before[key], before[("update", *key[1:])]), rel=1e-6), key
    assert all(every[key] for key in weights) and not any(gap[key] for key in weights)
    assert gap == last and every != last


@pytest.fixture
def records_of(trained, tmp_path):
    """The records of a step of a torch model."""

    def train(model):
        options = {"max_steps": 1, "per_device_train_batch_size": 8, "trace_steps": "0", "output_dir": tmp_path / "out"}
        return by_key(recorded(trained(model, rows(8), **options), 0))

    return train


@pytest.mark.parametrize("again", [False, True], ids=["checkpoint", "reentrant"])
def test_layers_that_are_computed_again_for_the_backward_pass_are_recorded_once(records_of, again):
    """Gradient checkpointing changes neither the records nor their numbers; inputs in tuples are recorded, too."""
    import torch
    from torch.utils.checkpoint import checkpoint

    class Sum(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(16, 16)

        def forward(self, both):
            return self.layer(both[0]).tanh() + both[1]

    class Model(torch.nn.Module):
        def __init__(self, again):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.sum, self.again = torch.nn.Linear(len(rows(1)[0]["x"]), 16), Sum(), again

        def forward(self, x, labels):
            hidden = self.first(x)
            both = hidden.tanh(), hidden.sin()
            if self.again is None:
                logits = self.sum(both)
            else:
                logits = checkpoint(lambda *both: self.sum(both), *both, use_reentrant=self.again)
            return {"loss": torch.nn.functional.cross_entropy(logits, labels)}

    one, other = records_of(Model(None)), records_of(Model(again))
    assert {("input", "sum", "0.0", 0), ("input_gradient", "sum", "0.1", 0), ("output", "sum.layer", "0", 0)} <= set(
        one
    )
    assert set(one) == set(other)
    for key, record in one.items():
        assert (other[key].shape, other[key].projections) == (record.shape, record.projections), key


def test_the_rounding_of_an_output_that_only_its_layer_uses_is_measured(records_of):
    """As attention returns its weights."""
    import torch

    class Attention(torch.nn.Module):
        def forward(self, x):
            weights = x.softmax(-1)
            return weights @ x.t(), weights

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.attention = torch.nn.Linear(len(rows(1)[0]["x"]), 8), Attention()

        def forward(self, x, labels):
            return {"loss": torch.nn.functional.cross_entropy(self.attention(self.first(x))[0], labels)}

    found = records_of(Model())
    for item in "01":
        record = found["output_gradient", "attention", item, 0]
        assert record.norm > 1e-3 and 1e-9 < record.rounding < 1e-4 * record.norm, record


def test_calls_are_told_apart_where_a_layer_raises_an_exception(records_of):
    import torch

    class Raises(torch.nn.Module):
        def forward(self, x):
            raise ValueError("not this time")

    class Tries(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.inner, self.calls = torch.nn.Linear(5, 5), Raises(), 0

        def forward(self, x):
            self.calls += 1
            with contextlib.suppress(ValueError):
                x = x if self.calls % 2 else self.inner(x)
            return self.layer(x).sin()

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.tries = torch.nn.Linear(len(rows(1)[0]["x"]), 5), Tries()

        def forward(self, x, labels):
            return {"loss": torch.nn.functional.cross_entropy(self.tries(self.tries(self.first(x))), labels)}

    found = records_of(Model())
    assert [key[3] for key in found if key[:2] == ("output", "tries")] == [0, 1]
    assert [key[3] for key in found if key[:2] == ("output_gradient", "tries")] == [1, 0]


def test_values_that_are_not_finite_are_counted_whatever_the_scale_of_a_gradient():
    row = np.arange(digests.SIZE, dtype=np.float64)
    collector = SimpleNamespace(entries={"key": Entry("", "float32", (), [(row, 1 / 1024), (row, 1.0)])})
    (found,) = read_entries(SimpleNamespace(read=np.stack), [collector])
    assert [each[digests.BAD] for each in found["key"]] == [row[digests.BAD]] * 2
    assert [each[digests.FIRST] for each in found["key"]] == [row[digests.FIRST] / 1024, row[digests.FIRST]]


def test_equal_shares_of_a_gradient_add_up_to_it():
    """Of processes with the same batch, whose gradients are averaged: each has half of the whole, or another part."""
    row = np.array([3.0, 2.0, 1.0, *range(1, 9), 5.0])

    def of(*rows):
        entry = Entry("Linear", "float32", (Axis("a", 6),), is_of_batch=True, is_averaged=True)
        pieces = [
            piece_of(Key("output_gradient", "x"), entry, (0, replica), [each], [[each * 1.01]], None, 0.0)
            for replica, each in enumerate(rows)
        ]
        (record,) = merge_records([[piece] for piece in pieces])
        return record

    whole = of(row, row)
    assert (whole.norm, whole.bad, whole.projections) == (6.0, 1, [2.0 * number for number in range(1, 9)])
    assert of(row, -row).norm == pytest.approx(math.hypot(3.0, 3.0)) and of(row, -row).projections == [0.0] * 8


def test_a_mean_that_differs_between_micro_batches_or_processes_is_known_as_one():
    """Such as the loss: it is compared as a mean only if it is the same for all."""
    row, entry = np.arange(12.0), Entry("Model", "float32", ())

    def of(*processes):
        key = Key("output", "", "loss")
        (record,) = merge_records([[piece_of(key, entry, (0, 0), rows, [], None, 0.0)] for rows in processes])
        return record

    assert of([row, row], [row]).replicas == 0.0
    assert of([row, 2 * row]).replicas == of([row], [2 * row]).replicas == 10.0
    assert of([row], [2 * row]).projections == (1.5 * row[3:11]).tolist(), "the mean of both"
    key = Key("output", "", "loss")
    every = [[piece_of(key, entry, (0, 0), [one], [[1.1 * one]], None, 0.0)] for one in (row, 2 * row)]
    (record,) = merge_records(every)
    assert record.rounding == pytest.approx(0.15 * np.sqrt(np.mean(row[3:11] ** 2))), "and of what the noise has moved"


def test_weights_that_are_not_contiguous_have_noise():
    import torch

    tracing = loading.load("torch").tracing
    before = torch.full((4, 6), 2.0).t()
    target = before.clone(memory_format=torch.preserve_format)
    assert not target.is_contiguous()
    noise = torch.linspace(-1, 1, 32), torch.ones(32)
    tracing.write_noisy(target, before, noise, 1e-2, 0.5)
    expected = (2.5 + 2e-2 * noise[0][:24]).view(6, 4)
    torch.testing.assert_close(target, expected)


# -- digests


def test_projections_of_shards_add_up():
    random = np.random.default_rng(0)
    array = random.standard_normal((6, 5, 4))
    whole = _projections(array, [Axis("a", 6), Axis("b", 5), Axis("c", 4)])
    parts = [
        _projections(array[rows, :, cols], [Axis("a", rows.stop - rows.start, rows.start, 6), Axis("b", 5),
                                            Axis("c", cols.stop - cols.start, cols.start, 4)])
        for rows in (slice(0, 2), slice(2, 6))
        for cols in (slice(0, 3), slice(3, 4))
    ]  # fmt: skip
    np.testing.assert_allclose(sum(parts), whole, rtol=1e-6)
    turned = _projections(array.transpose(2, 0, 1), [Axis("c", 4), Axis("a", 6), Axis("b", 5)])
    np.testing.assert_allclose(turned, whole, rtol=1e-6)
    assert np.abs(_projections(array, [Axis("b", 6), Axis("a", 5), Axis("c", 4)]) - whole).max() > 0.1


def _projections(array, axes):
    factors = digests.weights_of(axes, None)
    return np.einsum("ak,ab,bk->k", factors.left, array.reshape(factors.shape), factors.right)


def test_the_factors_are_fixed():
    """Recordings of different versions are compared: other factors need another digests.VERSION."""
    assert digests.VERSION == 1
    np.testing.assert_allclose(digests.factors("weight.o", 3, 1)[0, :3], FIXED, atol=1e-6)
    np.testing.assert_array_equal(digests.factors("x", 2, 3), digests.factors("x", 0, 5)[2:])
    every = digests.factors("features", 0, 4096)
    assert abs(every.mean()) < 0.05 and abs(every.var() - 1) < 0.05
    assert np.abs(np.corrcoef(every.T) - np.eye(8)).max() < 0.08


FIXED = [-1.6969267, 1.3111161, 1.6197011]


def test_samples_and_positions_in_one_axis():
    assert [axis.role for axis in digests.activation_axes((4, 7, 3), 4)] == ["samples", "activation.0", "features"]
    assert [axis.role for axis in digests.activation_axes((7, 4, 3), 4)] == ["activation.0", "samples", "features"]
    flat = digests.activation_axes((28, 3), 4)
    assert [(axis.role, axis.count) for axis in flat] == [("samples", 4), ("activation.0", 7), ("features", 3)]
    assert [axis.role for axis in digests.activation_axes((7, 3), 4)] == ["activation.0", "features"]
    assert digests.activation_axes((), 4) == ()


def test_contents_of_samples_whatever_their_types():
    ids = np.arange(6).reshape(3, 2)
    one, columns = digests.hash_rows([("ids", ids.astype(np.int32)), ("x", np.ones((3, 1), np.float64))], 3)
    two, others = digests.hash_rows([("ids", ids), ("x", np.ones((3, 1), np.float32))], 3)
    assert one.tolist() == two.tolist() and columns == others and len(set(one.tolist())) == 3
    turned, same = digests.hash_rows([("ids", ids[::-1]), ("x", np.ones((3, 1)))], 3)
    assert turned.tolist() == one.tolist()[::-1] and same == columns, "columns do not depend on the order"
    other, changed = digests.hash_rows([("ids", ids + (ids == 5)), ("x", np.ones((3, 1)))], 3)
    assert other.tolist()[:2] == one.tolist()[:2] and other[2] != one[2] and changed["ids"] != columns["ids"]


# -- files


@pytest.fixture(scope="module")
def a_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traced")
    args = TrainingArguments(
        str(folder), trace_steps="0", report_to="none", save_strategy="no", max_steps=1, device="cpu", disable_tqdm=True
    )
    Trainer(kit_module("torch").Kit().classifier(), args, train_dataset=rows(24)).train()
    return trace_file.path_of(folder, 0)


def test_files_that_were_cut_off_or_changed(a_file, tmp_path):
    content = a_file.read_bytes()
    target = tmp_path / "trace" / "step-000000.json"
    target.parent.mkdir()

    def read(data, name=None):
        path = target if name is None else target.with_name(name)
        path.write_bytes(data)
        return trace_file.read(path, digests.VERSION)

    assert read(content).step == 0
    for cut in (0, 1, len(content) // 2, len(content) - 1):
        with pytest.raises(CheckpointError, match="checksum|cannot be read"):
            read(content[:cut])
    with pytest.raises(CheckpointError, match="checksum"):
        read(content.replace(b'"bad":0', b'"bad":1', 1))
    with pytest.raises(CheckpointError, match="renamed"):
        read(content, "step-000001.json")
    data = json.loads(content.splitlines()[0])
    for change, message in HOSTILE:
        wrong = json.loads(json.dumps(data))
        change(wrong)
        body = json.dumps(wrong).encode()
        with pytest.raises(CheckpointError, match=message):
            read(body + b"\n" + trace_file._checksum(body) + b"\n")
    with pytest.raises(CheckpointError, match="other random factors"):
        trace_file.read(a_file, digests.VERSION + 1)


def _set(path, value):
    def change(data):
        *parents, last = path
        for key in parents:
            data = data[key]
        data[last] = value

    return change


HOSTILE = [
    (_set(["version"], 99), "version 99"),
    (_set(["records", 0, "norm"], float("nan")), "norm"),
    (_set(["records", 0, "projections"], [1.0]), "projections"),
    (_set(["records", 0, "projections", 2], float("inf")), "projections"),
    (_set(["records", 0, "kind"], "other"), "kind"),
    (_set(["records", 0, "rounding"], -1), "rounding"),
    (_set(["records", 0, "shape"], [-1]), "shape"),
    (_set(["records", 0, "name"], "x" * 1000), "name"),
    (_set(["records", 0, "extra"], 1), "unknown field"),
    (_set(["step"], "0"), "step"),
    (_set(["samples"], ["zz"]), "samples"),
    (lambda data: data["records"].append(data["records"][0]), "twice"),
    (lambda data: data.pop("records"), "no records"),
]


# -- arguments


@pytest.mark.parametrize("value", ["a", "3-1", "-1", "1-", True, 1.5, "0-20000"])
def test_steps_that_are_none(arguments, value):
    with pytest.raises(ArgumentError, match="trace_steps"):
        arguments(trace_steps=value)


def test_what_cannot_be_recorded(arguments):
    model = kit_module("torch").Kit().classifier()
    with pytest.raises(UnsupportedError, match="torch_compile"):
        Trainer(model, arguments(trace_steps="0", torch_compile=True), train_dataset=rows(8))


def test_a_step_that_never_comes_is_told(traced, caplog):
    traced(max_steps=1, trace_steps="7")
    assert "nothing was recorded" in caplog.text


def test_an_override_is_not_called_twice_unless_it_is_named(backend, trained, tmp_path):
    calls = []

    class Own(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            calls.append(1)
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    options = {"max_steps": 1, "per_device_train_batch_size": 8, "trace_steps": "0", "trainer_class": Own}
    trainer = trained(backend.classifier(), rows(24), output_dir=tmp_path / "one", **options)
    once = len(calls)
    assert not recorded(trainer, 0).has_rounding
    trainer = trained(
        backend.classifier(), rows(24), output_dir=tmp_path / "two", replay_overrides="compute_loss", **options
    )
    assert len(calls) == once * 4 and recorded(trainer, 0).has_rounding


def test_layers_are_watched_until_the_hooks_are_removed(backend, arguments):
    trainer, seen = Trainer(backend.classifier(), arguments(), eval_dataset=rows(4)), []
    tracing = loading.of_model(trainer.model).tracing
    if tracing is None:
        pytest.skip("no hooks on this framework")
    remove = tracing.watch(
        trainer.model,
        lambda name, layer, args, kwargs: seen.append(("before", name)),
        lambda name, layer, output: seen.append(("after", name)),
    )
    trainer.evaluate()
    assert seen[0] == ("before", "") and seen[-1] == ("after", "") and len(seen) > 2
    assert sorted(name for when, name in seen if when == "before") == sorted(
        name for when, name in seen if when == "after"
    )
    remove()
    seen.clear()
    trainer.evaluate()
    assert seen == []
