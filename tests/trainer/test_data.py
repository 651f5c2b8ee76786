"""Which data the Trainer takes, in which order it comes, and how long a run is."""

import logging

import numpy as np
import pytest

from oneloop import Trainer
from oneloop.data.order import Order
from oneloop.errors import ArgumentError, DataError
from tests.backends.support import rows, same_bytes, tagged

RUN = {"learning_rate": 0.1, "optim": "sgd", "per_device_train_batch_size": 4}
EPOCH = RUN | {"num_train_epochs": 1}


def seen_by(trainer_or_model, name="x"):
    """Patch a model's forward (MindSpore: construct) so that it keeps what it was given; the list it fills."""
    word = "construct" if hasattr(trainer_or_model, "construct") else "forward"
    seen, forward = [], getattr(trainer_or_model, word)

    def record(**inputs):
        seen.append(np.array(inputs[name]))
        return forward(**inputs)

    setattr(trainer_or_model, word, record)
    return seen


def indices_of(batches, data, name="x"):
    """Which samples of `data` the batches hold."""
    flat = [value for batch in batches for value in batch]
    return [next(i for i, row in enumerate(data) if np.array_equal(row[name], value)) for value in flat]


@pytest.fixture
def ordered(backend, arguments):
    """Train and return (indices of the samples in the order they came, sizes of the batches, trainer)."""

    def run(data, lookup=None, model=None, **given):
        model = model or backend.classifier()
        trainer = Trainer(model, arguments(remove_unused_columns=False, **given), train_dataset=data)
        seen = seen_by(model)
        trainer.train()
        return indices_of(seen, lookup or data), [len(batch) for batch in seen], trainer

    return run


def test_epochs_are_whole_and_differ(ordered):
    data = rows(10)
    indices, sizes, trainer = ordered(data, **(EPOCH | {"num_train_epochs": 2}))
    assert sizes == [4, 4, 2] * 2
    assert indices == Order(10, 42, 0)[:].tolist() + Order(10, 42, 1)[:].tolist()
    assert indices[:10] != indices[10:] and sorted(indices[:10]) == sorted(indices[10:]) == list(range(10))
    assert trainer.state.epoch == 2.0 and trainer.state.global_step == 6


@pytest.mark.parametrize(
    "given, steps, epoch",
    [
        ({"num_train_epochs": 0.5}, 2, 2 / 3),
        ({"num_train_epochs": 1.5}, 5, 5 / 3),
        ({"max_steps": 7}, 7, 7 / 3),
        ({"max_steps": 2, "num_train_epochs": 9}, 2, 2 / 3),
        ({"num_train_epochs": 1, "gradient_accumulation_steps": 2}, 2, 1.0),
        ({"max_steps": 3, "gradient_accumulation_steps": 2}, 3, 1 + 2 / 3),
        ({"num_train_epochs": 2, "dataloader_drop_last": True}, 4, 2.0),
    ],
)
@pytest.mark.once_on("mindspore")
def test_how_long_a_run_is(ordered, given, steps, epoch):
    indices, sizes, trainer = ordered(rows(10), **(RUN | given))
    assert trainer.state.global_step == trainer.state.max_steps == steps
    assert trainer.state.epoch == pytest.approx(epoch)
    if given.get("dataloader_drop_last"):
        assert sizes == [4] * 4


def test_the_rate_ends_where_the_fraction_of_an_epoch_ends(ordered):
    _, _, trainer = ordered(rows(10), logging_steps=1, **(RUN | {"num_train_epochs": 0.5}))
    rates = [e["learning_rate"] for e in trainer.state.log_history if "learning_rate" in e]
    assert rates == pytest.approx([0.1, 0.05])


def test_no_epoch_at_all_is_an_error(backend, arguments):
    with pytest.raises(ArgumentError, match="num_train_epochs"):
        Trainer(backend.classifier(), arguments(num_train_epochs=0), train_dataset=rows(4)).train()


