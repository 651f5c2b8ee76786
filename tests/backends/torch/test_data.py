"""Data sets of torch and of the datasets package."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from oneloop import Trainer
from oneloop.errors import ArgumentError, DataError
from tests.backends.kits.torch_kit import Kit
from tests.backends.support import rows, same_bytes

KIT = Kit()
RUN = {"learning_rate": 0.1, "optim": "sgd", "per_device_train_batch_size": 4}
EPOCH = RUN | {"num_train_epochs": 1}


class Own(Dataset):
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return {"x": torch.tensor(self.data[index]["x"]), "labels": torch.tensor(self.data[index]["labels"])}


def tensors(data):
    return torch.from_numpy(np.stack([r["x"] for r in data])), torch.tensor([r["labels"] for r in data])


@pytest.mark.parametrize(
    "make",
    [Own, lambda data: TensorDataset(*tensors(data)), lambda data: Subset(Own(data + rows(3, 9)), range(10))],
    ids=["dicts", "tensors", "subset"],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_indexed_data_sets_of_torch(trained, make, workers):
    expected, model = KIT.classifier(), KIT.classifier()
    trained(expected, rows(10), **EPOCH)
    trained(model, make(rows(10)), dataloader_num_workers=workers, **EPOCH)
    assert same_bytes(KIT.weights(expected), KIT.weights(model))


class Streamed(IterableDataset):
    def __init__(self, data):
        self.data = data

    def __iter__(self):
        return iter(self.data)


class Sized(Streamed):
    def __len__(self):
        return len(self.data)


def test_a_stream_that_knows_its_length_needs_no_max_steps(trained):
    trainer = trained(KIT.classifier(), Sized(rows(10)), **(EPOCH | {"num_train_epochs": 2}))
    assert trainer.state.global_step == 6 and trainer.state.max_steps == 6


def test_a_stream_with_a_generator_is_reseeded_for_each_epoch(trained):
    class Drawn(IterableDataset):
        def __init__(self):
            self.generator = torch.Generator()
            self.seen = []

        def __iter__(self):
            order = torch.randperm(8, generator=self.generator).tolist()
            self.seen.append(order)
            return iter([rows(8)[i] for i in order])

    first, second = Drawn(), Drawn()
    options = RUN | {"lr_scheduler_type": "constant", "num_train_epochs": 2}
    for data in (first, second):
        trained(KIT.classifier(), data, **options)
    assert first.seen == second.seen and first.seen[0] != first.seen[1]


def test_a_stream_of_torch_refuses_a_schedule_that_needs_its_length(arguments):
    trainer = Trainer(KIT.classifier(), arguments(), train_dataset=Streamed(rows(10)))
    with pytest.raises(ArgumentError, match="max_steps"):
        trainer.train()


datasets = pytest.importorskip("datasets")


def table(data, **more):
    return datasets.Dataset.from_dict(
        {"x": [row["x"].tolist() for row in data], "labels": [row["labels"] for row in data]} | more
    )


def test_a_table_is_fetched_by_the_batch(trained, monkeypatch):
    expected, model = KIT.classifier(), KIT.classifier()
    trained(expected, rows(10), **EPOCH)
    calls = []
    by_batch = datasets.Dataset.__getitems__
    monkeypatch.setattr(
        datasets.Dataset, "__getitems__", lambda self, keys: calls.append(list(keys)) or by_batch(self, keys)
    )
    by_key = datasets.Dataset.__getitem__
    monkeypatch.setattr(
        datasets.Dataset,
        "__getitem__",
        lambda self, key: pytest.fail("fetched row by row") if isinstance(key, int) else by_key(self, key),
    )
    trained(model, table(rows(10)), **EPOCH)
    assert [len(keys) for keys in calls] == [4, 4, 2]
    assert same_bytes(KIT.weights(expected), KIT.weights(model))


def test_columns_of_a_table_are_dropped_before_they_are_read(trained, caplog):
    caplog.set_level("INFO")
    data = table(rows(10), text=["a"] * 10, number=[1] * 10)
    expected, model = KIT.classifier(), KIT.classifier()
    trained(expected, rows(10), **EPOCH)
    trainer = trained(model, data, eval_dataset=data, eval_strategy="epoch", **EPOCH)
    assert same_bytes(KIT.weights(expected), KIT.weights(model))
    assert trainer.callback_handler.train_dataloader.dataset.column_names == ["x", "labels"]
    said = [r.getMessage() for r in caplog.records if "number, text" in r.getMessage()]
    assert [text.split(":")[0] for text in said] == ["train_dataset", "eval_dataset"]
    assert data.column_names == ["x", "labels", "text", "number"], "the user's own data set stays as it is"


def test_a_table_with_no_column_of_the_model(arguments):
    data = datasets.Dataset.from_dict({"text": ["a"], "n": [1]})
    with pytest.raises(DataError, match="tokenize the text first"):
        Trainer(KIT.classifier(), arguments(), train_dataset=data).train()


def test_an_empty_table(arguments):
    data = datasets.Dataset.from_dict({"x": [], "labels": []})
    with pytest.raises(DataError, match="train_dataset is empty"):
        Trainer(KIT.classifier(), arguments(), train_dataset=data).train()


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_formats_of_a_table_change_nothing(trained, kind):
    expected, model = KIT.classifier(), KIT.classifier()
    trained(expected, rows(10), **EPOCH)
    trained(model, table(rows(10)).with_format(kind), **EPOCH)
    assert same_bytes(KIT.weights(expected), KIT.weights(model))


def test_a_streamed_table(trained, caplog):
    caplog.set_level("INFO")
    expected, model = KIT.classifier(), KIT.classifier()
    options = RUN | {"max_steps": 5}
    trained(expected, Streamed(rows(10)), **options)
    trainer = trained(model, table(rows(10), text=["a"] * 10).to_iterable_dataset(), **options)
    assert same_bytes(KIT.weights(expected), KIT.weights(model))
    assert "text" in caplog.text and trainer.state.global_step == 5


def test_a_streamed_table_is_shuffled_anew_in_each_epoch(trained):
    seen = []

    def keep(samples):
        seen.extend(round(sum(sample["x"]), 4) for sample in samples)
        return {key: torch.tensor([sample[key] for sample in samples]) for key in ("x", "labels")}

    data = table(rows(8)).to_iterable_dataset().shuffle(seed=3, buffer_size=8)
    options = RUN | {"lr_scheduler_type": "constant", "num_train_epochs": 2}
    trained(KIT.classifier(), data, data_collator=keep, **options)
    assert sorted(seen[:8]) == sorted(seen[8:]) and seen[:8] != seen[8:]


def test_group_by_length_reads_a_tables_column(trained):
    lengths = [5, 1, 9, 2, 8, 3, 7, 4, 6, 10]
    data = table(rows(10), length=lengths)
    seen = []

    def keep(samples):
        seen.append([sorted(sample) for sample in samples])
        return {key: torch.tensor([sample[key] for sample in samples]) for key in ("x", "labels")}

    trained(KIT.classifier(), data, data_collator=keep, group_by_length=True, **EPOCH)
    assert {tuple(keys) for batch in seen for keys in batch} == {("labels", "x")}


@pytest.mark.parametrize("step", [2, 4, 6])
def test_a_shuffled_loader_of_ones_own_resumes_within_an_epoch(trained, tmp_path, step):
    class Shuffled(Trainer):
        def get_train_dataloader(self):
            return torch.utils.data.DataLoader(
                self.train_dataset, batch_size=4, shuffle=True, collate_fn=self.data_collator
            )

    run = RUN | {"num_train_epochs": 3, "save_strategy": "steps", "save_steps": 2}
    whole, resumed = KIT.classifier(), KIT.classifier()
    trained(whole, rows(10), Shuffled, output_dir=tmp_path / "whole", **run)
    checkpoint = str(tmp_path / "whole" / f"checkpoint-{step}")
    trained(resumed, rows(10), Shuffled, resume=checkpoint, output_dir=tmp_path / "resumed", **run)
    assert same_bytes(KIT.weights(whole), KIT.weights(resumed))


def test_evaluation_counts_every_sample_whatever_training_drops(trained):
    trainer = trained(KIT.classifier(), rows(10), eval_dataset=rows(3), dataloader_drop_last=True, **EPOCH)
    assert trainer.state.global_step == 2
    assert len(trainer.predict(rows(3)).predictions) == 3
