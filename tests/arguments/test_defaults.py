"""Defaults of ARGUMENTS.md, and those that follow from other arguments."""

import logging
import re
import socket
import sys

import pytest

from oneloop.arguments import TrainingArguments, packages
from oneloop.enums import IntervalStrategy
from oneloop.optim.catalog import OptimizerNames


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("per_device_train_batch_size", 8),
        ("per_device_eval_batch_size", 8),
        ("gradient_accumulation_steps", 1),
        ("learning_rate", 5e-5),
        ("weight_decay", 0),
        ("adam_beta1", 0.9),
        ("adam_beta2", 0.999),
        ("adam_epsilon", 1e-8),
        ("max_grad_norm", 1.0),
        ("num_train_epochs", 3.0),
        ("max_steps", -1),
        ("seed", 42),
        ("data_seed", None),
        ("logging_steps", 500),
        ("save_steps", 500),
        ("logging_nan_inf_filter", False),
        ("log_level", "passive"),
        ("log_level_replica", "warning"),
        ("log_on_each_node", True),
        ("save_on_each_node", False),
        ("skip_memory_metrics", True),
        ("past_index", -1),
        ("dataloader_pin_memory", True),
        ("length_column_name", "length"),
        ("fp16_opt_level", "O1"),
        ("half_precision_backend", "auto"),
        ("scale_loss", 32768),
        ("hub_strategy", "every_save"),
        ("hub_private_repo", None),
        ("sharding", ""),
        ("fsdp", ""),
        ("sharded_ddp", ""),
        ("sharding_degree", -1),
        ("fsdp_min_num_params", 0),
        ("ddp_timeout", 1800),
        ("ray_scope", "last"),
        ("nonfinite", "stop"),
        ("nonfinite_limit", 100),
        ("loss_spike", "off"),
        ("save_async", True),
        ("save_interval_minutes", None),
        ("debug", ""),
        ("torchdynamo", None),
        ("local_rank", -1),
    ],
)
def test_default(name, value):
    assert getattr(TrainingArguments("out"), name) == value


def test_strategies_are_strings_and_members():
    args = TrainingArguments("out", eval_strategy="steps")
    assert args.eval_strategy == "steps" and args.eval_strategy == IntervalStrategy.STEPS
    assert args.optim == OptimizerNames.ADAMW_TORCH and args.optim == "adamw_torch"


def test_eval_steps_follow_logging_steps():
    assert TrainingArguments("out").eval_steps is None
    assert TrainingArguments("out", eval_strategy="steps", logging_steps=7).eval_steps == 7
    assert TrainingArguments("out", eval_strategy="steps", logging_steps=7, eval_steps=3).eval_steps == 3


def test_do_eval_follows_the_strategy():
    assert not TrainingArguments("out").do_eval
    assert TrainingArguments("out", eval_strategy="epoch").do_eval


def test_what_follows_output_dir_moves_with_it():
    args = TrainingArguments("out")
    assert args.run_name == "out"
    args.output_dir = "there"
    args.validate()
    assert args.run_name == "there" and args.logging_dir.startswith("there")
    args.run_name = "mine"
    args.output_dir = "elsewhere"
    args.validate()
    assert args.run_name == "mine"


def test_logging_dir_has_date_and_host_and_stays():
    args = TrainingArguments("out")
    first = args.logging_dir
    assert re.fullmatch(r"out/runs/[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d_" + re.escape(socket.gethostname()), first)
    args.validate()
    assert args.logging_dir == first


@pytest.mark.parametrize(
    ("metric", "greater"),
    [
        ("accuracy", True),
        ("eval_f1", True),
        ("power", True),
        ("loss", False),
        ("eval_loss", False),
        ("eval_squad_loss", False),
        ("perplexity", False),
        ("eval_wer", False),
        ("wer", False),
        ("mean_squared_error", False),
        ("word_error_rate", False),
        ("RMSE", False),
    ],
)
def test_the_metrics_name_tells_what_is_better(metric, greater):
    assert TrainingArguments("out", metric_for_best_model=metric).greater_is_better is greater
    assert TrainingArguments("out", metric_for_best_model=metric, greater_is_better=True).greater_is_better is True


@pytest.mark.parametrize("given", [{"load_best_model_at_end": True}, {"save_strategy": "best"}])
def test_the_best_is_by_loss_by_default(given):
    args = TrainingArguments("out", **given)
    assert args.metric_for_best_model == "loss" and args.greater_is_better is False
    plain = TrainingArguments("out")
    assert plain.metric_for_best_model is None and plain.greater_is_better is None


def test_the_best_never_asks_for_steps_that_match():
    args = TrainingArguments(
        "out", load_best_model_at_end=True, eval_strategy="steps", eval_steps=7, save_strategy="epoch", save_steps=3
    )
    assert args.load_best_model_at_end


def test_naming_a_compiler_turns_it_on():
    assert not TrainingArguments("out").torch_compile
    assert TrainingArguments("out", torchdynamo="inductor").torch_compile
    assert TrainingArguments("out", torch_compile_mode="reduce-overhead").torch_compile


def test_report_to_is_what_is_installed_and_asks_for_no_account(monkeypatch):
    monkeypatch.setattr(packages, "installed", lambda module: module in ("tensorboard", "wandb"))
    assert TrainingArguments("out").report_to == ["tensorboard"]
    assert TrainingArguments("out", report_to="all").report_to == ["tensorboard"]
    monkeypatch.setattr(packages, "installed", lambda module: False)
    assert TrainingArguments("out").report_to == []


def test_a_folder_is_not_a_package(tmp_path, monkeypatch):
    (tmp_path / "wandbox").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not packages.installed("wandbox")
    assert packages.installed("json")
    assert not packages.installed("no_such_package.inside")


@pytest.mark.parametrize(
    ("terminal", "notebook", "level", "disabled"),
    [
        (True, False, "passive", False),
        (True, False, "info", False),
        (True, False, "error", True),
        (False, False, "passive", True),
        (False, True, "passive", False),
    ],
)
def test_progress_bars(monkeypatch, terminal, notebook, level, disabled):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(logging.getLogger("oneloop"), "level", logging.WARNING)
    if notebook:
        monkeypatch.setitem(sys.modules, "ipykernel", object())
    else:
        monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    assert TrainingArguments("out", log_level=level).disable_tqdm is disabled
    assert TrainingArguments("out", log_level=level, disable_tqdm=not disabled).disable_tqdm is not disabled


def test_hub_model_id_is_output_dirs_name():
    assert TrainingArguments("runs/model", push_to_hub=True).hub_model_id == "model"
    assert TrainingArguments("runs/model").hub_model_id is None
