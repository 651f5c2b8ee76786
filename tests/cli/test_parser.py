# ruff: noqa: UP006, UP007, UP035, UP045 (the older ways to write a type are cases here)
from __future__ import annotations

import argparse
import builtins
import enum
import json
import os
import subprocess
import sys
from dataclasses import InitVar, dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Dict, List, Literal, NewType, Optional, Tuple, Union

import pytest

from oneloop.arguments import Seq2SeqTrainingArguments, TrainingArguments
from oneloop.arguments.fields import stored_fields
from oneloop.errors import ArgumentError, MissingPackageError, UnknownArgumentError
from oneloop.parser import ArgumentParser, HfArgumentParser, PdArgumentParser


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


Meters = NewType("Meters", float)


@dataclass
class ModelArguments:
    """What the model is.

    More that no help page needs.
    """

    model_name: str = field(metadata={"help": "A name or a folder."})
    max_seq_length: int = 128


@dataclass
class DataArguments:
    dataset: str = field(default=None, metadata={"help": "Keeps 90% for training."})
    names: list[str] = field(default_factory=lambda: ["train", "dev"])
    shuffle: bool = True
    cache: bool = False


@dataclass
class Renamed:
    rate: float = field(default=0.1, metadata={"help": "The rate.", "aliases": ("learning_rate",), "group": "Speed"})
    fast: bool = field(default=False, metadata={"aliases": ["-f", "--quick-mode"], "group": "Speed"})
    kind: str = field(default="a", metadata={"choices": ["a", "b"], "help": "Already 5%% escaped.", "group": "Kinds"})
    kinds: List[str] = field(default_factory=list, metadata={"choices": ["none", "x", "y"]})


@dataclass
class Alias:
    name: str
    target: str
    type: Any = None
    merges: bool = False


@dataclass(init=False)
class Training:
    """Resolves its own aliases, as TrainingArguments does, and remembers what it was called with."""

    output_dir: str
    speed: float = field(default=0.1, metadata={"aliases": ("lr",)})
    device: str = field(default="gpu", metadata={"choices": ["cpu"], "convert": None})
    evaluation: bool | str = "no"
    config: dict | None = field(default=None, metadata={"convert": None, "group": "More", "shown": "the model's"})
    words: list[str] | None = field(default=None, metadata={"convert": None, "public": "tags", "group": "More"})
    __elsewhere__ = {"beams": "Generating"}
    __aliases__ = {
        "min_size": Alias("min_size", "config", int, merges=True),
        "tags": Alias("tags", "words"),
        "lr": Alias("lr", "speed"),
        "no_gpu": Alias("no_gpu", "device", bool),
        "eval_strategy": Alias("eval_strategy", "evaluation", "bool | str"),
    }

    def __init__(self, **given):
        self.given = given
        if "lr" in given and given.get("speed", given["lr"]) != given["lr"]:
            raise ArgumentError("lr and speed differ")
        if given.get("speed", 1) < 0:
            raise ArgumentError(f"speed must not be negative, got {given['speed']}: 100% wrong")


def one(hint, words, **field_options):
    """The value that a field `x` of this type gets from a command line."""
    field_options = field_options or {"default": None}
    cls = make_dataclass("One", [("x", hint, field(**field_options))], namespace={"__module__": __name__})
    (result,) = ArgumentParser(cls).parse_args_into_dataclasses(words, look_for_args_file=False)
    return result.x


def refused(capsys, parser, words, **options):
    """The error text of a command line that must exit with status 2."""
    with pytest.raises(SystemExit) as exit_info:
        parser.parse_args_into_dataclasses(words, **options)
    assert exit_info.value.code == 2
    # The usage and the message may be wrapped or not; compare on one line.
    return " ".join(capsys.readouterr().err.split())


# --- which classes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "classes",
    [
        (ModelArguments, DataArguments),
        ((ModelArguments, DataArguments),),
        ([ModelArguments, DataArguments],),
        (iter([ModelArguments, DataArguments]),),
    ],
    ids=["varargs", "tuple", "list", "iterator"],
)
def test_takes_varargs_or_one_iterable(classes):
    model, data = ArgumentParser(*classes).parse_args_into_dataclasses(["--model_name", "bert", "--dataset", "d"])
    assert model == ModelArguments("bert", 128)
    assert data == DataArguments("d", ["train", "dev"])


def test_takes_one_class_and_the_keyword_of_peers():
    assert ArgumentParser(DataArguments).parse_args_into_dataclasses([]) == (DataArguments(),)
    assert ArgumentParser(dataclass_types=DataArguments).parse_args_into_dataclasses([]) == (DataArguments(),)
    assert HfArgumentParser is ArgumentParser
    assert PdArgumentParser is ArgumentParser


@pytest.mark.parametrize("wrong", [int, DataArguments(), "DataArguments", 3])
def test_what_is_no_dataclass_type_is_refused(wrong):
    with pytest.raises(TypeError, match="expects dataclasses"):
        ArgumentParser(wrong)


def test_same_field_in_two_classes_names_both():
    other = make_dataclass("Other", [("dataset", str, "x")])
    with pytest.raises(ArgumentError, match=r"DataArguments\.dataset and Other\.dataset.*--dataset"):
        ArgumentParser(DataArguments, other)


def test_same_short_flag_twice_names_both():
    other = make_dataclass("Other", [("force", bool, field(default=False, metadata={"aliases": ["-f"]}))])
    with pytest.raises(ArgumentError, match=r"Renamed\.fast and Other\.force.*-f"):
        ArgumentParser(Renamed, other)


