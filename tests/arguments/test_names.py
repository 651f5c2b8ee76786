"""Every name of the seeds, of ARGUMENTS.md and of other trainers is taken, or refused in words."""

import json
import typing
import zipfile
from pathlib import Path

import pytest

from oneloop.arguments import AcceleratorConfig, Seq2SeqTrainingArguments, TrainingArguments
from oneloop.arguments.fields import declared
from oneloop.arguments.fixed import FIXED_ARGUMENTS
from oneloop.errors import OneloopError, UnknownArgumentError, UnsupportedError
from tests.arguments import fields_of

LISTS = json.loads((Path(__file__).parent / "fields.json").read_text())
NAMES = sorted(set().union(*LISTS.values()) - set(FIXED_ARGUMENTS))
KNOWN = declared(Seq2SeqTrainingArguments)
ALIASES = Seq2SeqTrainingArguments.__aliases__

# Where a value cannot be told from the type.
SAMPLES = {
    "device_spec": "cpu",
    "debug": "underflow_overflow",
    "sharding": "stage3",
    "fsdp": "full_shard",
    "sharded_ddp": "zero_dp_3",
    "fsdp_config": {"min_num_params": 7},
    "report_to": ["tensorboard"],
    "optim": "sgd",
    "optim_args": "a=1",
    "optim_target_modules": ["layer"],
    "local_rank": 0,
    "accelerator_config": AcceleratorConfig(non_blocking=True),
    "include_num_input_tokens_seen": "all",
    "hub_model_id": "me/model",
    "label_names": ["label"],
    "disable_tqdm": False,
    "scale_loss": 2.0,
    "profile": "3-5",
    "parallelism_config": {"tp_size": 2},
    "recompute_granularity": "full",
}
# What must be there too for the value to make sense.
WITH = {
    "dataloader_prefetch_factor": {"dataloader_num_workers": 1},
    "dataset_prefetch_factor": {"dataset_num_workers": 1},
    "dataloader_persistent_workers": {"dataloader_num_workers": 1},
    "dataloader_multiprocessing_context": {"dataloader_num_workers": 1},
    "optim_target_modules": {"optim": "galore_adamw"},
}


def sample(name):
    """A value other than the default."""
    if name in SAMPLES:
        return SAMPLES[name]
    if name in ALIASES:
        alias = ALIASES[name]
        plain = alias.help.startswith("The same as") or name == "device"
        return sample(alias.target) if plain else {bool: True, int: 7, float: 0.25, str: "Layer"}[alias.type]
    hint, rules = KNOWN[name]
    default = rules["default"]() if callable(rules["default"]) else rules["default"]
    if rules["choices"]:
        other = next(choice for choice in rules["choices"] if choice != default)
        return [other] if isinstance(default, list) else other
    kinds = [kind for kind in typing.get_args(hint) or (hint,) if kind is not type(None)]
    if bool in kinds and len(kinds) == 1:
        return not default
    if int in kinds:
        return 7
    if float in kinds:
        return 0.5
    return {"k": 1} if any(typing.get_origin(kind) is dict for kind in kinds) else "text"


def make(name, **more):
    given = {} if name == "output_dir" else {"output_dir": "out"}
    return Seq2SeqTrainingArguments(**given, **WITH.get(name, {}), **{name: sample(name)}, **more)


def test_the_lists_are_whole():
    assert len(LISTS["seeds"]) == 103
    assert {name: len(names) for name, names in LISTS.items() if "transformers" in name} == {
        "transformers 4.25.1": 103 + 4,
        "transformers 4.57.6": 133 + 5,
        "transformers 5.22.2": 112 + 5,
    }
    assert len(LISTS["PaddleNLP 2.8.1"]) == 93 + 4
    assert len(LISTS["PaddleFormers 1.2.0"]) == 236
    assert len(LISTS["mindnlp 0.4.1"]) == 78 + 5


