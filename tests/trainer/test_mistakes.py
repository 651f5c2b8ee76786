"""Mistakes of users, and what they are told: the column, the value, and what to do."""

import sys
import traceback

import numpy as np
import pytest

from oneloop import Trainer, TrainingArguments
from oneloop.errors import ArgumentError, DataError, ModelError, shorten
from tests.backends import tiny_bert
from tests.backends.support import CLASSES, WORDS, rows, tagged


def renamed(old, new, **changes):
    return [{new if name == old else name: value for name, value in row.items()} | changes for row in rows(8)]


def squared(outputs, labels):
    return ((outputs - labels) ** 2).mean()


# -- ids and lengths


def test_id_beyond_the_embedding(backend, trained):
    data = tagged([4] * 8)
    data[5]["input_ids"][2] = WORDS + 3
    with pytest.raises(DataError, match=rf"column input_ids has the id {WORDS + 3}, but the embedding \S+ has {WORDS}"):
        trained(backend.tagger(), data, max_steps=4, per_device_train_batch_size=2)


def bert_told(data, trained, **given):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    with pytest.raises(DataError) as caught:
        trained(tiny_bert.classifier(), data, max_steps=2, per_device_train_batch_size=2, **given)
    return str(caught.value)


def test_ids_of_another_tokenizer_and_of_another_column(trained):
    said = bert_told([{"input_ids": [1, 99, 3], "labels": 1}] * 4, trained)
    assert "has the id 99" in said and "word_embeddings has 40 rows, for ids from 0 to 39" in said
    assert "model.resize_token_embeddings(len(tokenizer))" in said and "num_labels" not in said
    said = bert_told([{"input_ids": [1, 2], "token_type_ids": [0, 7], "labels": 1}] * 4, trained)
    assert "column token_type_ids has the id 7" in said and "token_type_embeddings has 2 rows" in said
    said = bert_told([{"input_ids": [1, -2], "labels": 1}] * 4, trained)
    assert "column input_ids has the id -2" in said


def test_largest_id_and_longest_text_are_accepted(trained):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    data = [{"input_ids": [39] * 16, "labels": 1}] * 4
    assert trained(tiny_bert.classifier(), data, max_steps=1).state.global_step == 1


def test_text_longer_than_the_positions(trained):
    said = bert_told([{"input_ids": [1] * 17, "labels": 1}] * 4, trained)
    assert "column input_ids has 17 tokens in a row, but the model has positions for 16" in said
    assert "truncation=True, max_length=16" in said


