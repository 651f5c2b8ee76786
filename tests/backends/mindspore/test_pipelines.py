"""Data sets of mindspore.dataset as training and evaluation data: single samples, and batches of their own."""

import numpy as np
import pytest

pytest.importorskip("mindspore")

import mindspore.dataset as ds

from oneloop import Trainer
from oneloop.errors import DataError
from tests.backends_support import rows, same_bytes
from tests.kits.mindspore_kit import Kit

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
        trained(kit.classifier(), data, max_steps=2, per_device_train_batch_size=size, **RUN)
        assert "does not take the columns row" in caplog.text


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
    with pytest.raises(DataError, match="makes batches"):
        Trainer(kit.classifier(), arguments(), train_dataset=pipeline().create_dict_iterator())


def test_workers_are_the_pipelines_own(trained, caplog):
    trained(kit.classifier(), pipeline(), max_steps=1, dataloader_num_workers=2, **RUN)
    assert "dataloader_num_workers=2 is left aside" in caplog.text