def test_same_alias_twice_names_both():
    other = make_dataclass("Other", [("pace", float, field(default=1.0, metadata={"aliases": ["learning_rate"]}))])
    with pytest.raises(ArgumentError, match=r"Renamed\.rate and Other\.pace.*--learning_rate"):
        ArgumentParser(Renamed, other)


@pytest.mark.parametrize("turn", [False, True])
def test_a_field_beats_the_alias_of_another_class(turn):
    other = make_dataclass("Other", [("learning_rate", float, 1.0)])
    classes = [other, Renamed] if turn else [Renamed, other]
    made = ArgumentParser(classes).parse_args_into_dataclasses(["--learning_rate", "7"])
    by_class = {type(each): each for each in made}
    assert by_class[other].learning_rate == 7.0
    assert by_class[Renamed].rate == 0.1


def test_a_field_named_help_is_an_error_that_says_so():
    with pytest.raises(ArgumentError, match=r"One\.help.*Rename"):
        ArgumentParser(make_dataclass("One", [("help", str, "x")]))


# --- values ----------------------------------------------------------------------------------------------------------

BOOLS = [
    ([], "default"),
    (["--x"], True),
    (["--no_x"], False),
    (["--no-x"], False),
    *(([word_form], True) for word_form in ("--x=true", "--x=1")),
    *((["--x", word], True) for word in ("true", "True", "yes", "y", "1", "on", "t")),
    *((["--x", word], False) for word in ("false", "FALSE", "no", "n", "0", "off", "f")),
]


@pytest.mark.parametrize("default", [True, False])
@pytest.mark.parametrize("hint", [bool, Optional[bool], "bool | None"])
@pytest.mark.parametrize(("words", "value"), BOOLS)
def test_bools(hint, default, words, value):
    assert one(hint, words, default=default) is (default if value == "default" else value)


@pytest.mark.parametrize(
    ("hint", "words", "value"),
    [
        (int, ["--x", "-3"], -3),
        (int, ["--x=1_000"], 1000),
        (float, ["--x", "1"], 1.0),
        (float, ["--x", "-1e-5"], -1e-5),
        (float, ["--x", "-.5"], -0.5),
        (str, ["--x", "none"], "none"),
        (str, ["--x", ""], ""),
        (str, ["--x=--y"], "--y"),
        (str, ["--x", "a", "--x", "b"], "b"),
        (Path, ["--x", "a/b"], Path("a/b")),
        (Any, ["--x", "3"], "3"),
        (Meters, ["--x", "3"], 3.0),
        (Annotated[int, "note"], ["--x", "3"], 3),
        (Optional[int], ["--x", "None"], None),
        (Optional[int], ["--x", "none"], None),
        (Optional[str], ["--x", "none"], None),
        (Optional[int], ["--x", "3"], 3),
        (int | None, ["--x", "3"], 3),
        (Union[int, float], ["--x", "3"], 3),
        (Union[float, int], ["--x", "0.5"], 0.5),
        (Union[str, int], ["--x", "3"], 3),
        (Union[int, str], ["--x", "3a"], "3a"),
        (Union[str, os.PathLike], ["--x", "a"], "a"),
        (Union[bool, str, None], ["--x"], True),
        (Union[bool, str, None], ["--x", "false"], False),
        (Union[bool, str, None], ["--x", "1"], "1"),
        (Union[bool, str, None], ["--x", "last"], "last"),
        (Color, ["--x", "blue"], Color.BLUE),
        (Optional[Color], ["--x", "none"], None),
        (Union[Color, str], ["--x", "green"], "green"),
        (Level, ["--x", "2"], Level.HIGH),
        (Literal["a", 2, 0.5, True], ["--x", "a"], "a"),
        (Literal["a", 2, 0.5, True], ["--x", "2"], 2),
        (Literal["a", 2, 0.5, True], ["--x", "0.5"], 0.5),
        (Literal["a", 2, 0.5, True], ["--x", "true"], True),
        (Literal["a", None], ["--x", "none"], None),
        (Optional[Literal["a", "b"]], ["--x", "b"], "b"),
        (List[str], ["--x", "a", "b", "c"], ["a", "b", "c"]),
        (list[str], ["--x", '["a", "b c"]'], ["a", "b c"]),
        (list[str], ["--x", "[PAD]", "[CLS]"], ["[PAD]", "[CLS]"]),
        (list[int], ["--x", "-1", "2"], [-1, 2]),
        (list[int], ["--x", '[1, "2"]'], [1, 2]),
        (list[int], ["--x"], []),
        (list, ["--x", "a"], ["a"]),
        (list[Color], ["--x", "red", "blue"], [Color.RED, Color.BLUE]),
        (list[list[int]], ["--x", "[[1], [2, 3]]"], [[1], [2, 3]]),
        (list[dict], ["--x", '{"a": 1}', '{"b": 2}'], [{"a": 1}, {"b": 2}]),
        (Optional[List[int]], ["--x", "1"], [1]),
        (Optional[List[int]], ["--x", "none"], None),
        (Optional[List[int]], ["--x", "[]"], []),
        (Union[str, list[str], None], ["--x", "a"], "a"),
        (Union[str, list[str], None], ["--x", "a", "b"], ["a", "b"]),
        (Union[str, list[str], None], ["--x", "none"], "none"),
        (Optional[list[str]], ["--x", "none"], ["none"]),
        (Optional[list[str]], ["--x", "None"], None),
        (Union[bool, str, list[str]], ["--x"], True),
        (Tuple[int, ...], ["--x", "1", "2", "3"], (1, 2, 3)),
        (tuple[int, float], ["--x", "1", "2"], (1, 2.0)),
        (tuple[float, float], ["--x", "[0.9, 0.99]"], (0.9, 0.99)),
        (set[int], ["--x", "1", "1"], {1}),
        (dict, ["--x", '{"a": {"b": [1]}}'], {"a": {"b": [1]}}),
        (Dict[str, float], ["--x", '{"a": "0.5"}'], {"a": 0.5}),
        (dict[int, str], ["--x", '{"3": "c"}'], {3: "c"}),
        (Optional[dict], ["--x", "none"], None),
        (Union[str, dict], ["--x", '{"a": 1}'], {"a": 1}),
        (Union[str, dict], ["--x", "ds.json"], "ds.json"),
        (Union[str, dict], ["--x", "{{ template }}"], "{{ template }}"),
    ],
)
def test_values_on_the_command_line(hint, words, value):
    got = one(hint, words)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("hint", "words", "message"),
    [
        (int, ["--x", "3.5"], "argument --x: '3.5' is not an integer"),
        (Optional[float], ["--x", "abc"], "'abc' is not a number or none"),
        (bool, ["--x", "maybe"], "'maybe' is not true or false"),
        (Color, ["--x", "green"], "'green' is not one of red, blue"),
        (Literal["a", 2], ["--x", "b"], "'b' is not one of a, 2"),
        (list[int], ["--x", "1", "b"], "'b' is not an integer"),
        (list[int], ["--x", "[1, "], "is not valid JSON"),
        (tuple[int, int], ["--x", "1"], "expected 2 values, got 1"),
        (dict, ["--x", "a=1"], "'a=1' is not a JSON object"),
        (dict, ["--x", '{"a": '], "is not valid JSON"),
        (dict, ["--x", "[1]"], "'[1]' is not a JSON object"),
        (int, ["--x"], "expected one argument"),
        (type, ["--x", "int"], "'int' is not a valid type"),
    ],
)
def test_wrong_values_exit_with_a_message(capsys, hint, words, message):
    parser = ArgumentParser(make_dataclass("One", [("x", hint, None)]))
    assert message in refused(capsys, parser, words)


