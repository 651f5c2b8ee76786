"""What processes have to have in common: every argument, unless it is declared as one of each process."""

from dataclasses import fields, replace
from types import SimpleNamespace

import pytest

from oneloop import TrainingArguments
from oneloop.arguments.fields import rules_of
from oneloop.errors import ArgumentError
from oneloop.trainer import agreement

# What a process may have for itself: where its files are, what it shows, how it loads data, and its device.
OF_EACH = {"output_dir", "run_name", "disable_tqdm", "dataloader_num_workers", "log_level", "report_to", "hub_token"}
SAME = {"max_steps", "learning_rate", "gradient_accumulation_steps", "num_train_epochs", "optim", "save_steps"}
SAME |= {"eval_strategy", "logging_steps", "max_grad_norm", "per_device_train_batch_size", "bf16", "sharding"}


class Others:
    """The processes of a run, of which the others have these values."""

    def __init__(self, *others):
        self.others = others

    def all_gather_object(self, value):
        return [value, *(value | other for other in self.others)]


def core_of(args, *others):
    return SimpleNamespace(trainer=SimpleNamespace(args=args), processes=Others(*others), data_seed=args.seed)


def test_which_arguments_are_compared(tmp_path):
    found = agreement.shared_arguments(TrainingArguments(str(tmp_path)))
    assert not OF_EACH & found.keys() and found.keys() >= SAME


@pytest.mark.parametrize("item", [item for item in fields(TrainingArguments) if rules_of(item)], ids=lambda i: i.name)
def test_every_argument_that_is_not_of_each_process_is_compared(item, tmp_path):
    args = TrainingArguments(str(tmp_path), seed=7)
    agreement.check_arguments(core_of(args, {}))
    if rules_of(item)["per_process"]:
        assert item.name not in agreement.shared_arguments(args)
        return
    with pytest.raises(ArgumentError, match=rf"differ in {item.name}: .* in processes 0, 2, 'other' in process 1\. "):
        agreement.check_arguments(core_of(args, {item.name: "other"}, {}))


def test_of_many_processes_some_are_listed(tmp_path):
    with pytest.raises(ArgumentError, match=r"5 in processes 1, 2, 3, 4, 5, 6, 7, 8\."):
        agreement.check_arguments(core_of(TrainingArguments(str(tmp_path)), *[{"max_steps": 5} for _ in range(8)]))
    others = [{"max_steps": 5} for _ in range(20)]
    with pytest.raises(ArgumentError, match=r"-1 in process 0, 5 in processes 1, 2, 3, 4, 5, 6, 7, 8 and 12 more\."):
        agreement.check_arguments(core_of(TrainingArguments(str(tmp_path)), *others))


def test_objects_are_compared_by_their_class(tmp_path):
    """Their text may have an address."""
    args = replace(TrainingArguments(str(tmp_path)))
    args.label_names = [object(), "a", ("b", {"c": 1})]
    assert agreement.shared_arguments(args)["label_names"] == ["object", "a", ["b", {"c": 1}]]
