"""Parsers of other libraries read the fields of the arguments: their metadata, their types and their defaults."""

import argparse
import copy
import dataclasses
import json
import types
import typing

import pytest

from oneloop import TrainingArguments
from oneloop.arguments.fields import declared


@dataclasses.dataclass
class Own(TrainingArguments):
    """As a library adds its own."""

    _VALID_DICT_FIELDS = [*TrainingArguments._VALID_DICT_FIELDS, "model_kwargs"]

    logging_steps: float = dataclasses.field(default=10, metadata={"help": "Steps between logs."})
    model_kwargs: dict | str | None = None


def parser_of(cls):
    """A parser as libraries have it: argparse with the whole metadata, and one type for each field."""
    parser = argparse.ArgumentParser()
    for item in dataclasses.fields(cls):
        if not item.init:
            continue
        options = dict(item.metadata)
        hint = typing.get_type_hints(cls)[item.name]
        members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        if type(None) in members:
            # Narrowed and written back, as TRL's parser does.
            hint = members[0] if members[1] is type(None) else members[1]
            item.type = hint
        if hint is bool or bool in members:
            options |= {"type": lambda word: word == "True", "nargs": "?", "const": True}
        elif typing.get_origin(hint) is list:
            options |= {"type": str, "nargs": "+"}
        else:
            assert hint in (int, float, str, object), (item.name, hint)
            options["type"] = hint
        default = item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
        parser.add_argument(f"--{item.name}", default=default, **options)
    return parser


@pytest.fixture
def restored():
    """Writing into the fields of shared classes is what these parsers do; the next test starts without it."""
    held = {item: item.type for cls in (Own, TrainingArguments) for item in dataclasses.fields(cls)}
    yield
    for item, hint in held.items():
        item.type = hint


def parse(*words):
    return Own(**vars(parser_of(Own).parse_args(["--output_dir", "out", *words])))


def test_all_defaults_passed_on_say_nothing(restored):
    args = parse()
    assert args.to_dict() == Own("out").to_dict() | {"logging_dir": args.logging_dir}  # it has the time in its name
    assert args.logging_steps == 10


def test_values_of_every_kind(restored):
    args = parse(
        *("--learning_rate", "3e-4", "--max_steps", "7", "--eval_strategy", "steps", "--bf16"),
        *("--lr_scheduler_kwargs", '{"num_cycles": 2}', "--report_to", "none", "--resume_from_checkpoint", "True"),
        *("--model_kwargs", '{"a": "1", "b": "true", "c": {"d": "x"}}', "--deepspeed", "zero.json"),
    )
    assert (args.learning_rate, args.max_steps, args.eval_strategy, args.bf16) == (3e-4, 7, "steps", True)
    assert args.lr_scheduler_kwargs == {"num_cycles": 2}
    assert (args.report_to, args.resume_from_checkpoint, args.deepspeed) == ([], True, "zero.json")
    assert args.model_kwargs == {"a": 1, "b": True, "c": {"d": "x"}}


def test_spellings_that_transformers_has_as_fields(restored):
    assert parse("--use_cpu").device_spec == "cpu"
    assert parse("--use_cpu", "False").device_spec is None
    assert parse("--device_spec", "cpu").use_cpu is True
    assert parse("--fsdp", "full_shard").sharding == "stage3"
    assert parse("--sharding", "stage2").fsdp == "shard_grad_op"


def test_a_narrowed_type_written_into_a_field_changes_nothing(restored):
    before = {name: hint for name, (hint, _) in declared(TrainingArguments).items()}
    parser_of(TrainingArguments)

    @dataclasses.dataclass
    class Later(TrainingArguments):
        pass

    assert {name: hint for name, (hint, _) in declared(Later).items()} == before
    assert Later("out", hub_model_id=None).hub_model_id is None


def test_replace_with_spellings_that_are_fields():
    args = TrainingArguments("out", use_cpu=True)
    assert dataclasses.replace(args, learning_rate=1.0).device_spec == "cpu"
    assert dataclasses.replace(args, use_cpu=False).device_spec is None
    assert dataclasses.replace(args, sharding="stage2").fsdp == "shard_grad_op"
    assert copy.copy(args).use_cpu is True


def test_spellings_are_not_stored():
    assert {"use_cpu", "fsdp"}.isdisjoint(TrainingArguments("out", use_cpu=True).to_dict())
    assert json.loads(TrainingArguments("out", use_cpu=True).to_json_string())["device"] == "cpu"