def test_string_annotations_are_resolved():
    # This module postpones annotations, so every class in it is a case; a few shapes that need evaluating:
    assert isinstance(DataArguments.__dataclass_fields__["shuffle"].type, str)
    assert one("Optional[Color]", ["--x", "red"]) is Color.RED
    assert one('Optional["Color"]', ["--x", "red"]) is Color.RED


def test_an_annotation_that_cannot_be_resolved_names_the_field():
    with pytest.raises(ArgumentError, match=r"'Missing' of One\.x cannot be resolved"):
        ArgumentParser(make_dataclass("One", [("x", "Missing", None)]))


def test_init_vars_and_fields_outside_init_are_no_options(capsys):
    @dataclass
    class Odd:
        x: int = 1
        seed: InitVar[int] = 3
        total: Unresolvable = field(init=False, default=None)  # noqa: F821

        def __post_init__(self, seed):
            self.total = self.x + seed

    parser = ArgumentParser(Odd)
    assert parser.parse_args_into_dataclasses(["--x", "4"])[0].total == 7
    assert "unknown option --total" in refused(capsys, parser, ["--total", "4"])
    assert "unknown option --seed" in refused(capsys, parser, ["--seed", "4"])


def test_default_factories_give_fresh_values():
    parser = ArgumentParser(DataArguments)
    first = parser.parse_args_into_dataclasses([])[0]
    first.names.append("test")
    assert parser.parse_args_into_dataclasses([])[0].names == ["train", "dev"]


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--max_seq_length", "5"], ["--max-seq-length", "5"], ["--max-seq-length=5"]])
def test_dashes_and_underscores_are_alike(words):
    model, *_ = ArgumentParser(ModelArguments).parse_args_into_dataclasses(["--model-name", "m", *words])
    assert model.max_seq_length == 5


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--learning_rate", "3"], {"rate": 3.0}),
        (["--learning-rate=3"], {"rate": 3.0}),
        (["-f"], {"fast": True}),
        (["--quick_mode", "false"], {"fast": False}),
        (["--no-quick-mode"], {"fast": False}),
        (["--no_fast"], {"fast": False}),
        (["--learning_rate", "3", "--rate", "3.0"], {"rate": 3.0}),
        (["--kind", "b"], {"kind": "b"}),
        (["--kinds", "none"], {"kinds": ["none"]}),
        (["--kinds", "x", "y"], {"kinds": ["x", "y"]}),
    ],
)
def test_aliases_and_choices_in_metadata(words, expected):
    assert ArgumentParser(Renamed).parse_args_into_dataclasses(words) == (Renamed(**expected),)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rate", "1", "--learning_rate", "2"], "--rate and --learning_rate are aliases of one argument"),
        (["--kind", "c"], "argument --kind: 'c' is not one of a, b"),
        (["--kinds", "x", "z"], "'z' is not one of none, x, y"),
    ],
)
def test_contradictions_and_choices_are_refused(capsys, words, message):
    assert message in refused(capsys, ArgumentParser(Renamed), words)


def test_listed_none_is_a_word_even_where_none_is_allowed():
    options = {"default": "all", "metadata": {"choices": ["all", "none"]}}
    assert one(Optional[str], ["--x", "none"], **options) == "none"
    assert one(Optional[list[str]], ["--x", "none"], **options) == ["none"]
    assert one(Optional[str], ["--x", "None"], **options) is None


