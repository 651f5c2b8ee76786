"""What is there for type checkers changes nothing when a program runs."""

import inspect
import typing
from dataclasses import dataclass

import pytest

from oneloop import Seq2SeqTrainer, Trainer, TrainingArguments, protocols
from oneloop.trainer import signatures


@dataclass
class MyArguments(TrainingArguments):
    alpha: float = 0.5


@pytest.mark.parametrize("cls", [Trainer, Seq2SeqTrainer])
def test_a_subscript_names_the_class_itself(cls):
    assert cls[MyArguments] is cls
    own = type("Own", (cls[MyArguments],), {})
    assert own.__bases__ == (cls,) and own[MyArguments] is own


def test_a_subclass_with_a_subscript_has_its_arguments(backend, arguments, tmp_path):
    class Own(Trainer[MyArguments]):
        pass

    trainer = Own(backend.classifier(), MyArguments(str(tmp_path), alpha=0.25, report_to="none", use_cpu=True))
    assert type(trainer) is Own and trainer.args.alpha == 0.25


@pytest.mark.parametrize("name", [n for n, value in vars(signatures).items() if inspect.isfunction(value)])
def test_methods_keep_their_own_parameters(name):
    """Overrides are recognised by them, and scripts of other libraries pass more than type checkers see."""
    if name not in ("typed_as", "any_parameters"):
        shown = list(inspect.signature(getattr(signatures, name)).parameters)
        real = list(inspect.signature(getattr(Trainer, name)).parameters)
        assert real[: len([p for p in shown if p not in ("args", "kwargs")])] == [
            p for p in shown if p not in ("args", "kwargs")
        ]
        assert not {"args", "kwargs"} & set(real) or name in ("train", "get_total_train_batch_size")


def test_the_parameters_of_the_trainer_have_types_at_run_time():
    parameters = inspect.signature(Trainer).parameters.values()
    assert [p.name for p in parameters if p.annotation in (typing.Any, inspect.Parameter.empty)] == []
    names = {name for p in parameters for name in str(p.annotation).replace("|", " ").split()}
    assert any("oneloop.protocols.Model" in name for name in names)
    assert issubclass(protocols.Model, typing.Protocol) or protocols.Model in typing.Protocol.__subclasses__()
