"""The sizes of the axes that divide a model, and the plan of tensor parallelism."""

import json

import pytest

from oneloop import TrainingArguments
from oneloop.errors import ArgumentError

PLAN = {"layers.*.up": "colwise", "layers.*.down": "rowwise"}


def test_the_plan_is_a_dict_json_or_a_file(tmp_path):
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(PLAN))
    for given in (PLAN, json.dumps(PLAN), str(file)):
        assert TrainingArguments("out", tensor_parallel_plan=given).tensor_parallel_plan == PLAN
    assert TrainingArguments("out").tensor_parallel_plan is None


@pytest.mark.parametrize(
    ("plan", "named"),
    [
        ({"layers.*.up": "columns"}, r"tensor_parallel_plan\['layers\.\*\.up'\]='columns'.*colwise"),
        ({"up": 3}, r"tensor_parallel_plan\['up'\]=3"),
        ({"": "colwise"}, "names of layers"),
        ("missing.json", "an existing JSON file"),
    ],
)
def test_wrong_plans_are_refused(plan, named):
    with pytest.raises(ArgumentError, match=named):
        TrainingArguments("out", tensor_parallel_plan=plan)


@pytest.mark.parametrize("name", ["tensor_parallel_size", "sequence_parallel_size", "expert_parallel_size"])
def test_sizes_are_at_least_one(name):
    assert getattr(TrainingArguments("out"), name) == getattr(TrainingArguments("out", **{name: None}), name) == 1
    assert getattr(TrainingArguments("out", **{name: "4"}), name) == 4
    for wrong in (0, -1, 1.5, "two", True):
        with pytest.raises(ArgumentError, match=f"Invalid {name}="):
            TrainingArguments("out", **{name: wrong})


@pytest.mark.parametrize("name", ["tensor_parallel_size", "sequence_parallel_size", "expert_parallel_size"])
def test_one_process_is_too_few(name, tmp_path):
    torch = pytest.importorskip("torch")
    from oneloop import Trainer

    args = TrainingArguments(str(tmp_path), device="cpu", report_to="none", **{name: 2})
    with pytest.raises(ArgumentError, match=f"{name}=2.*Start a multiple of 2"):
        Trainer(torch.nn.Linear(2, 2), args)


# -- the switches of other libraries


def test_sizes_of_accelerate_set_the_axes():
    args = TrainingArguments("out", parallelism_config={"tp_size": 2, "cp_size": 3})
    assert (args.tensor_parallel_size, args.sequence_parallel_size, args.sharding_degree) == (2, 3, -1)
    args = TrainingArguments("out", sharding="stage3", parallelism_config='{"dp_shard_size": 2, "sp_size": 4}')
    assert (args.tensor_parallel_size, args.sequence_parallel_size, args.sharding_degree) == (1, 4, 2)
    args.validate()
    assert TrainingArguments.from_dict(args.to_dict()).sequence_parallel_size == 4
    assert TrainingArguments("out", tensor_parallel_size=2, parallelism_config={"tp_size": 2}).tensor_parallel_size == 2


def test_the_object_of_accelerate():
    config = pytest.importorskip("accelerate.parallelism_config").ParallelismConfig(tp_size=2, dp_shard_size=2)
    args = TrainingArguments("out", sharding="stage3", parallelism_config=config)
    assert args.parallelism_config is config
    assert (args.tensor_parallel_size, args.sharding_degree) == (2, 2)
    args.to_json_string()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"parallelism_config": {"tp_size": 2}, "tensor_parallel_size": 4}, "tensor_parallel_size=4, but .* has 2"),
        ({"parallelism_config": {"cp_size": 2, "sp_size": 2}}, "cp_size=2 and sp_size=2"),
        ({"parallelism_config": {"pp_size": 2}}, r"parallelism_config\['pp_size'\]=2: expected one of the keys dp_rep"),
        ({"parallelism_config": {"tp_size": 0}}, r"parallelism_config\['tp_size'\]=0"),
        ({"parallelism_config": 3}, "parallelism_config=3"),
        ({"tensor_parallel_degree": 2, "tensor_parallel_size": 4}, "tensor_parallel"),
        ({"tensor_parallel_degree": 0}, "tensor_parallel_size=0|tensor_parallel_degree=0"),
    ],
)
def test_contradictions(given, words):
    with pytest.raises(ArgumentError, match=words):
        TrainingArguments("out", **given)


def test_a_number_of_processes_that_is_not_that_of_the_sizes(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert TrainingArguments("out", parallelism_config={"tp_size": 2}).tensor_parallel_size == 2
    with pytest.raises(ArgumentError, match="for 4 processes .dp_replicate_size=2 x tp_size=2., but 2 were started"):
        TrainingArguments("out", parallelism_config={"tp_size": 2, "dp_replicate_size": 2})


def test_dumped_defaults_say_nothing():
    args = TrainingArguments("out", tensor_parallel_size=2, tensor_parallel_degree=-1, context_parallel_size=-1)
    assert (args.tensor_parallel_degree, args.context_parallel_size) == (2, 1)