class Mapped:
    """A data set of one's own: __len__ and __getitem__, nothing else."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]


class Batched(Mapped):
    """One that can hand over a batch at once, as datasets.Dataset can."""

    calls = 0

    def __getitem__(self, index):
        raise AssertionError("fetched row by row")

    def __getitems__(self, indices):
        self.calls += 1
        return [self.data[i] for i in indices]


@pytest.mark.parametrize("kind", [list, Mapped, Batched, tuple])
def test_indexed_data_of_every_kind_come_in_one_order(backend, trained, kind):
    expected, model = backend.classifier(), backend.classifier()
    trained(expected, rows(10), **EPOCH)
    data = kind(rows(10))
    trained(model, data, **EPOCH)
    assert same_bytes(backend.weights(expected), backend.weights(model))
    if kind is Batched:
        assert data.calls == 3


def test_tuples_are_positional_arguments(backend, trained):
    expected, model = backend.classifier(), backend.classifier()
    trained(expected, rows(10), **EPOCH)
    trainer = trained(model, [(row["x"], row["labels"]) for row in rows(10)], **EPOCH)
    assert same_bytes(backend.weights(expected), backend.weights(model))
    output = trainer.predict([(row["x"], row["labels"]) for row in rows(5)])
    assert output.predictions.shape == (5, 3) and output.label_ids.tolist() == [row["labels"] for row in rows(5)]


@pytest.mark.parametrize("name", ["label", "label_ids"])
def test_other_names_of_labels(backend, trained, name):
    expected, model = backend.classifier(), backend.classifier()
    trained(expected, rows(10), **EPOCH)
    trained(model, [{"x": row["x"], name: row["labels"]} for row in rows(10)], **EPOCH)
    assert same_bytes(backend.weights(expected), backend.weights(model))


def test_columns_that_forward_does_not_take_are_left_out_aloud(backend, trained, caplog):
    caplog.set_level("INFO")
    expected, model = backend.classifier(), backend.classifier()
    trained(expected, rows(10), **EPOCH)
    trained(model, [row | {"text": "a", "weight": 1.0} for row in rows(10)], **EPOCH)
    assert same_bytes(backend.weights(expected), backend.weights(model))
    said = [record.getMessage() for record in caplog.records if "text, weight" in record.getMessage()]
    assert len(said) == 1 and "train_dataset" in said[0]


def test_columns_that_match_nothing(backend, arguments):
    trainer = Trainer(backend.classifier(), arguments(**EPOCH), train_dataset=[{"a": 1.0, "b": 2.0}])
    with pytest.raises(DataError, match=r"\['a', 'b'\]"):
        trainer.train()


@pytest.mark.parametrize("data, said", [([], "train_dataset is empty"), (None, "pass train_dataset"), ("text", "text")])
def test_data_that_cannot_be_trained_on(backend, arguments, data, said):
    with pytest.raises(DataError, match=said):
        Trainer(backend.classifier(), arguments(), train_dataset=data).train()


def test_fewer_samples_than_a_batch_with_drop_last(backend, arguments):
    trainer = Trainer(backend.classifier(), arguments(dataloader_drop_last=True), train_dataset=rows(3))
    with pytest.raises(DataError, match="fewer than one batch of 8"):
        trainer.train()


def test_workers_bring_the_same_batches(backend, trained):
    weights = []
    for workers in (0, 2):
        model = backend.classifier(dropout=0.3)
        trained(model, rows(22), dataloader_num_workers=workers, **(EPOCH | {"num_train_epochs": 2}))
        weights.append(backend.weights(model))
    assert same_bytes(*weights)


class Stream:
    """Data that can only be walked through, as often as one likes."""

    def __init__(self, data):
        self.data = data

    def __iter__(self):
        return iter(self.data)


class Once(Stream):
    """Data that are gone once they were read."""

    def __iter__(self):
        while self.data:
            yield self.data.pop(0)


def test_a_stream_comes_in_its_own_order(ordered):
    data = rows(10)
    indices, sizes, trainer = ordered(Stream(data), data, max_steps=5, **RUN)
    assert indices == [*range(10), *range(8)] and sizes == [4, 4, 2, 4, 4]
    assert trainer.state.global_step == 5
    assert trainer.state.epoch == 1 + 2 / 5, "of max_steps, as nothing else is known"


def test_a_stream_without_max_steps_trains_by_epochs(ordered):
    data = rows(10)
    indices, _, trainer = ordered(Stream(data), data, lr_scheduler_type="constant", **(RUN | {"num_train_epochs": 2}))
    assert indices == [*range(10)] * 2
    assert trainer.state.global_step == 6 and trainer.state.epoch == 2.0


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_schedule_that_needs_a_length_refuses_a_stream(backend, arguments, schedule):
    trainer = Trainer(backend.classifier(), arguments(lr_scheduler_type=schedule), train_dataset=Stream(rows(10)))
    with pytest.raises(ArgumentError, match="set max_steps, or use a schedule without an end"):
        trainer.train()


def test_a_stream_that_ends_before_max_steps_ends_the_run_aloud(backend, trained, caplog):
    trainer = trained(backend.classifier(), Once(rows(10)), max_steps=20, **RUN)
    assert trainer.state.global_step == 3
    assert "exhausted after 3 steps" in caplog.text
    assert trainer.result.metrics["train_loss"] > 0


def test_a_stream_without_anything_in_it(backend, arguments):
    with pytest.raises(DataError, match="yielded no batch"):
        Trainer(backend.classifier(), arguments(max_steps=3), train_dataset=Stream([])).train()


def test_drop_last_on_a_stream(ordered):
    data = rows(10)
    options = RUN | {"lr_scheduler_type": "constant", "num_train_epochs": 1, "dataloader_drop_last": True}
    assert ordered(Stream(data), data, **options)[1] == [4, 4]


def test_evaluating_a_stream(backend, arguments):
    trainer = Trainer(backend.classifier(), arguments(per_device_eval_batch_size=4))
    listed, streamed = trainer.predict(rows(10)), trainer.predict(Stream(rows(10)))
    np.testing.assert_array_equal(listed.predictions, streamed.predictions)
    assert listed.metrics["test_loss"] == streamed.metrics["test_loss"]


@pytest.mark.parametrize("accumulation", [1, 2])
def test_group_by_length_makes_updates_of_like_lengths(backend, arguments, accumulation):
    random = np.random.RandomState(3)
    lengths = random.randint(1, 60, 96).tolist()
    data = [
        {"input_ids": list(range(1, 1 + length % 16 + 1)), "labels": [0] * (length % 16 + 1), "length": length}
        for length in lengths
    ]
    widths = {}
    for grouped in (True, False):
        batches = []

        def collate(samples, batches=batches):
            batches.append([len(sample["input_ids"]) for sample in samples])
            width = max(batches[-1])
            pad = lambda values, by: np.array(values + [by] * (width - len(values)))  # noqa: E731
            return {
                "input_ids": np.stack([pad(s["input_ids"], 0) for s in samples]),
                "labels": np.stack([pad(s["labels"], -100) for s in samples]),
            }

        args = arguments(
            group_by_length=grouped,
            gradient_accumulation_steps=accumulation,
            num_train_epochs=1,
            per_device_train_batch_size=8 // accumulation,
            length_column_name="none",
        )
        Trainer(backend.tagger(), args, data_collator=collate, train_dataset=data).train()
        assert sum(map(len, batches)) == 96
        widths[grouped] = sum(max(batch) * len(batch) for batch in batches)
    assert widths[True] < 0.8 * widths[False]


def test_lengths_from_a_column(backend, arguments):
    lengths = [5, 1, 9, 2, 8, 3, 7, 4]
    data = [row | {"size": length} for row, length in zip(rows(8), lengths)]
    model = backend.classifier()
    args = arguments(group_by_length=True, length_column_name="size", **(EPOCH | {"per_device_train_batch_size": 2}))
    trainer = Trainer(model, args, train_dataset=data)
    seen = seen_by(model)
    trainer.args.remove_unused_columns = False
    trainer.data_collator = lambda samples: {k: np.stack([s[k] for s in samples]) for k in ("x", "labels")}
    trainer.train()
    first = [lengths[i] for i in indices_of(seen[:1], data)]
    assert 9 in first, "the longest comes first, so that a lack of memory shows at once"


def test_named_evaluation_sets(backend, trained):
    parts = {"easy": rows(6, 1), "hard": rows(5, 2)}
    trainer = trained(
        backend.classifier(),
        rows(12),
        eval_dataset=parts,
        eval_strategy="steps",
        eval_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="hard_loss",
        **(RUN | {"max_steps": 4}),
    )
    history = trainer.state.log_history
    hard = {e["step"]: e["eval_hard_loss"] for e in history if "eval_hard_loss" in e}
    easy = {e["step"]: e["eval_easy_loss"] for e in history if "eval_easy_loss" in e}
    assert sorted(hard) == sorted(easy) == [1, 2, 3, 4] and easy != hard
    assert trainer.state.best_metric == min(hard.values())
    assert hard[trainer.state.best_global_step] == trainer.state.best_metric
    metrics = trainer.evaluate()
    assert metrics["eval_hard_loss"] == pytest.approx(trainer.state.best_metric)
    assert trainer.evaluate("hard")["eval_loss"] == pytest.approx(metrics["eval_hard_loss"])
    assert trainer.evaluate({"more": rows(3)})["eval_more_loss"] > 0
    with pytest.raises(DataError, match=r"\['easy', 'hard'\]"):
        trainer.evaluate("other")


def test_a_best_metric_that_no_set_has(backend, arguments):
    args = arguments(eval_strategy="steps", eval_steps=1, load_best_model_at_end=True, max_steps=2)
    trainer = Trainer(backend.classifier(), args, train_dataset=rows(8), eval_dataset={"a": rows(4)})
    with pytest.raises(ArgumentError, match="eval_a_loss"):
        trainer.train()


def test_evaluation_without_data_is_refused_at_once(backend, arguments):
    with pytest.raises(DataError, match="eval_dataset"):
        Trainer(backend.classifier(), arguments(eval_strategy="epoch"), train_dataset=rows(4))


def test_a_collator_that_is_none(backend, arguments):
    with pytest.raises(ArgumentError, match="Invalid data_collator of type int"):
        Trainer(backend.classifier(), arguments(), 3, rows(4))


def test_an_empty_batch_says_so(backend, arguments):
    trainer = Trainer(backend.classifier(), arguments(), lambda samples: {}, rows(4))
    with pytest.raises(DataError, match="data_collator returned nothing"):
        trainer.train()


def test_label_names_name_the_labels(backend, arguments):
    data = [{"input_ids": row["input_ids"], "labels": row["labels"]} for row in tagged([3, 4])]
    trainer = Trainer(backend.tagger(), arguments(label_names=["other"]))
    assert trainer.predict(data).label_ids is None
    trainer = Trainer(backend.tagger(), arguments())
    assert trainer.predict(data).label_ids.shape == (2, 4)


def test_info_says_how_much_will_be_trained(backend, trained, caplog):
    with caplog.at_level(logging.INFO, "oneloop"):
        trained(backend.classifier(), rows(10), gradient_accumulation_steps=2, **EPOCH)
    assert "10 samples, 8 per update (4 x 2 accumulated), 2 steps" in caplog.text
