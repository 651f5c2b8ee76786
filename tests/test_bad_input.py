"""Bad input of every kind: one error in words, which names the thing and says what to do."""

import contextlib
import re
import sys
from functools import partial
from pathlib import Path

import pytest

import oneloop
from oneloop import Seq2SeqTrainer, Trainer, TrainingArguments
from oneloop.errors import (
    ArgumentError,
    CheckpointError,
    DataError,
    MissingPackageError,
    ModelError,
    OneloopError,
    UnsupportedError,
    a_type,
)
from tests.backends.support import rows
from tests.bad_inputs import CASES, ON, Maker


@contextlib.contextmanager
def one_error(kind, *words):
    """An error of this kind alone, as one paragraph with these words in it."""
    with pytest.raises(OneloopError) as caught:
        yield
    text = str(caught.value)
    assert isinstance(caught.value, kind), repr(caught.value)
    assert "\n" not in text and "Traceback" not in text and 20 < len(text) < 900, text
    for word in words:
        assert word in text, f"{word!r} is not in: {text}"


@pytest.fixture
def make(backend, arguments):
    return Maker(backend, arguments)


@pytest.mark.parametrize("case", CASES)
def test_one_error_with_a_clear_message(case, make):
    do, kind, words = CASES[case]
    own_kind, own_words = ON[make.kit.name].get(case, (kind, []))
    assert issubclass(own_kind, kind)
    with one_error(own_kind, *words, *own_words):
        do(make)


def test_every_framework_lists_its_own_messages():
    first, *others = [set(table) for table in ON.values()]
    assert first <= set(CASES) and all(other == first for other in others)


def test_optimizers_beside_model_init_or_a_class(make):
    trainer = make()
    optimizer = trainer.create_optimizer()
    with one_error(ArgumentError, "optimizers", "model_init", "create_optimizer"):
        make(model_init=lambda: make.kit.classifier(), optimizers=(optimizer, None))
    with one_error(ArgumentError, "optimizers", "optimizer_cls_and_kwargs", "pass one"):
        make(optimizers=(optimizer, None), optimizer_cls_and_kwargs=(type(optimizer), {}))
    with one_error(ArgumentError, "Invalid optimizers: the second", "comes first"):
        make(optimizers=(None, optimizer))
    with one_error(ArgumentError, "the class", "optimizer_cls_and_kwargs"):
        make(optimizers=(type(optimizer), None))
    with one_error(ArgumentError, "nope", "optimizer_cls_and_kwargs"):
        make(optimizer_cls_and_kwargs=(type(optimizer), {"nope": 1})).train()


def test_arguments_of_transformers(make):
    other = pytest.importorskip("transformers").TrainingArguments(output_dir=make.arguments().output_dir)
    with one_error(ArgumentError, "transformers.training_args.TrainingArguments", "oneloop.TrainingArguments(...)"):
        make(args=other)


def test_data_sets_of_datasets(make):
    datasets = pytest.importorskip("datasets")
    text = datasets.Dataset.from_dict({"text": ["a"] * 8})
    with one_error(DataError, "['text']", "'x'", "rename_column"):
        make(train_dataset=text).train()
    with one_error(DataError, "DatasetDict", "'train'", "Select one"):
        make(train_dataset=datasets.DatasetDict(train=text))
    with one_error(DataError, "train_dataset is empty"):
        make(train_dataset=datasets.Dataset.from_dict({"x": [], "labels": []})).train()


def test_an_override_may_take_any_data(make):
    plain = make().get_train_dataloader()

    class Own(Trainer):
        def get_train_dataloader(self):
            assert self.train_dataset == "reviews"
            return plain

    trainer = make(cls=Own, train_dataset="reviews")
    assert trainer.train().global_step == 2


@pytest.mark.parametrize("name", ["tensorboard", "visualdl"])
def test_a_writer_that_is_not_installed(name, make, monkeypatch):
    from oneloop import TensorBoardCallback, VisualDLCallback

    for module in [name, *(each for each in sys.modules if each.startswith(f"{name}."))]:
        monkeypatch.setitem(sys.modules, module, None)
    with one_error(MissingPackageError, f"report_to=['{name}']", f"pip install {name}"):
        make(report_to=name)
    callback = {"tensorboard": TensorBoardCallback, "visualdl": VisualDLCallback}[name]
    with one_error(MissingPackageError, f"pip install {name}"):
        make(callbacks=[callback]).train()