def test_a_real_field_keeps_its_name_from_a_negation():
    cls = make_dataclass("Both", [("cuda", bool, True), ("no_cuda", bool, False)])
    (both,) = ArgumentParser(cls).parse_args_into_dataclasses(["--no_cuda"])
    assert (both.cuda, both.no_cuda) == (True, True)


def test_only_what_was_given_reaches_the_constructor():
    (made,) = ArgumentParser(Training).parse_args_into_dataclasses(["--output_dir", "out", "--lr", "2"])
    assert made.given == {"output_dir": "out", "lr": 2.0}
    (made,) = ArgumentParser(Training).parse_args_into_dataclasses(["--output_dir", "out"])
    assert made.given == {"output_dir": "out"}


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["--no_gpu"], {"no_gpu": True}),
        (["--no-gpu", "false"], {"no_gpu": False}),
        (["--eval_strategy", "steps"], {"eval_strategy": "steps"}),
        (["--no_eval_strategy"], {"eval_strategy": False}),
        # What we cannot read, or would forbid, the class may understand: it gets the words.
        (["--device", "tpu"], {"device": "tpu"}),
        (["--config", "file.json"], {"config": "file.json"}),
        (["--config", '{"a": 1}'], {"config": {"a": 1}}),
        (["--words", "a,b"], {"words": "a,b"}),
        (["--words", "a", "b"], {"words": ["a", "b"]}),
        (["--tags", "none"], {"tags": "none"}),
    ],
)
def test_a_class_with_its_own_aliases_gets_them_as_written(words, given):
    (made,) = ArgumentParser(Training).parse_args_into_dataclasses(["--output_dir", "out", *words])
    assert made.given == {"output_dir": "out", **given}


def test_errors_of_the_dataclass_end_the_command_line_but_propagate_from_dicts(capsys):
    parser = ArgumentParser(Training)
    text = refused(capsys, parser, ["--output_dir", "out", "--speed", "-1"])
    assert "speed must not be negative, got -1.0: 100% wrong" in text
    assert "lr and speed differ" in refused(capsys, parser, ["--output_dir", "o", "--speed", "1", "--lr", "2"])
    with pytest.raises(ArgumentError, match="must not be negative"):
        parser.parse_dict({"output_dir": "out", "speed": -1})


def test_other_errors_of_the_dataclass_are_not_hidden():
    @dataclass
    class Broken:
        x: int = 1

        def __post_init__(self):
            raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError, match="a bug"):
        ArgumentParser(Broken).parse_args_into_dataclasses([])


# --- required, unknown, by hand --------------------------------------------------------------------------------------


def test_required_options(capsys):
    cls = make_dataclass("Two", [("a", int), ("b", str)])
    assert "the following options are required: --a, --b" in refused(capsys, ArgumentParser(cls), [])
    assert "the following option is required: --b" in refused(capsys, ArgumentParser(cls), ["--a", "1"])


def test_an_alias_satisfies_a_required_field():
    cls = make_dataclass("Need", [("folder", str, field(metadata={"aliases": ["output_dir"]}))])
    assert ArgumentParser(cls).parse_args_into_dataclasses(["--output-dir", "o"])[0].folder == "o"
    assert ArgumentParser(cls).parse_dict({"output_dir": "o"})[0].folder == "o"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max_seq_lenght", "3"], "unknown option --max_seq_lenght (did you mean --max_seq_length?)"),
        (["--max-seq-len=3"], "unknown option --max-seq-len (did you mean --max_seq_length?)"),
        (["--max_seq", "3"], "unknown option --max_seq (did you mean --max_seq_length?)"),
        (["--length", "3"], "unknown option --length (did you mean --max_seq_length?)"),
        (["--by_hnd", "3"], "unknown option --by_hnd (did you mean --by_hand?)"),
        (["-max_seq_length", "3"], "unknown option -max_seq_length (did you mean --max_seq_length?)"),
        (["--zzz", "3", "--max_seq_lengt", "4"], "unknown option --zzz; unknown option --max_seq_lengt (did you mean"),
        (["--beams", "4"], "unknown option --beams (it belongs to Generating)"),
        (["stray"], "unexpected argument 'stray'"),
    ],
)
def test_unknown_options_suggest_the_nearest(capsys, words, message):
    parser = ArgumentParser(ModelArguments, Training)
    parser.add_argument("--by_hand")
    text = refused(capsys, parser, ["--model_name", "m", "--output_dir", "o", *words])
    assert message in text
    assert "'3'" not in text


def test_remaining_strings_are_returned():
    parser = ArgumentParser(DataArguments)
    data, rest = parser.parse_args_into_dataclasses(
        ["--cache", "--foo", "1", "--dataset", "d", "--bar=2"], return_remaining_strings=True
    )
    assert data == DataArguments("d", cache=True)
    assert rest == ["--foo", "1", "--bar=2"]
    assert parser.parse_args_into_dataclasses([], return_remaining_strings=True) == (DataArguments(), [])


def test_hand_added_arguments_come_as_a_namespace():
    parser = ArgumentParser(DataArguments, description="d")
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("path", nargs="?")
    data, space = parser.parse_args_into_dataclasses(["p", "--dataset", "d"])
    assert data.dataset == "d"
    assert space == argparse.Namespace(local_rank=-1, path="p")
    data, space, rest = parser.parse_args_into_dataclasses(
        ["--local_rank", "3", "--foo"], return_remaining_strings=True
    )
    assert (space.local_rank, rest) == (3, ["--foo"])


def test_plain_parse_args_shows_only_what_was_given():
    assert ArgumentParser(DataArguments).parse_args(["--cache"]) == argparse.Namespace(cache=True)


