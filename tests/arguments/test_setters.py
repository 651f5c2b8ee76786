"""set_training and its like."""

import inspect

import pytest

from oneloop.arguments import TrainingArguments
from oneloop.arguments.setters import Setters
from oneloop.errors import ArgumentError

CASES = [
    (
        "set_training",
        {"learning_rate": 1e-3, "batch_size": 4, "gradient_checkpointing": True},
        {"do_train": True, "learning_rate": 1e-3, "per_device_train_batch_size": 4, "gradient_checkpointing": True},
    ),
    (
        "set_evaluate",
        {"strategy": "steps", "steps": 10, "batch_size": 2, "delay": 5},
        {"do_eval": True, "eval_strategy": "steps", "eval_steps": 10, "per_device_eval_batch_size": 2, "eval_delay": 5},
    ),
    ("set_testing", {"batch_size": 3, "loss_only": True}, {"do_predict": True, "per_device_eval_batch_size": 3}),
    ("set_save", {"strategy": "epoch", "total_limit": 2}, {"save_strategy": "epoch", "save_total_limit": 2}),
    (
        "set_logging",
        {"strategy": "epoch", "report_to": "tensorboard", "level": "info"},
        {
            "logging_strategy": "epoch",
            "report_to": ["tensorboard"],
            "log_level": "info",
            "log_level_replica": "passive",
        },
    ),
    (
        "set_push_to_hub",
        {"model_id": "me/model", "token": "t", "revision": "dev"},
        {"push_to_hub": True, "hub_model_id": "me/model", "hub_token": "t", "hub_revision": "dev"},
    ),
    (
        "set_optimizer",
        {"name": "sgd", "beta1": 0.8, "args": "momentum=0.9"},
        {"optim": "sgd", "adam_beta1": 0.8, "optim_args": "momentum=0.9"},
    ),
    (
        "set_lr_scheduler",
        {"name": "cosine", "max_steps": 9, "warmup_steps": 0.1},
        {"lr_scheduler_type": "cosine", "max_steps": 9, "warmup_steps": 0.1},
    ),
    (
        "set_dataloader",
        {"train_batch_size": 2, "num_workers": 1, "prefetch_factor": 3, "sampler_seed": 5},
        {"per_device_train_batch_size": 2, "dataloader_prefetch_factor": 3, "data_seed": 5},
    ),
]


@pytest.mark.parametrize(("method", "given", "stored"), CASES, ids=[case[0] for case in CASES])
def test_it_sets(method, given, stored):
    args = TrainingArguments("out")
    assert getattr(args, method)(**given) is args
    assert {name: getattr(args, name) for name in stored} == stored


def test_each_is_tried_here():
    assert {case[0] for case in CASES} == {name for name, _ in inspect.getmembers(Setters) if name.startswith("set_")}


def test_a_wrong_value_changes_nothing():
    args = TrainingArguments("out")
    with pytest.raises(ArgumentError, match="per_device_train_batch_size=0"):
        args.set_training(learning_rate=1e-3, batch_size=0)
    assert (args.learning_rate, args.per_device_train_batch_size, args.do_train) == (5e-5, 8, False)


def test_calls_can_be_chained():
    args = TrainingArguments("out").set_training(batch_size=2).set_evaluate("epoch").set_save("no")
    assert (args.train_batch_size, args.eval_strategy, args.save_strategy) == (2, "epoch", "no")