def wheel(folder, *more):
    """A stand-in for mindnlp's wheel, with the fields of our list and some more."""
    base, seq2seq = fields_of.KNOWN["mindnlp-0.4.1"][1].items()
    names = [*LISTS["mindnlp 0.4.1"], *more]
    path = folder / "mindnlp-0.4.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for (file, name), part in zip((base, seq2seq), (names[5:], names[:5])):
            body = "\n".join(f"    {field}: int = 0" for field in part)
            archive.writestr(file, f"class {name}:\n{body}\n    plain = 1\n    def method(self): other: int = 2\n")
    return str(path)


def test_the_lists_are_compared_with_wheels(tmp_path, capsys):
    assert fields_of.main([wheel(tmp_path)]) == 0
    assert fields_of.main([wheel(tmp_path, "brand_new")]) == 1
    assert "missing in fields.json: brand_new" in capsys.readouterr().out


def test_the_lists_are_brought_up_to_date(tmp_path, monkeypatch):
    copy = tmp_path / "fields.json"
    assert fields_of.written(LISTS) == fields_of.LISTS.read_text()
    copy.write_text(fields_of.LISTS.read_text())
    monkeypatch.setattr(fields_of, "LISTS", copy)
    assert fields_of.main(["--write", wheel(tmp_path, "brand_new")]) == 0
    assert json.loads(copy.read_text())["mindnlp 0.4.1"] == sorted([*LISTS["mindnlp 0.4.1"], "brand_new"])


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_stored_or_another_spelling(name):
    assert (name in KNOWN) != (name in ALIASES)


@pytest.mark.parametrize("name", NAMES)
def test_a_value_is_accepted_and_reads_back(name):
    args = make(name)
    stored = "device_spec" if name == "device" else name
    assert getattr(args, stored) == sample(name)
    if stored in KNOWN:
        assert getattr(args, stored) != getattr(Seq2SeqTrainingArguments("out"), stored)


@pytest.mark.parametrize("name", NAMES)
def test_it_works_or_is_refused_by_its_name(name):
    args = make(name)
    try:
        args.check_backend("torch", "cpu")
    except UnsupportedError as error:
        assert name in str(error) or WITH.get(name), error
        assert "Instead: " in str(error)


@pytest.mark.parametrize("name", NAMES)
def test_it_survives_a_dict(name):
    args = make(name)
    again = Seq2SeqTrainingArguments.from_dict(json.loads(json.dumps(args.to_dict(), default=str)))
    if "token" not in name:
        assert again == args


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_every_argument_explains_itself(name):
    rules = KNOWN[name][1]
    assert rules["help"].endswith(".") and rules["help"][0] != " "
    assert rules["group"]
    for alias in rules["aliases"]:
        assert ALIASES[alias].target == name


# Two hold objects of other libraries, which can be of any type.
@pytest.mark.parametrize("name", sorted(set(KNOWN) - {"parallelism_config", "generation_config"}))
def test_a_value_of_the_wrong_type_is_an_error_that_shows_it(name):
    given = {} if name == "output_dir" else {"output_dir": "out"}
    with pytest.raises(OneloopError) as caught:
        Seq2SeqTrainingArguments(**given, **{name: 3.25j})
    public = KNOWN[name][1]["public"] or name
    assert str(caught.value).startswith(f"Invalid {public}=")
    assert "3.25j" in str(caught.value) or "token" in name
    assert "expected" in str(caught.value)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("learning_rte", "learning_rate"),
        ("per_device_batch_size", "per_device_train_batch_size"),
        ("evaluation_stratgy", "evaluation_strategy"),
        ("no_cud", "no_cuda"),
        ("num_epochs", "num_train_epochs"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(given, meant):
    with pytest.raises(UnknownArgumentError, match=f"no argument '{given}'; did you mean '{meant}'"):
        TrainingArguments("out", **{given: 1})


def test_an_unknown_name_with_nothing_near():
    with pytest.raises(UnknownArgumentError, match=r"help\(oneloop"):
        TrainingArguments("out", zzzzzz=1)
    with pytest.raises(TypeError):  # what a dataclass raises, for scripts that catch it
        TrainingArguments("out", zzzzzz=1)


def test_a_name_of_the_other_class():
    with pytest.raises(UnknownArgumentError, match="belongs to Seq2SeqTrainingArguments"):
        TrainingArguments("out", predict_with_generate=True)