def test_the_command_line_of_the_process_is_the_default(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--dataset", "from_argv"])
    assert ArgumentParser(DataArguments).parse_args_into_dataclasses()[0].dataset == "from_argv"


@pytest.mark.parametrize("argv", [[""], ["-c"]])
def test_a_process_without_a_script_has_no_args_file(monkeypatch, argv):
    monkeypatch.setattr(sys, "argv", argv)
    assert ArgumentParser(DataArguments).parse_args_into_dataclasses() == (DataArguments(),)


# --- args files ------------------------------------------------------------------------------------------------------


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "train.py")])
    return tmp_path / "train.args"


def test_args_file_beside_the_script_is_beaten_by_the_command_line(script):
    script.write_text("# a comment --cache\n--dataset 'two words'\n--names a b\n--no_shuffle\n", encoding="utf-8")
    parser = ArgumentParser(DataArguments)
    assert parser.parse_args_into_dataclasses([]) == (DataArguments("two words", ["a", "b"], False, False),)
    (data,) = parser.parse_args_into_dataclasses(["--names", "c", "--shuffle"])
    assert data == DataArguments("two words", ["c"], True, False)
    assert parser.parse_args_into_dataclasses([], look_for_args_file=False) == (DataArguments(),)


def test_the_command_line_beats_a_file_through_another_spelling(script):
    script.write_text("--learning_rate 1 --fast")
    (made,) = ArgumentParser(Renamed).parse_args_into_dataclasses(["--rate", "2", "--no_quick_mode"])
    assert (made.rate, made.fast) == (2.0, False)
    script.write_text("--device cpu --lr 1 --output_dir out")
    (made,) = ArgumentParser(Training).parse_args_into_dataclasses(["--no_gpu", "false", "--speed", "2"])
    assert made.given == {"output_dir": "out", "no_gpu": False, "speed": 2.0}


def test_a_spelling_that_adds_does_not_undo_the_file(script):
    script.write_text("--config '{}' --min_size 1 --output_dir out")
    parser = ArgumentParser(Training)
    (made,) = parser.parse_args_into_dataclasses(["--min_size", "2"])
    assert made.given == {"output_dir": "out", "config": {}, "min_size": 2}
    (made,) = parser.parse_args_into_dataclasses(["--config", "c.json"])
    assert made.given == {"output_dir": "out", "config": "c.json"}


def test_a_named_file_replaces_the_one_beside_the_script(script, tmp_path):
    script.write_text("--cache")
    named = tmp_path / "other.args"
    named.write_text('--dataset C:\\data --names \'["a b", "c"]\'')
    (data,) = ArgumentParser(DataArguments).parse_args_into_dataclasses([], args_filename=named)
    assert data == DataArguments("C:\\data", ["a b", "c"])


@pytest.mark.parametrize("flag", ["--args_file", "--args-file"])
def test_files_named_by_a_flag_later_beats_earlier(script, tmp_path, flag):
    first, second = tmp_path / "a", tmp_path / "b"
    script.write_text("--dataset script --cache")
    first.write_text("--dataset first --names first")
    second.write_text("--names second")
    (data,) = ArgumentParser(DataArguments).parse_args_into_dataclasses(
        ["--args_file", str(first), "--shuffle", "no", f"--args-file={second}"], args_file_flag=flag
    )
    assert data == DataArguments("first", ["second"], False, True)


def test_hand_added_arguments_and_files_together(script):
    script.write_text("--extra 3 --dataset d")
    parser = ArgumentParser(DataArguments)
    parser.add_argument("--extra", type=int, required=True)
    data, space = parser.parse_args_into_dataclasses(["--cache"])
    assert (data.dataset, data.cache, space) == ("d", True, argparse.Namespace(extra=3))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--datast x", "unknown option --datast in {path} (did you mean --dataset?)"),
        ("--cache maybe", "'maybe' is not true or false (in {path})"),
        ("--dataset 'x", "the args file {path} has an unclosed quote"),
    ],
)
def test_errors_in_args_files_name_the_file(capsys, script, text, message):
    script.write_text(text)
    assert message.format(path=script) in refused(capsys, ArgumentParser(DataArguments), [])


def test_a_missing_named_args_file_is_an_error(capsys, tmp_path):
    missing = tmp_path / "gone.args"
    assert str(missing) in refused(capsys, ArgumentParser(DataArguments), [], args_filename=missing)


# --- dicts, JSON, YAML -----------------------------------------------------------------------------------------------


def from_dict(cls, values, _path):
    return ArgumentParser(cls).parse_dict(values)[0]


def from_json(cls, values, path):
    file = path / "run.json"
    file.write_text(json.dumps(values), encoding="utf-8")
    return ArgumentParser(cls).parse_json_file(file)[0]


def from_yaml(cls, values, path):
    yaml = pytest.importorskip("yaml")
    file = path / "run.yaml"
    file.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    return ArgumentParser(cls).parse_yaml_file(str(file))[0]


@pytest.fixture(params=[from_dict, from_json, from_yaml])
def load(request, tmp_path):
    return lambda cls, values: request.param(cls, values, tmp_path)


