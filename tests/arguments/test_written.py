"""to_dict and its like, copies, pickles, and no secret in any of them."""

import copy
import dataclasses
import inspect
import json
import pickle

import pytest

from oneloop.arguments import CompressionArguments, Seq2SeqTrainingArguments, TrainingArguments


@pytest.fixture
def args():
    return TrainingArguments("out", eval_strategy="steps", hub_token="s3cret", device="cpu", fsdp="full_shard", seed=7)


def test_to_dict_is_plain_data_under_stored_names(args):
    plain = args.to_dict()
    assert plain["eval_strategy"] == "steps" and type(plain["eval_strategy"]) is str
    assert plain["device"] == "cpu" and "device_spec" not in plain
    assert "evaluation_strategy" not in plain
    assert json.loads(json.dumps(plain)) == plain
    assert json.loads(args.to_json_string()) == plain


@pytest.mark.parametrize("write", ["to_dict", "to_json_string", "to_sanitized_dict", "__repr__", "__str__"])
def test_no_secret_is_written(args, write):
    text = str(getattr(args, write)())
    assert "s3cret" not in text
    if not write.startswith("__repr"):
        assert "<HUB_TOKEN>" in text


def test_a_subclass_keeps_the_secret_too():
    @dataclasses.dataclass
    class Mine(TrainingArguments):
        api_token: str | None = None

    mine = Mine("out", hub_token="s3cret", api_token="0ther")
    assert "s3cret" not in repr(mine) + str(mine)
    assert "0ther" not in str(mine) + mine.to_json_string()


def test_a_token_inside_a_dict_is_hidden():
    args = TrainingArguments("out", deepspeed={"login": {"access_token": "s3cret"}})
    assert "s3cret" not in args.to_json_string()


def test_from_dict_ignores_the_mask(args):
    again = TrainingArguments.from_dict(args.to_dict())
    assert again.hub_token is None
    again.hub_token = "s3cret"
    assert again == args


def test_to_sanitized_dict_has_numbers_and_text_only(args):
    flat = args.to_sanitized_dict()
    assert {type(value) for value in flat.values()} <= {bool, int, float, str}
    assert flat["train_batch_size"] == 8 and flat["eval_batch_size"] == 8


def test_copies_are_equal_and_apart(args):
    for copied in (copy.deepcopy(args), copy.copy(args), pickle.loads(pickle.dumps(args)), dataclasses.replace(args)):
        assert copied == args and type(copied) is TrainingArguments
        copied.seed = 8
        assert copied != args


def test_a_copy_does_not_share_lists(args):
    copied = copy.deepcopy(args)
    copied.report_to.append("wandb")
    assert "wandb" not in args.report_to
    assert TrainingArguments("out").include_for_metrics is not TrainingArguments("out").include_for_metrics


def test_equality_does_not_depend_on_the_clock(monkeypatch):
    first, second = TrainingArguments("out"), TrainingArguments("out")
    second.logging_dir = "another/second"
    assert first == second


def test_replace_checks_the_change(args):
    assert dataclasses.replace(args, seed=9).seed == 9
    with pytest.raises(ValueError, match="seed=-9"):
        dataclasses.replace(args, seed=-9)


def test_asdict_names_every_field(args):
    assert dataclasses.asdict(args)["seed"] == 7
    assert TrainingArguments(**dataclasses.asdict(args)) == args


def test_the_signature_shows_the_arguments():
    names = list(inspect.signature(TrainingArguments).parameters)
    assert names[0] == "output_dir" and "learning_rate" in names
    assert "sortish_sampler" in inspect.signature(Seq2SeqTrainingArguments).parameters


def test_an_object_in_an_argument_is_written_as_its_dict():
    class Config:
        def to_dict(self):
            return {"max_length": 5}

    config = Config()
    args = Seq2SeqTrainingArguments("out", generation_config=config)
    assert args.generation_config is config
    assert json.loads(args.to_json_string())["generation_config"] == {"max_length": 5}


@pytest.mark.parametrize("cls", [TrainingArguments, Seq2SeqTrainingArguments, CompressionArguments])
def test_repr_shows_every_argument_of_the_class(cls):
    args = cls("out")
    assert repr(args) == str(args) and repr(args).startswith(f"{cls.__name__}(\n")
    assert all(f"    {name}=" in repr(args) for name in args.to_dict())
