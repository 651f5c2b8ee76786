"""signatures.pyi, which type checkers read, says what the arguments do when they run."""

import ast
import os
import typing
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from oneloop import OptimizerNames, enums
from oneloop.arguments import (
    AcceleratorConfig,
    CompressionArguments,
    Seq2SeqTrainingArguments,
    TrainingArguments,
    given,
    typing_stub,
    values,
)
from oneloop.arguments.aliases import resolve
from oneloop.arguments.fixed import FIXED_ARGUMENTS
from oneloop.arguments.paddleformers import NO_ATTRIBUTES

CLASSES = {
    "ArgumentFields": TrainingArguments,
    "GenerationFields": Seq2SeqTrainingArguments,
    "CompressionFields": CompressionArguments,
}
NAMES = {
    **vars(enums),
    "OptimizerNames": OptimizerNames,
    **vars(given),
    "AcceleratorConfig": AcceleratorConfig,
    "Any": Any,
    "Literal": Literal,
    "Mapping": Mapping,
}
# One value of each kind that an argument may be given, in each form that its type allows.
GIVEN = {
    "Number": (1, 0.5, "1e-4", np.float32(0.5), np.int64(3)),
    "Integer": (3, 1e3, "12", np.int64(3)),
    "bool": (True, np.True_, 0, 1, *values.TRUE_WORDS, *values.FALSE_WORDS, "True", "False"),  # text, of a command line
    "Text": ("a", Path("a")),
    "Words": ("a,b", "a b", '["a", "b"]', ["a"], ("a", "b"), {"a"}, frozenset("a")),
    "JsonDict": ({"a": 1}, '{"a": 1}'),
}
CONVERTERS = {
    "Number": (values.to_number, values.to_float, values.to_steps),
    "Integer": (values.to_int,),
    "bool": (values.to_bool,),
    "Text": (values.to_text,),
    "Words": (values.to_words,),
    "JsonDict": (values.to_mapping, values.to_config),
}


def _stub_classes() -> dict[str, ast.ClassDef]:
    tree = ast.parse(typing_stub.STUB.read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _constructor(name: str) -> ast.arguments:
    body = _stub_classes()[name].body
    return next(node.args for node in body if isinstance(node, ast.FunctionDef) and node.name == "__init__")


def _is(value: Any, hint: Any) -> bool:
    """Whether a stored value has this type; what a container holds is looked at too."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin is list:
        return isinstance(value, list) and all(_is(item, inner[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(_is(key, inner[0]) for key in value)
    if origin is None:
        number = hint is float and isinstance(value, int) and not isinstance(value, bool)
        return number or (isinstance(value, hint) and not (hint is int and isinstance(value, bool)))
    return any(value is None if member is type(None) else _is(value, member) for member in inner)


def test_the_stub_is_up_to_date():
    assert typing_stub.STUB.read_text(encoding="utf-8") == typing_stub.render()
    assert typing_stub.main(["--check"]) == 0


def test_a_stub_that_is_not_is_found(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(typing_stub, "STUB", tmp_path / "signatures.pyi")
    assert typing_stub.main(["--check"]) == 1
    assert "python -m oneloop.arguments.typing_stub" in capsys.readouterr().err
    assert typing_stub.main([]) == 0
    assert typing_stub.main(["--check"]) == 0


@pytest.mark.parametrize("name", CLASSES)
def test_constructors_take_every_spelling_and_nothing_else(name):
    cls, signature = CLASSES[name], _constructor(name)
    assert [item.arg for item in signature.args] == ["self", "output_dir"] and len(signature.defaults) == 1
    typed = [item.arg for item in signature.kwonlyargs]
    stored = {item.name for item in fields(cls)} - {"output_dir"}
    assert len(typed) == len(set(typed))
    assert set(typed) == stored | set(cls.__aliases__) | set(FIXED_ARGUMENTS)
    resolve(cls, dict.fromkeys([*stored, *cls.__aliases__]))  # raises for a name that is not known


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize(
    "given_values",
    [
        {},
        {"eval_strategy": "steps", "save_strategy": "epoch", "report_to": "none", "optim": "sgd", "eval_steps": "3"},
        {"fsdp": True, "fsdp_config": '{"min_num_params": 1}', "resume_from_checkpoint": "True", "profile": True},
        {
            "load_best_model_at_end": "yes",
            "optim_args": {"a": 1},
            "lr_scheduler_kwargs": '{"a": 1}',
            "label_names": "a,b",
        },
        {"run_name": None, "logging_dir": None, "disable_tqdm": None, "include_for_metrics": None, "max_steps": 1e3},
        {"deepspeed": {}, "accelerator_config": {"even_batches": True}, "push_to_hub": True, "device": "cpu"},
    ],
)
def test_attributes_hold_what_their_type_says(name, given_values):
    cls = CLASSES[name]
    args = cls("output", **given_values)
    for entry in typing_stub._entries(cls):
        # Properties, which ask the framework; and what is no attribute.
        if entry.name not in ("device", "_n_gpu", *NO_ATTRIBUTES):
            value, hint = getattr(args, entry.name), eval(entry.stored, dict(NAMES))
            assert _is(value, hint), f"{entry.name} is {value!r}, and its type {entry.stored}"


@pytest.mark.parametrize("kind", GIVEN)
def test_what_a_type_admits_is_converted(kind):
    for convert in CONVERTERS[kind]:
        assert convert.__annotations__["value"] in (kind, "Config", bool)
        for value in GIVEN[kind]:
            convert("argument", value)


def test_a_config_is_also_a_file_or_an_object(tmp_path):
    (tmp_path / "config.json").write_text('{"a": 1}')

    class Settings:
        def to_dict(self):
            return {"a": 1}

    for value in (Settings(), tmp_path / "config.json", os.fspath(tmp_path / "config.json")):
        assert values.to_config("argument", value) == {"a": 1}


@pytest.mark.parametrize("name", CLASSES)
def test_defaults_are_those_of_the_constructor(name):
    cls, signature = CLASSES[name], _constructor(name)
    for item, default in zip(signature.kwonlyargs, signature.kw_defaults):
        field = cls.__dataclass_fields__.get(item.arg)
        if field is not None and item.arg not in cls.__spelled_fields__ and ast.unparse(default) != "...":
            assert ast.literal_eval(default) == field.default, item.arg
