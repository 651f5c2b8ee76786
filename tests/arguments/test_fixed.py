"""Arguments of PaddleNLP that have one answer: read, given and set as what is done anyway, and nothing else."""

import json
from pathlib import Path

import pytest

from oneloop import PdArgumentParser, Seq2SeqTrainingArguments, Trainer, TrainingArguments
from oneloop.arguments import fixed
from oneloop.arguments.fixed import FIXED_ARGUMENTS
from oneloop.arguments.paddleformers import FIXED, NO_ATTRIBUTES
from oneloop.compat.check.arguments import _words_of
from oneloop.errors import ArgumentError, UnsupportedError

NAMES = sorted(set(FIXED_ARGUMENTS) - {"_n_gpu"} - set(FIXED))
OTHER = {bool: True, int: 8, str: "something", type(None): ["something"]}


def other(name):
    """A value that asks for something else."""
    first = FIXED_ARGUMENTS[name].values[0]
    return (not first) if isinstance(first, bool) else OTHER[type(first)]


REFUSING = [name for name in NAMES if name != "unified_checkpoint"]


def test_they_are_fields_of_paddlenlp():
    lists = json.loads((Path(__file__).parent / "fields.json").read_text())
    # Attributes that it computes, or of other releases.
    others = {"data_parallel_degree", "metrics_output_path", "use_hybrid_parallel"}
    assert set(NAMES) - set(lists["PaddleNLP 2.8.1"]) == others


@pytest.mark.parametrize("name", NAMES)
def test_what_is_done_anyway_can_be_given_and_set(name):
    for value in FIXED_ARGUMENTS[name].values:
        args = Seq2SeqTrainingArguments("out", **{name: value})
        setattr(args, name, value)
        assert getattr(args, name) == FIXED_ARGUMENTS[name].read()
        assert args == Seq2SeqTrainingArguments("out") and name not in args.to_dict()


@pytest.mark.parametrize("name", REFUSING)
def test_anything_else_is_refused(name):
    why = FIXED_ARGUMENTS[name].why.split(";")[0][:40].replace("(", ".").replace(")", ".")
    with pytest.raises(UnsupportedError, match=f"{name} cannot be set to anything but .*{why}"):
        TrainingArguments("out", **{name: other(name)})
    args = TrainingArguments("out")
    with pytest.raises(UnsupportedError, match=name):
        setattr(args, name, other(name))
    assert getattr(args, name) == FIXED_ARGUMENTS[name].read()


@pytest.mark.parametrize("name", NAMES)
def test_from_files_and_command_lines(name, tmp_path, capsys):
    parser = PdArgumentParser(TrainingArguments)
    value = FIXED_ARGUMENTS[name].values[0]
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"output_dir": "out", name: value}))
    (args,) = parser.parse_json_file(settings)
    assert getattr(args, name) == FIXED_ARGUMENTS[name].read()
    if value is not None:
        (args,) = parser.parse_args_into_dataclasses(["--output_dir", "out", f"--{name}", str(value)])
        assert getattr(args, name) == FIXED_ARGUMENTS[name].read()
    if name in REFUSING:
        given = other(name)
        words = given if isinstance(given, list) else [str(given)]
        with pytest.raises(SystemExit):
            parser.parse_args_into_dataclasses(["--output_dir", "out", f"--{name}", *words])
        assert f"{name} cannot be set to anything but" in capsys.readouterr().err
    assert name not in parser.format_help()


def test_those_of_paddleformers_are_its_fields_and_answered_alike():
    lists = json.loads((Path(__file__).parent / "fields.json").read_text())
    assert set(FIXED) <= set(lists["PaddleFormers 1.2.0"])
    args = TrainingArguments("out", **{name: values[0] for name, (_, values) in FIXED.items()})
    assert args == TrainingArguments("out")
    for name, (why, values) in FIXED.items():
        for value in values:
            TrainingArguments("out", **{name: value})
        if name in NO_ATTRIBUTES:
            assert not hasattr(args, name)
        else:
            assert getattr(args, name) == values[0]
        with pytest.raises(UnsupportedError) as caught:
            TrainingArguments("out", **{name: "something else"})
        assert f"{name} cannot be set to anything but" in str(caught.value) and why in str(caught.value)


def test_those_of_paddleformers_that_map():
    args = TrainingArguments("out", dataloader_shuffle=False, deterministic_mode=True, recompute_granularity="full")
    assert args.train_sampling_strategy == "sequential" and not args.dataloader_shuffle
    assert args.full_determinism and args.deterministic_mode
    assert args.gradient_checkpointing and args.recompute_granularity == "full"
    args = TrainingArguments("out", dataloader_shuffle=True, sharding="stage1", sharding_parallel_size=1)
    assert args.train_sampling_strategy == "random" and args.sharding_degree == 1
    assert args.recompute_granularity is None and not args.gradient_checkpointing
    with pytest.raises(ArgumentError, match="expected 'full'"):
        TrainingArguments("out", recompute_granularity="selective")


def test_a_key_that_is_refused_is_not_shown():
    with pytest.raises(UnsupportedError) as caught:
        TrainingArguments("out", wandb_api_key="0123456789abcdef")
    assert "0123456789abcdef" not in str(caught.value)


def test_a_field_of_the_scripts_own_goes_before():
    from dataclasses import dataclass

    @dataclass
    class Own:
        metrics_output_path: str = "here"
        pipeline_parallel_degree: int = 3

    words = ["--output_dir", "out", "--metrics_output_path", "there", "--pipeline_parallel_degree", "5"]
    own, args = PdArgumentParser((Own, TrainingArguments)).parse_args_into_dataclasses(words)
    assert (own.metrics_output_path, own.pipeline_parallel_degree) == ("there", 5)
    assert (args.metrics_output_path, args.pipeline_parallel_degree) == (None, 1)

    @dataclass
    class Derived(TrainingArguments):
        unified_checkpoint_config: str = "mine"

    assert Derived("out").unified_checkpoint_config == "mine"
    assert Derived("out", unified_checkpoint_config="given").to_dict()["unified_checkpoint_config"] == "given"


def test_the_number_of_processes(monkeypatch):

    assert TrainingArguments("out", data_parallel_degree=1).data_parallel_degree == 1
    monkeypatch.setattr(fixed, "world", lambda: type("World", (), {"size": 4}))
    assert TrainingArguments("out", data_parallel_degree=4).data_parallel_degree == 4
    with pytest.raises(UnsupportedError, match="number of processes that were launched"):
        TrainingArguments("out", data_parallel_degree=2)


def test_a_misspelt_name_is_still_an_error():
    with pytest.raises(ArgumentError, match="no argument 'tensor_paralel_degree'"):
        TrainingArguments("out", tensor_paralel_degree=1)


def test_a_run_with_the_settings_of_a_published_file(backend, tmp_path):
    """The parallel part of PaddleNLP's settings for one device."""
    from tests.backends.support import rows

    given = {"tensor_parallel_degree": 1, "pipeline_parallel_degree": 1, "unified_checkpoint": True}
    given |= {"sharding_parallel_config": "", "max_steps": 1, "save_strategy": "no", "report_to": "none"}
    args = TrainingArguments(str(tmp_path), device="cpu", **given)
    assert Trainer(backend.classifier(), args, train_dataset=rows(8)).train().global_step == 1


def test_words_that_follow_an_option():
    words = ["--a", "1", "--b-c", "2", "3", "--b_c=4", "--d"]
    assert (_words_of("a", words), _words_of("b_c", words), _words_of("d", words)) == (["1"], ["4"], [])