@pytest.mark.parametrize(
    ("hint", "given", "value"),
    [
        (float, "1e-5", 1e-5),
        (int, "3", 3),
        (int, 3, 3),
        (bool, "no", False),
        (bool, True, True),
        (str, "none", "none"),
        (Optional[str], "none", "none"),
        (Optional[int], "none", None),
        (Optional[int], None, None),
        (Color, "blue", Color.BLUE),
        (Level, 2, Level.HIGH),
        (Literal["a", 2], 2, 2),
        (Union[Literal["a"], int], 5, 5),
        (list[int], ["1", 2], [1, 2]),
        (list[str], "a", ["a"]),
        (list[str], '["a", "b"]', ["a", "b"]),
        (Union[str, list[str]], ["a", "b"], ["a", "b"]),
        (tuple[float, float], ["1", 2.5], (1.0, 2.5)),
        (Path, "a", Path("a")),
        (dict, {"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}),
        (dict[str, int], {"a": "1"}, {"a": 1}),
        (dict, '{"a": 1}', {"a": 1}),
        (Union[str, dict], '{"a": 1}', '{"a": 1}'),
        (Union[bool, str], "true", "true"),
    ],
)
def test_values_in_dicts_and_files(load, hint, given, value):
    got = load(make_dataclass("One", [("x", hint, 0)]), {"x": given}).x
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    "values",
    [{"rate": 2, "fast": True}, {"learning_rate": "2", "quick_mode": "yes"}, {"learning-rate": 2, "quick-mode": True}],
)
def test_aliases_are_keys(load, values):
    assert load(Renamed, values) == Renamed(rate=2, fast=True)


def test_a_class_with_its_own_aliases_gets_keys_as_written(load):
    assert load(Training, {"output_dir": "o", "lr": "2", "no_gpu": True}).given == {
        "output_dir": "o",
        "lr": 2.0,
        "no_gpu": True,
    }


def test_unknown_keys_are_named_all_at_once(load):
    with pytest.raises(UnknownArgumentError) as info:
        load(DataArguments, {"datset": 1, "cache": True, "quux": 2, "nmaes": []})
    text = str(info.value)
    assert "unknown keys 'datset' (did you mean 'dataset'?), 'quux', 'nmaes' (did you mean 'names'?)" in text
    assert "DataArguments" in text


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rate": "x", "fast": "perhaps"}, "rate: 'x' is not a number; fast: 'perhaps' is not true or false"),
        ({"kind": "z"}, "kind: 'z' is not one of a, b"),
        ({"rate": 1, "learning_rate": 2}, "rate and learning_rate are aliases of one argument"),
    ],
)
def test_wrong_values_are_named_with_their_key(load, values, message):
    with pytest.raises(ArgumentError, match=message):
        load(Renamed, values)


@pytest.mark.parametrize("hint", [Literal["a", 1], Color])
def test_a_value_outside_the_choices_is_refused_also_when_it_is_no_text(hint):
    with pytest.raises(ArgumentError, match="x: 7 is not one of"):
        ArgumentParser(make_dataclass("One", [("x", hint, None)])).parse_dict({"x": 7})


def test_required_keys(load):
    with pytest.raises(ArgumentError, match="the following key is required: model_name"):
        load(ModelArguments, {"max_seq_length": 3})


def test_extra_keys_may_be_allowed_and_the_dict_is_not_modified():
    values = {"dataset": "d", "names": ("a",), "extra": 1, 3: 4}
    (data,) = ArgumentParser(DataArguments).parse_dict(values, allow_extra_keys=True)
    assert data == DataArguments("d", ["a"])
    assert values == {"dataset": "d", "names": ("a",), "extra": 1, 3: 4}


def test_one_dict_serves_several_classes():
    model, data = ArgumentParser(ModelArguments, DataArguments).parse_dict({"model_name": "m", "dataset": "d"})
    assert (model, data) == (ModelArguments("m"), DataArguments("d"))


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ('{"dataset": ', ArgumentError, "is not valid JSON"),
        ("[1, 2]", ArgumentError, "contains list; expected a mapping from argument names to values"),
        ('{"datset": 1}', UnknownArgumentError, "did you mean 'dataset'"),
        ('{"cache": "perhaps"}', ArgumentError, "cache: 'perhaps' is not true or false"),
    ],
)
@pytest.mark.parametrize("kind", ["json", "yaml"])
def test_errors_in_files_name_the_file(tmp_path, kind, text, error, message):
    file = tmp_path / f"run.{kind}"
    file.write_text(text)
    with pytest.raises(error, match=message.replace("JSON", kind.upper())) as info:
        getattr(ArgumentParser(DataArguments), f"parse_{kind}_file")(file)
    assert str(info.value).startswith(str(file))


def test_errors_of_the_dataclass_name_the_file(tmp_path):
    file = tmp_path / "run.json"
    file.write_text('{"output_dir": "o", "speed": -1}')
    with pytest.raises(ArgumentError, match=r"run\.json: speed must not be negative"):
        ArgumentParser(Training).parse_json_file(file)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"gone\.json"):
        ArgumentParser(DataArguments).parse_json_file(tmp_path / "gone.json")


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("json", '{"max_steps": 1, "seed": 2, "max_steps": 3}', "'max_steps' occurs twice"),
        ("json", '{"lr_scheduler_kwargs": {"a": 1, "a": 2}}', "'a' occurs twice"),
        ("yaml", "max_steps: 1\nseed: 2\nmax_steps: 3\n", "'max_steps' occurs twice, in line 3"),
        ("yaml", "lr_scheduler_kwargs:\n  a: 1\n  a: 2\n", "'a' occurs twice, in line 3"),
        ("json", '{"max_steps": ' + "[" * 100_000, "nested too deeply"),
        ("json", '{"max_steps": ' + "9" * 5000 + "}", "not valid JSON"),
        ("json", b'{"run_name": "caf\xe9"}', "is not UTF-8"),
        ("yaml", b"run_name: caf\xe9", "is not UTF-8"),
    ],
)
def test_files_that_would_be_read_wrongly(tmp_path, kind, text, words):
    pytest.importorskip("yaml")
    file = tmp_path / f"run.{kind}"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ArgumentError, match=words) as error:
        getattr(ArgumentParser(TrainingArguments), f"parse_{kind}_file")(file)
    assert file.name in str(error.value)


