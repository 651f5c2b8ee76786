"""Data sets of mindspore.dataset as training and evaluation data: single samples, and batches of their own."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mindspore")

import mindspore.dataset as ds

from oneloop import Trainer
from oneloop.backends._common import mindspore_datasets
from oneloop.errors import ArgumentError, DataError
from tests.backends.kits.mindspore_kit import Kit
from tests.backends.support import rows, same_bytes
from tests.emulation import emulate

kit = Kit()
RUN = {"learning_rate": 0.1, "optim": "sgd", "logging_steps": 1}


def pipeline(count=12, seed=0, shuffle=False, extra=False):
    data = rows(count, seed)
    columns = {"x": np.stack([row["x"] for row in data]), "labels": np.array([row["labels"] for row in data])}
    if extra:
        columns["row"] = np.arange(count)
    return ds.NumpySlicesDataset(columns, shuffle=shuffle)


def losses(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_single_samples_are_batched_by_the_arguments(trained):
    plain, piped = kit.classifier(), kit.classifier()
    options = RUN | {"num_train_epochs": 2, "per_device_train_batch_size": 4}
    first = trained(plain, rows(12), train_sampling_strategy="sequential", **options)
    second = trained(piped, pipeline(), eval_dataset=pipeline(5, 1), **options)
    assert second.state.global_step == 6 and losses(first) == losses(second)
    assert same_bytes(kit.weights(plain), kit.weights(piped))
    assert second.evaluate()["eval_loss"] == Trainer(piped, first.args).evaluate(rows(5, 1))["eval_loss"]


def test_batches_of_its_own_pass_through(trained):
    plain, piped = kit.classifier(), kit.classifier()
    options = RUN | {"num_train_epochs": 2}
    first = trained(plain, rows(10), train_sampling_strategy="sequential", per_device_train_batch_size=4, **options)
    evaluated = pipeline(7, 1).batch(3)
    second = trained(
        piped, pipeline(10).batch(4), eval_dataset=evaluated, compute_metrics=lambda p: {"rows": len(p.label_ids)},
        per_device_train_batch_size=1, per_device_eval_batch_size=1, **options,
    )  # fmt: skip
    assert second.state.global_step == 6 and losses(first) == losses(second)
    assert same_bytes(kit.weights(plain), kit.weights(piped))
    metrics = second.evaluate()
    assert metrics["eval_rows"] == 7
    assert metrics["eval_loss"] == pytest.approx(Trainer(piped, first.args).evaluate(rows(7, 1))["eval_loss"], rel=1e-6)


@pytest.mark.parametrize("what", ["train", "eval"])
def test_batches_of_batches_are_an_error_that_says_why(arguments, what):
    args = arguments(per_device_train_batch_size=8, per_device_eval_batch_size=8)
    data = pipeline().batch(4).map(lambda x: x, ["x"])
    trainer = Trainer(kit.classifier(), args, train_dataset=data, eval_dataset=data)
    with pytest.raises(DataError, match=r"already batched .* 4 samples .* is 8: .* to 1"):
        trainer.train() if what == "train" else trainer.evaluate()


def test_columns_that_construct_does_not_take_are_left_out(trained, caplog):
    for data, size in ((pipeline(extra=True), 4), (pipeline(extra=True).batch(4), 1)):
        caplog.clear()
        caplog.set_level("INFO")
        trained(kit.classifier(), data, max_steps=2, per_device_train_batch_size=size, **RUN)
        assert "dropping columns not used by model.forward: row" in caplog.text


def test_each_epoch_is_shuffled_anew_and_a_resume_goes_on_in_it(trained, tmp_path):
    options = RUN | {"max_steps": 8, "per_device_train_batch_size": 3, "save_strategy": "steps", "save_steps": 5}
    orders = []

    class Looks(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            orders[-1].append(inputs["x"].asnumpy()[:, 0].tolist())
            return super().training_step(model, inputs, num_items_in_batch)

    orders.append([])
    whole = kit.classifier()
    first = trained(whole, pipeline(12, shuffle=True), Looks, **options)
    epochs = [sum(orders[0][:4], []), sum(orders[0][4:], [])]
    assert epochs[0] != epochs[1] and sorted(epochs[0]) == sorted(epochs[1])
    orders.append([])
    part = kit.classifier(seed=9)
    checkpoint = str(tmp_path / "out" / "checkpoint-5")
    second = trained(part, pipeline(12, shuffle=True), Looks, resume=checkpoint, **options)
    assert orders[1] == orders[0][5:], "the rest of the epoch, in its order"
    assert losses(second) == losses(first) and same_bytes(kit.weights(whole), kit.weights(part))


def test_an_iterator_is_not_a_data_set(arguments):
    with pytest.raises(DataError, match="which yields batches"):
        Trainer(kit.classifier(), arguments(), train_dataset=pipeline().create_dict_iterator())


def test_workers_are_the_pipelines_own(trained, caplog):
    trained(kit.classifier(), pipeline(), max_steps=1, dataloader_num_workers=2, **RUN)
    assert "dataloader_num_workers=2 is ignored" in caplog.text


@pytest.fixture
def as_mindnlp(monkeypatch):
    emulate(monkeypatch, {"mindnlp"})
    mindspore_datasets._warn_batch_size_ignored.cache_clear()


def test_a_script_for_mindnlp_keeps_the_batches_of_its_data(trained, as_mindnlp, caplog):
    alone, among = kit.classifier(), kit.classifier()
    first = trained(alone, pipeline(10).batch(4), num_train_epochs=2, per_device_train_batch_size=1, **RUN)
    options = {"per_device_train_batch_size": 8, "per_device_eval_batch_size": 3, "num_train_epochs": 2}
    second = trained(among, pipeline(10).batch(4), eval_dataset=pipeline(7, 1).batch(3), **RUN, **options)
    assert second.state.global_step == 6 and losses(first) == losses(second)
    assert same_bytes(kit.weights(alone), kit.weights(among))
    second.evaluate()
    said = [record.getMessage() for record in caplog.records if "is ignored" in record.getMessage()]
    assert said == ["The dataset creates batches of 4 itself; the batch size in the arguments, 8, is ignored."]


def test_samples_are_counted_by_the_batches_of_the_data(trained):
    trainer = trained(kit.classifier(), pipeline(12).batch(4), max_steps=3, per_device_train_batch_size=1, **RUN)
    lines = (Path(trainer.args.output_dir) / "log.jsonl").read_text().splitlines()
    logged = [entry for entry in map(json.loads, lines) if "samples_per_second" in entry]
    assert len(logged) == 3
    for entry in logged:
        assert entry["samples_per_second"] / entry["steps_per_second"] == pytest.approx(4, rel=0.01)


class Negative:
    """As a BaseMapFunction of MindNLP: it says which columns it reads and makes."""

    def __init__(self, input_columns, output_columns):
        self.input_columns, self.output_columns = input_columns, output_columns

    def __call__(self, given):
        return -given


def named(count, seed=0):
    return pipeline(count, seed).rename(["x"], ["given"])


def test_map_fn_maps_the_data_before_they_are_batched(arguments):
    args = arguments(max_steps=3, per_device_train_batch_size=4, **RUN)
    plain, mapped, third = kit.classifier(), kit.classifier(), kit.classifier()
    before = pipeline(12).map(lambda x: -x, ["x"])
    first = Trainer(plain, args, train_dataset=before, eval_dataset=pipeline(5, 1).map(lambda x: -x, ["x"]))
    first.train()
    second = Trainer(
        mapped, args, train_dataset=named(12), eval_dataset={"raw": named(5, 1), "done": pipeline(5, 1)},
        map_fn=Negative("given", "x"),
    )  # fmt: skip
    second.train()
    Trainer(third, args, Negative(["given"], ["x"]), named(12)).train()  # MindNLP's order
    assert same_bytes(kit.weights(plain), kit.weights(mapped)) and same_bytes(kit.weights(plain), kit.weights(third))
    metrics = second.evaluate()
    assert metrics["eval_raw_loss"] == first.evaluate()["eval_loss"]
    assert metrics["eval_done_loss"] != metrics["eval_raw_loss"]


def test_map_fn_is_left_aside_by_data_that_make_batches(trained, arguments, caplog):
    args = arguments(max_steps=1, per_device_train_batch_size=1, **RUN)
    Trainer(kit.classifier(), args, train_dataset=pipeline().batch(4), map_fn=Negative("given", "x")).train()
    assert "Ignoring map_fn" in caplog.text


@pytest.mark.parametrize(
    ("data", "function", "error", "words"),
    [
        (rows(4), Negative("given", "x"), ArgumentError, "requires a mindspore.dataset dataset, but .* is a list"),
        (named(4), lambda x: x, ArgumentError, "map_fn is a function; expected .* input_columns"),
        (
            pipeline(4),
            Negative("given", "x"),
            DataError,
            r"needs the columns \['given'\], but train_dataset has only .*x",
        ),
    ],
)
def test_map_fn_that_does_not_fit(arguments, data, function, error, words):
    with pytest.raises(error, match=words):
        Trainer(kit.classifier(), arguments(), train_dataset=data, map_fn=function)