def test_positions_that_begin_after_the_padding(trained):
    """As RoBERTa has them: of 18 rows, 16 are for tokens."""
    torch = pytest.importorskip("torch")

    class Offset(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words = torch.nn.Embedding(40, 4)
            self.position_embeddings = torch.nn.Embedding(18, 4, padding_idx=1)
            self.layer = torch.nn.Linear(4, 2)

        def forward(self, input_ids, labels=None):
            places = torch.arange(input_ids.shape[1]) + 2
            logits = self.layer((self.words(input_ids) + self.position_embeddings(places)).mean(1))
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    with pytest.raises(DataError, match="column input_ids has 17 tokens in a row, but the model has positions for 16"):
        trained(Offset(), [{"input_ids": [1] * 17, "labels": 1}] * 4, max_steps=1)
    assert trained(Offset(), [{"input_ids": [1] * 16, "labels": 1}] * 4, max_steps=1).state.global_step == 1


def test_in_an_evaluation_too(backend, arguments):
    data = tagged([4] * 4)
    data[1]["input_ids"][0] = WORDS
    trainer = Trainer(backend.tagger(), arguments(), eval_dataset=data)
    with pytest.raises(DataError, match=f"column input_ids has the id {WORDS}, but"):
        trainer.evaluate()


# -- columns that do not reach the model


def test_text_that_is_not_tokenized(trained):
    said = bert_told([{"text": "a film", "labels": 1}] * 4, trained)
    assert "the model gets only the columns labels" in said
    assert "text contains text ('a film'): tokenize it, for example with tokenizer(sample['text'])" in said


def test_labels_as_words(trained):
    said = bert_told([{"input_ids": [1, 2], "labels": "good"}] * 4, trained)
    assert "labels contains words ('good'), not class numbers: number the classes from 0." in said
    said = bert_told([{"input_ids": [1, 2], "category": "good"}] * 4, trained)
    assert "category contains words ('good'), not class numbers: number the classes from 0 as the column labels" in said


def test_labels_under_another_name(backend, trained):
    with pytest.raises(DataError, match=r"the model gets only the columns x .*target was removed.*rename it to labels"):
        trained(backend.classifier(), renamed("labels", "target"), max_steps=1)


def test_a_column_with_nearly_the_right_name(backend, trained):
    data = [{"input_id": row["input_ids"], "labels": row["labels"]} for row in tagged([4] * 8)]
    with pytest.raises(DataError, match=r"input_id was removed.*did you mean input_ids\?"):
        trained(backend.tagger(), data, max_steps=1)


def test_columns_that_have_nothing_to_do_with_it_are_not_blamed(backend, trained):
    def fail(*args, **kwargs):
        raise ValueError("something else")

    with pytest.raises(ValueError, match="^something else$"):
        trained(backend.classifier(), renamed("", "", text="a film"), max_steps=1, compute_loss_func=fail)


# -- types and shapes


def test_features_as_integers(backend, trained):
    data = [row | {"x": np.arange(len(row["x"]))} for row in rows(8)]
    with pytest.raises(DataError, match=r"column x is in int64, but models compute in float32.*astype\('float32'\)"):
        trained(backend.classifier(), data, max_steps=1)


def test_a_mask_may_be_of_integers(trained):
    torch = pytest.importorskip("torch")

    class Masked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(6, CLASSES)

        def forward(self, x, attention_mask, labels=None):
            logits = self.layer(x) * attention_mask[:, :1]
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    mask = np.ones(6, np.int64)
    data = [row | {"x": np.arange(6), "attention_mask": mask} for row in rows(8)]
    with pytest.raises(DataError, match="column x is in int64"):
        trained(Masked(), data, max_steps=1)


def test_several_labels_as_integers(trained):
    torch = pytest.importorskip("torch")

    class Several(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(6, CLASSES)

        def forward(self, x, labels=None):
            logits = self.layer(x)
            return {"loss": torch.nn.functional.binary_cross_entropy_with_logits(logits, labels), "logits": logits}

    data = [row | {"labels": np.array([0, 1, 1])} for row in rows(8)]
    with pytest.raises(DataError, match="column labels is in int64, but this loss takes floats"):
        trained(Several(), data, max_steps=1)


def numbered():
    return [row | {"labels": np.float32(index)} for index, row in enumerate(rows(8))]


def test_shapes_that_broadcast(backend, trained):
    told = r"predictions have the shape \(4, 1\) and the labels \(4,\).*compares each of the 4 predictions with all 4"
    with pytest.raises(DataError, match=told):
        trained(Column(backend).module, numbered(), max_steps=1, per_device_train_batch_size=4, criterion=squared)


def test_shapes_that_match(backend, trained):
    def columns(samples):
        x, labels = (np.stack([sample[name] for sample in samples]) for name in ("x", "labels"))
        return {"x": backend.tensor(x), "labels": backend.tensor(labels[:, None])}

    options = {"per_device_train_batch_size": 4, "criterion": squared, "data_collator": columns}
    assert trained(Column(backend).module, numbered(), max_steps=2, **options).state.global_step == 2


class Column:
    """A model whose outputs have the shape [n, 1]."""

    def __init__(self, backend):
        if backend.name == "paddle":
            import paddle as framework

            self.module = framework.nn.Linear(6, 1)
        elif backend.name == "mindspore":
            import mindspore as framework

            self.module = framework.nn.Dense(6, 1)
        else:
            import torch as framework

            self.module = framework.nn.Linear(6, 1)
        names = "construct" if backend.name == "mindspore" else "forward"
        base = type(self.module)

        def call(this, x):
            return getattr(base, names)(this, x)

        self.module.__class__ = type("Regressor", (base,), {names: call})


def test_a_loss_of_matching_shapes_that_happens_to_look_like_it(backend, trained):
    """Where all labels of a batch are equal, pairs and matches have the same loss: nothing is said."""
    data = [row | {"labels": np.float32(2)} for row in rows(8)]
    assert trained(Column(backend).module, data, max_steps=2, criterion=squared).state.global_step == 2


# -- data


class Broken:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return rows(8)[index] | {"labels": {"a": 1}["b" if index == 5 else "a"]}


@pytest.mark.parametrize("workers", [0, 1])
def test_an_exception_of_a_sample_names_its_index(backend, trained, workers):
    with pytest.raises(KeyError) as caught:
        trained(backend.classifier(), Broken(), max_steps=4, dataloader_num_workers=workers)
    text = "".join(traceback.format_exception(caught.value))
    if sys.version_info >= (3, 11):
        assert "raised by sample 5 of the dataset, Broken[5]" in text


def test_a_table_that_is_indexed_by_column(backend, trained):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"x": [row["x"] for row in rows(8)], "labels": [row["labels"] for row in rows(8)]})
    with pytest.raises(DataError, match=r"train_dataset is a DataFrame.*train_dataset.to_dict\('records'\)"):
        trained(backend.classifier(), table, max_steps=1)
    assert trained(backend.classifier(), table.to_dict("records"), max_steps=1).state.global_step == 1


