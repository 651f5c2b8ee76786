"""Dataclasses that users derive."""

import dataclasses
import json

import pytest

from oneloop.arguments import Seq2SeqTrainingArguments, TrainingArguments
from oneloop.errors import ArgumentError, UnknownArgumentError
from tests.emulation import emulate


@dataclasses.dataclass
class Plain(TrainingArguments):
    model_name: str = "small"
    freeze: bool = dataclasses.field(default=False, metadata={"help": "Freeze the encoder."})
    learning_rate: float = dataclasses.field(default=1e-3, metadata={"help": "Higher here."})
    eval_strategy: str = "epoch"


@dataclasses.dataclass
class Calls(TrainingArguments):
    doubled: int = 1

    def __post_init__(self):
        super().__post_init__()
        self.doubled *= 2


@dataclasses.dataclass
class Forgets(TrainingArguments):
    def __post_init__(self):
        self.mark = True


class OwnInit(TrainingArguments):
    def __init__(self, extra, **given):
        super().__init__(**given)
        self.extra = extra


def test_its_fields_and_ours():
    args = Plain("out", model_name="big", evaluation_strategy="steps", no_cuda=True)
    assert (args.model_name, args.eval_strategy, args.device_spec) == ("big", "steps", "cpu")
    assert args.to_dict()["model_name"] == "big"


def test_its_defaults_win_and_are_converted():
    args = Plain("out")
    assert args.learning_rate == 1e-3
    assert args.eval_strategy == "epoch" and args.do_eval
    assert Plain("out", learning_rate="0.5").learning_rate == 0.5
    with pytest.raises(ArgumentError, match="learning_rate"):
        Plain("out", learning_rate=-1)


def test_its_names_are_suggested_too():
    with pytest.raises(UnknownArgumentError, match="Plain has no argument 'model_nam'; did you mean 'model_name'"):
        Plain("out", model_nam="big")


def test_post_init():
    args = Calls("out", doubled=4, learning_rate="1e-4")
    assert args.doubled == 8 and args.learning_rate == 1e-4


def test_a_post_init_that_forgets_ours():
    args = Forgets("out", learning_rate="1e-4")
    assert args.mark and args.learning_rate == 1e-4 and args.run_name == "out"
    with pytest.raises(ArgumentError, match="seed"):
        Forgets("out", seed=-1)


def test_a_post_init_that_forgets_ours_in_a_script_of_transformers(monkeypatch):
    """As in transformers, such a class may hold what is not valid: ms-swift makes its arguments from one, and stores
    all its attributes as JSON."""
    emulate(monkeypatch, {"transformers"})
    args = Forgets("out", dataloader_persistent_workers=True, seed=7)
    assert args.dataloader_persistent_workers and args.seed == 7
    json.dumps({name: value for name, value in vars(args).items() if name.startswith("_")})
    with pytest.raises(ArgumentError, match="dataloader_persistent_workers"):
        args.validate()  # as the Trainer does


def test_an_init_of_its_own():
    args = OwnInit(extra=3, output_dir="out", evaluation_strategy="steps")
    assert args.extra == 3 and args.eval_strategy == "steps"


def test_a_field_that_takes_the_name_of_another_spelling():
    @dataclasses.dataclass
    class Mine(TrainingArguments):
        fsdp: str = "mine"

    args = Mine("out")
    assert args.fsdp == "mine" and args.sharding == ""
    assert Mine("out", fsdp="yours").fsdp == "yours"


@pytest.mark.parametrize("cls", [Plain, Calls, Forgets])
def test_copies(cls):
    args = cls("out", seed=3)
    assert dataclasses.replace(args, seed=4).seed == 4
    assert dataclasses.asdict(args)["seed"] == 3


def test_a_subclass_of_seq2seq():
    @dataclasses.dataclass
    class Mine(Seq2SeqTrainingArguments):
        beam_penalty: float = 1.0

    assert Mine("out", sortish_sampler=True, recompute=True).gradient_checkpointing