def test_a_merge_in_yaml_is_no_repeat(tmp_path):
    pytest.importorskip("yaml")
    file = tmp_path / "run.yaml"
    file.write_text("lr_scheduler_kwargs:\n  <<: &base {a: 1, b: 2}\n  a: 3\n")
    (args,) = ArgumentParser(TrainingArguments).parse_yaml_file(file)
    assert args.lr_scheduler_kwargs == {"a": 3, "b": 2}


def test_yaml_words_keep_the_type_of_the_field(tmp_path):
    cls = make_dataclass("Run", [("strategy", str, "steps"), ("on", bool, True), ("rate", float, 0.0)])
    file = tmp_path / "run.yaml"
    file.write_text("strategy: no\non: off\nrate: 1e-5\n")
    assert ArgumentParser(cls).parse_yaml_file(file) == (cls("no", False, 1e-5),)
    file.write_text("# nothing\n")
    assert ArgumentParser(cls).parse_yaml_file(file) == (cls(),)


def test_yaml_without_the_package_says_what_to_do(tmp_path, monkeypatch):
    real = builtins.__import__

    def without_yaml(name, *args, **kwargs):
        if name == "yaml":
            raise ImportError("No module named 'yaml'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_yaml)
    with pytest.raises(MissingPackageError, match="pip install pyyaml"):
        ArgumentParser(DataArguments).parse_yaml_file(tmp_path / "run.yaml")


# --- help ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def page(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    parser = ArgumentParser(ModelArguments, DataArguments, Renamed, Training, prog="train", description="Trains 100%.")
    parser.add_argument("corpus", help="by hand")
    return parser.format_help()


def test_help_is_grouped_by_class_and_heading(page):
    lines = page.splitlines()
    headings = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert headings[2:] == [
        "ModelArguments:",
        "DataArguments:",
        "Renamed / Speed:",
        "Renamed / Kinds:",
        "Renamed:",
        "Training:",
        "Training / More:",
    ]
    assert lines[lines.index("ModelArguments:") + 1].strip() == "What the model is."
    assert "More that no help page needs" not in page
    assert lines.index("Renamed / Speed:") < page[: page.index("--rate")].count("\n") < lines.index("Renamed / Kinds:")


def test_help_shows_type_choices_default_and_aliases(page):
    text = " ".join(page.split())
    assert "usage: train --model_name TEXT --output_dir TEXT corpus [options]" in text
    assert "Trains 100%." in text
    assert "--model_name TEXT A name or a folder. (required)" in text
    assert "--max_seq_length INT (default: 128)" in text
    assert "--dataset TEXT Keeps 90% for training. (default: none)" in text
    assert "--names TEXT ... (default: train dev)" in text
    assert "--shuffle [BOOL] (default: true)" in text
    assert "--rate FLOAT The rate. (default: 0.1; also: --learning_rate)" in text
    assert "-f, --fast [BOOL] (default: false; also: --quick_mode)" in text
    assert "--kind TEXT Already 5% escaped. (one of: a, b; default: a)" in text
    assert "--device TEXT (one of: cpu; default: gpu; also: --no_gpu)" in text
    assert "--config JSON (default: the model's; also: --min_size)" in text
    assert "--tags TEXT ... (default: none)" in text


def test_help_shows_each_field_once_and_wraps(page):
    starts = [line.split()[0] for line in page.splitlines() if line.startswith("  -")]
    assert len(starts) == len(set(starts)) == 1 + 2 + 4 + 4 + 6
    assert not any("max-seq-length" in line or "oneloop" in line for line in page.splitlines())
    assert max(map(len, page.splitlines())) <= 100


@pytest.mark.parametrize(
    "default", [Color.RED, Level.LOW, "", (1, 2), {"a": None}, {"a": {1}}, Path("p"), "%s %(prog)s", object()]
)
def test_help_survives_any_default(default):
    cls = make_dataclass("One", [("x", Any, field(default_factory=lambda: default))])
    assert "--x TEXT" in ArgumentParser(cls).format_help()


def test_a_subclass_that_changes_a_default_keeps_help_heading_and_aliases():
    cls = make_dataclass("Mine", [("rate", float, 0.7), ("extra", int, 1)], bases=(Renamed,))
    parser = ArgumentParser(cls)
    assert parser.parse_args_into_dataclasses(["--learning_rate", "2"])[0].rate == 2.0
    text = " ".join(parser.format_help().split())
    assert "--rate FLOAT The rate. (default: 0.7; also: --learning_rate)" in text


def test_help_calls_default_factories_only_when_asked():
    calls = []
    cls = make_dataclass("One", [("x", str, field(default_factory=lambda: calls.append(1) or 1 / 0))])
    parser = ArgumentParser(cls)
    assert calls == []
    assert "computed at run time" in parser.format_help()
    assert calls == [1]


def test_other_formatters_can_be_asked_for():
    parser = ArgumentParser(DataArguments, Renamed, formatter_class=argparse.RawTextHelpFormatter, epilog="the end")
    text = parser.format_help()
    assert "Keeps 90% for training. (default: none)" in text
    assert text.rstrip().endswith("the end")


def test_import_is_light():
    heavy = "{'torch', 'numpy', 'yaml', 'transformers', 'typing_extensions'}"
    code = f"import sys, oneloop.parser; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- the real arguments ----------------------------------------------------------------------------------------------


def parse(*words, **options):
    return ArgumentParser(TrainingArguments).parse_args_into_dataclasses(["--output_dir", "out", *words], **options)[0]


def test_every_argument_and_alias_is_an_option_shown_once():
    parser = ArgumentParser(Seq2SeqTrainingArguments)
    names = [item.name for item in stored_fields(Seq2SeqTrainingArguments)]
    known = vars(parser.parse_known_args([])[0])
    assert known == {}
    for name in [*names, *Seq2SeqTrainingArguments.__aliases__]:
        assert f"--{name}" in parser._option_string_actions
        assert f"--{name.replace('_', '-')}" in parser._option_string_actions
    shown = [line for line in parser.format_help().splitlines() if line.startswith("  --")]
    assert len(shown) == len(names)


def test_defaults_are_those_of_the_constructor():
    assert parse() == TrainingArguments("out")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--evaluation_strategy", "steps", "--eval-steps", "10"], {"eval_strategy": "steps", "eval_steps": 10}),
        (["--report_to", "none"], {"report_to": []}),
        (["--label_names", "a", "b"], {"label_names": ["a", "b"]}),
        (["--label_names", "a,b"], {"label_names": ["a", "b"]}),
        (["--max_steps", "1e3"], {"max_steps": 1000}),
        (["--warmup_steps", "0.1"], {"warmup_steps": 0.1}),
        (["--lr_scheduler_kwargs", '{"num_cycles": 2}'], {"lr_scheduler_kwargs": {"num_cycles": 2}}),
        (["--recompute"], {"gradient_checkpointing": True}),
        (["--no-dataloader-pin-memory"], {"dataloader_pin_memory": False}),
        (["--adafactor"], {"optim": "adafactor"}),
        (["--no_cuda"], {"device_spec": "cpu"}),
        (["--device", "cpu"], {"device_spec": "cpu"}),
        (["--resume_from_checkpoint"], {"resume_from_checkpoint": True}),
        (["--resume_from_checkpoint", "a/b"], {"resume_from_checkpoint": "a/b"}),
        (["--metric_for_best_model", "none"], {"metric_for_best_model": None}),
    ],
)
def test_training_arguments_from_the_command_line(words, expected):
    args = parse(*words)
    assert {name: getattr(args, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--fp16", "maybe"], "fp16='maybe'"),
        (["--learning_rate", "-1e-5"], "learning_rate=-1e-05"),
        (
            ["--eval_strategy", "no", "--evaluation_strategy", "steps"],
            "are aliases of one argument, but have different values",
        ),
        (["--lerning_rate", "1"], "unknown option --lerning_rate (did you mean --learning_rate?)"),
        (["--predict_with_generate"], "belongs to Seq2SeqTrainingArguments"),
        (["--batch_size", "4"], "_batch_size?)"),
    ],
)
def test_wrong_training_arguments_exit_with_a_message(capsys, words, message):
    assert message in refused(capsys, ArgumentParser(TrainingArguments), ["--output_dir", "out", *words])