def test_other_packages_that_are_not_installed(make, monkeypatch, tmp_path):
    from oneloop import ArgumentParser, write_report

    for module in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg", "yaml", "bitsandbytes"):
        monkeypatch.setitem(sys.modules, module, None)
    with one_error(MissingPackageError, "matplotlib", "pip install"):
        write_report(tmp_path, [{"loss": 1.0, "step": 1}])
    (tmp_path / "run.yaml").write_text("seed: 1\n")
    with one_error(MissingPackageError, "PyYAML", "pip install pyyaml", "parse_json_file"):
        ArgumentParser(TrainingArguments).parse_yaml_file(tmp_path / "run.yaml")
    torch = make.kit.name == "torch"  # for which the package is made
    with one_error(
        *((MissingPackageError, "bitsandbytes") if torch else (UnsupportedError, "no such")), 'optim="adamw'
    ):
        make(optim="adamw_bnb_8bit")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with one_error(MissingPackageError, "generation_config", "pip install transformers"):
        Seq2SeqTrainer.load_generation_config("a-model")


def test_an_adapter_without_peft(monkeypatch, tmp_path):
    weights = pytest.importorskip("oneloop.backends.torch.weights")
    monkeypatch.setitem(sys.modules, "peft", None)
    with one_error(MissingPackageError, "peft", "pip install"):
        weights.load_adapter(None, tmp_path)


@pytest.mark.parametrize("wanted", ["nowhere", 5])
def test_a_checkpoint_that_does_not_exist(wanted, make):
    with one_error(CheckpointError, "resume_from_checkpoint", repr(wanted), "True for the newest"):
        make().train(resume_from_checkpoint=wanted)


# -- models of PyTorch


def loss_of(change):
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(6, 3)

        def forward(self, x, labels):
            return {"loss": change(torch.nn.functional.cross_entropy(self.head(x), labels, reduction="none"))}

    return Model()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda losses: losses, ["shape (4,)", "a single number"]),
        (lambda losses: losses.mean().detach(), ["depends on no trainable parameter", ".detach()"]),
        (lambda losses: losses.mean().item(), ["a float", ".item()"]),
        (lambda losses: None, ["loss=None", "criterion="]),
    ],
    ids=["a vector", "detached", "a float", "None"],
)
def test_a_loss_that_is_none(change, words, arguments):
    with one_error(ModelError, *words):
        Trainer(loss_of(change), arguments(per_device_train_batch_size=4), train_dataset=rows()).train()


def test_modules_without_weights_or_forward(arguments):
    torch = pytest.importorskip("torch")
    trainer = partial(Trainer, args=arguments(), train_dataset=rows())
    with one_error(ModelError, "no trainable parameters", "requires_grad"):
        trainer(loss_of(torch.mean).requires_grad_(False)).train()
    bare = torch.nn.Module()
    bare.head = torch.nn.Linear(2, 2)
    with one_error(ModelError, "no forward", "Define forward"):
        trainer(bare).train()
    with one_error(DataError, "DataLoader", "data_collator", "get_train_dataloader"):
        Trainer(loss_of(torch.mean), arguments(), train_dataset=torch.utils.data.DataLoader(rows()))


def test_an_error_of_the_model_stays_its_own(arguments):
    def broken(losses):
        raise TypeError("something in the model")

    with pytest.raises(TypeError, match="something in the model"):
        Trainer(loss_of(broken), arguments(), train_dataset=rows()).train()


def test_types_are_named_with_their_article():
    given = [1, "", object(), None, EOFError(), ArithmeticError(), UserWarning()]
    named = ["an int", "a str", "an object", "a NoneType", "an EOFError", "an ArithmeticError", "a UserWarning"]
    assert [a_type(each) for each in given] == named


def test_no_message_has_a_fixed_article_before_a_type():
    """Such as "a IterableDataset": a_type has the article."""
    package = Path(oneloop.__file__).parent
    pattern = re.compile(r"\ban? \{type\([^}]*__name__\}")
    assert [str(path) for path in package.rglob("*.py") if pattern.search(path.read_text("utf-8"))] == []
