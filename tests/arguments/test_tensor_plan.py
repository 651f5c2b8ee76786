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
