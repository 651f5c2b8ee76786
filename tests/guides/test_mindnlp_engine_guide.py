"""MindNLP's older guide: evaluation_strategy, and compute_metrics with an annotated EvalPrediction.

Its remark about data that is already batched is about MindSpore's data sets: the script runs on MindSpore as well.
"""

import pytest
import torch

from oneloop import Trainer, TrainingArguments


def test_the_script(run_script, tmp_path):
    names = run_script("mindnlp_engine", where="a/b")
    trainer = names["trainer"]
    history = trainer.state.log_history
    assert names["training_args"].evaluation_strategy == "steps"
    assert [entry["step"] for entry in history if "loss" in entry] == [50, 100]
    (evaluation,) = (entry for entry in history if "eval_accuracy" in entry)
    assert evaluation["step"] == 100 and evaluation["eval_accuracy"] > 0.9
    losses = [entry["loss"] for entry in history if "loss" in entry]
    assert losses[1] < losses[0]
    saved = {path.name for path in (tmp_path / "output").glob("checkpoint-*")}
    assert saved == {"checkpoint-40", "checkpoint-80", "checkpoint-120"}


def test_the_optimizers_it_names(tmp_path):
    found = {}
    for name in ("adamw", "sgd"):
        args = TrainingArguments(str(tmp_path), optim=name, report_to="none")
        found[name] = type(Trainer(torch.nn.Linear(2, 2), args).create_optimizer())
    assert found == {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


def test_the_script_on_mindspore(run_script, tmp_path):
    """With the note of the guide followed: batches of the data set's own, and a batch size of 1."""
    pytest.importorskip("mindspore")
    names = run_script("mindspore_engine", where="a/b")
    history = names["trainer"].state.log_history
    assert [entry["step"] for entry in history if "loss" in entry] == [50, 100]
    (evaluation,) = (entry for entry in history if "eval_accuracy" in entry)
    assert evaluation["step"] == 100 and evaluation["eval_accuracy"] > 0.9
    losses = [entry["loss"] for entry in history if "loss" in entry]
    assert losses[1] < losses[0]
    saved = {path.name for path in (tmp_path / "output").glob("checkpoint-*")}
    assert saved == {"checkpoint-40", "checkpoint-80", "checkpoint-120"}


def test_the_optimizers_it_names_on_mindspore(tmp_path):
    pytest.importorskip("mindspore")
    from mindspore import nn

    from oneloop.backends.mindspore.optimizer_kernels import SGD, AdamW

    found = {}
    for name in ("adamw", "sgd"):
        args = TrainingArguments(str(tmp_path), optim=name, report_to="none")
        found[name] = type(Trainer(nn.Dense(2, 2), args).create_optimizer())
    assert found == {"adamw": AdamW, "sgd": SGD}


# Every field of TrainingArguments in mindnlp 0.4.1, with a value that is not its default where there is one to try.
FIELDS = {
    "output_dir": "out", "overwrite_output_dir": True, "do_train": True, "do_eval": True, "do_predict": True,
    "evaluation_strategy": "no", "prediction_loss_only": True, "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 4, "gradient_accumulation_steps": 2, "eval_accumulation_steps": 2, "eval_delay": 1,
    "learning_rate": 1e-4, "weight_decay": 0.1, "adam_beta1": 0.8, "adam_beta2": 0.9, "adam_epsilon": 1e-6,
    "max_grad_norm": 0.5, "num_train_epochs": 2.0, "max_steps": 10, "lr_scheduler_type": "cosine",
    "lr_scheduler_kwargs": {}, "warmup_ratio": 0.1, "warmup_steps": 2, "log_level": "info",
    "log_level_replica": "error", "log_on_each_node": False, "logging_dir": "logs", "logging_strategy": "steps",
    "logging_first_step": True, "logging_steps": 5, "logging_nan_inf_filter": True, "save_strategy": "steps",
    "save_steps": 5, "save_total_limit": 2, "save_safetensors": True, "save_on_each_node": True,
    "save_only_model": True, "use_cpu": True, "seed": 7, "data_seed": 8, "jit_mode_eval": True, "bf16": False,
    "fp16": True, "fp16_opt_level": "O2", "half_precision_backend": "auto", "fp16_full_eval": True,
    "dataloader_drop_last": True, "eval_steps": 5, "dataloader_num_workers": 1, "dataloader_prefetch_factor": 3,
    "past_index": 0, "run_name": "a run", "disable_tqdm": True, "remove_unused_columns": False,
    "label_names": ["labels"], "load_best_model_at_end": False, "metric_for_best_model": "loss",
    "greater_is_better": False, "ignore_data_skip": True, "label_smoothing_factor": 0.1, "optim": "sgd",
    "optim_args": "momentum=0.9", "adafactor": False, "group_by_length": True, "length_column_name": "size",
    "report_to": "none", "dataloader_pin_memory": False, "dataloader_persistent_workers": True,
    "skip_memory_metrics": False, "resume_from_checkpoint": "latest", "gradient_checkpointing": True,
    "include_inputs_for_metrics": True, "auto_find_batch_size": True, "full_determinism": True,
    "include_tokens_per_second": True, "include_num_input_tokens_seen": True, "neftune_noise_alpha": 5.0,
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in FIELDS if name not in ("output_dir", "report_to")])
def test_every_field_of_its_arguments_works_on_mindspore(name, tmp_path):
    given = {"output_dir": str(tmp_path), "report_to": "none", name: FIELDS[name]}
    if name == "dataloader_persistent_workers" or name == "dataloader_prefetch_factor":
        given["dataloader_num_workers"] = 1
    args = TrainingArguments(**given)
    args.check_backend("mindspore", "cpu")
    read = "all" if name == "include_num_input_tokens_seen" else FIELDS[name]  # its True is one of three words here
    assert getattr(args, name) == read