# -- names


@pytest.mark.parametrize(
    ("given", "meant"), [("adam", "adamw_torch"), ("Adam", "adamw_torch"), ("adamw_tourch", "adamw_torch")]
)
def test_an_optimizer_that_does_not_exist(tmp_path, given, meant):
    with pytest.raises(ArgumentError, match=rf"did you mean '{meant}'\?") as caught:
        TrainingArguments(tmp_path, optim=given)
    assert "docs/" not in str(caught.value) and "adafactor, " in str(caught.value)


def test_an_argument_that_does_not_exist(tmp_path):
    with pytest.raises(ArgumentError, match=r"help\(oneloop.TrainingArguments\) lists all arguments"):
        TrainingArguments(tmp_path, zzzz=1)
    assert "learning_rate" in TrainingArguments.__doc__ or "learning_rate" in TrainingArguments.__init__.__doc__


def test_a_module_with_a_training_step_of_its_own(backend, trained):
    model = Column(backend).module
    type(model).training_step = lambda self, batch, index: None
    type(model).configure_optimizers = lambda self: None
    with pytest.raises(ModelError, match="defines training_step and configure_optimizers, as a LightningModule does"):
        trained(model, rows(8), max_steps=1)


# -- tracebacks and repr


@pytest.mark.parametrize("full", ["", "1"])
def test_a_traceback_shows_the_users_lines_and_the_message(trained, monkeypatch, full):
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("ONELOOP_FULL_TRACEBACK", full)

    class Mine(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(6, 3)

        def forward(self, x, labels=None):
            return torch.nn.functional.cross_entropy(self.layer(x), labels)

    with pytest.raises(DataError) as caught:
        trained(Mine(), [row | {"x": row["x"].astype(np.float64)} for row in rows(8)], max_steps=1)
    lines = "".join(traceback.format_exception(caught.value)).splitlines()
    places = [line.split(", in ")[-1] for line in lines if line.startswith("  File ")]
    assert "column x is in float64" in lines[-1]
    if full:
        assert len(places) > 15 and "loss_and_gradients" in places
    else:  # where the model failed, and the call that led there
        assert places == ["forward", "test_a_traceback_shows_the_users_lines_and_the_message", "train", "train"]


def test_a_traceback_of_arguments_has_no_frames_of_their_making(tmp_path, monkeypatch):
    def frames():
        with pytest.raises(ArgumentError, match="did you mean 'adamw_torch'") as caught:
            TrainingArguments(tmp_path, optim="adam")
        return [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]

    assert frames() == ["frames", "__call__"]
    monkeypatch.setenv("ONELOOP_FULL_TRACEBACK", "1")
    assert {"validate", "to_member"} <= set(frames())


def test_a_traceback_keeps_lines_of_python_c():
    names: dict = {"__name__": "__main__", "DataError": DataError}
    exec(compile("def mine():\n    raise DataError('wrong')\n", "<string>", "exec"), names)
    with pytest.raises(DataError) as caught:
        names["mine"]()
    assert traceback.extract_tb(shorten(caught.value).__traceback__)[-1].name == "mine"


def test_a_cause_within_libraries_is_not_shown(trained):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    with pytest.raises(DataError) as caught:
        trained(tiny_bert.classifier(), [{"input_ids": [99], "labels": 1}] * 4, max_steps=1)
    assert "IndexError" not in "".join(traceback.format_exception(caught.value)[:-1])
    assert isinstance(caught.value.__context__, IndexError)  # for debuggers


def test_repr(backend, arguments, tmp_path):
    trainer = Trainer(backend.classifier(), arguments(), train_dataset=rows(8), eval_dataset={"a": rows(3)})
    shown = repr(trainer)
    assert shown.startswith("<Trainer: ") and "train_dataset: 8 samples, eval_dataset: dict" in shown
    assert f"{backend.name} on" in shown and "parameters" in shown and "output_dir=" in shown
    assert repr(Trainer.__new__(Trainer)) == "<Trainer: no model>"