def test_output_dir_has_a_default_and_may_not_be_empty(capsys):
    (args,) = ArgumentParser(TrainingArguments).parse_args_into_dataclasses([])
    assert args.output_dir == "trainer_output"
    assert "--output_dir" in refused(capsys, ArgumentParser(TrainingArguments), ["--output_dir="]).split("error:")[1]


def test_training_arguments_from_yaml(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("output_dir: out\nsave_strategy: no\nlearning_rate: 1e-4\nevaluation_strategy: epoch\nfp16: off\n")
    (args,) = ArgumentParser(TrainingArguments).parse_yaml_file(file)
    assert (args.save_strategy, args.learning_rate, args.eval_strategy, args.fp16) == ("no", 1e-4, "epoch", False)
    file.write_text("output_dir: out\nlearning_rate: fast\n")
    with pytest.raises(ArgumentError, match=r"run\.yaml: Invalid learning_rate='fast': expected a number"):
        ArgumentParser(TrainingArguments).parse_yaml_file(file)


@pytest.mark.parametrize("reverse", [False, True])
def test_scripts_as_the_guides_write_them(reverse, monkeypatch):
    @dataclass
    class GuideArguments:
        ltr: Literal["point", "pair"] = field(default="point")
        data_path: Optional[str] = field(default="data/aol/", metadata={"help": "Path to the data."})

    monkeypatch.setattr(sys, "argv", ["run.py", "--output_dir", "o", "--ltr", "pair", "--do_train", "--seed", "7"])
    order = (GuideArguments, TrainingArguments) if reverse else (TrainingArguments, GuideArguments)
    made = dict(zip(order, PdArgumentParser(order).parse_args_into_dataclasses(), strict=True))
    assert made[GuideArguments] == GuideArguments(ltr="pair")
    assert (made[TrainingArguments].do_train, made[TrainingArguments].seed) == (True, 7)


def test_a_derived_training_arguments_gets_its_own_options():
    @dataclass
    class Mine(TrainingArguments):
        output_dir: str = "here"
        method: str = field(default="a", metadata={"choices": ["a", "b"]})

    (args,) = ArgumentParser(Mine).parse_args_into_dataclasses(["--method", "b", "--evaluation_strategy", "epoch"])
    assert (args.output_dir, args.method, args.eval_strategy) == ("here", "b", "epoch")
    with pytest.raises(ArgumentError, match="method: 'c' is not one of a, b"):
        ArgumentParser(Mine).parse_dict({"method": "c"})
