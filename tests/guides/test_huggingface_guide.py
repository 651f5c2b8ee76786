"""The reference of transformers' Trainer: its constructor, every argument of its table, its methods, Seq2Seq."""

import json
import logging
import math
import os

import pytest
import torch

from oneloop import Trainer, TrainingArguments
from oneloop.errors import UnsupportedError
from tests.integrations.hub.stand_in import serving

RUN = ["--output_dir", "out", "--report_to", "none", "--do_train", "--do_eval", "--do_predict"]

# Every argument of the table but output_dir and those that are only refused, with a value that is not its default.
WORKS = {
    "overwrite_output_dir": True,
    "do_train": True,
    "do_eval": True,
    "do_predict": True,
    "evaluation_strategy": "steps",
    "prediction_loss_only": True,
    "per_device_train_batch_size": 2,
    "per_device_eval_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "eval_accumulation_steps": 2,
    "eval_delay": 2,
    "weight_decay": 0.1,
    "adam_beta1": 0.8,
    "adam_beta2": 0.9,
    "adam_epsilon": 1e-6,
    "max_grad_norm": 0.5,
    "num_train_epochs": 1.5,
    "max_steps": 2,
    "lr_scheduler_type": "cosine",
    "warmup_ratio": 0.5,
    "warmup_steps": 1,
    "log_level": "error",
    "log_level_replica": "error",
    "log_on_each_node": False,
    "logging_dir": "logs",
    "logging_strategy": "epoch",
    "logging_first_step": True,
    "logging_steps": 2,
    "logging_nan_inf_filter": True,
    "save_strategy": "epoch",
    "save_total_limit": 1,
    "save_on_each_node": True,
    "no_cuda": True,
    "seed": 1,
    "data_seed": 2,
    "jit_mode_eval": True,
    "bf16": True,
    "fp16": True,
    "fp16_opt_level": "O2",
    "fp16_backend": "cpu_amp",
    "half_precision_backend": "cpu_amp",
    "bf16_full_eval": True,
    "f16_full_eval": True,
    "local_rank": 0,
    "xpu_backend": "gloo",
    "dataloader_drop_last": True,
    "eval_steps": 2,
    "dataloader_num_workers": 1,
    "past_index": 1,
    "run_name": "a name",
    "disable_tqdm": False,
    "remove_unused_columns": False,
    "label_names": ["labels"],
    "load_best_model_at_end": True,
    "metric_for_best_model": "loss",
    "greater_is_better": False,
    "ignore_data_skip": True,
    "label_smoothing_factor": 0.1,
    "debug": "underflow_overflow",
    "optim": "adamw_anyprecision",
    "optim_args": "momentum_dtype=float32",
    "adafactor": True,
    "group_by_length": True,
    "length_column_name": "size",
    "report_to": ["tensorboard"],
    "ddp_find_unused_parameters": True,
    "ddp_bucket_cap_mb": 5,
    "dataloader_pin_memory": False,
    "skip_memory_metrics": False,
    "resume_from_checkpoint": "latest",
    "push_to_hub": True,
    "hub_model_id": "me/model",
    "hub_strategy": "end",
    "hub_token": "hf_secret",
    "hub_private_repo": True,
    "gradient_checkpointing": True,
    "include_inputs_for_metrics": True,
    "auto_find_batch_size": True,
    "full_determinism": True,
    "torchdynamo": "eager",
    "ddp_timeout": 60,
    "ray_scope": "all",
    "sharded_ddp": "zero_dp_3",
    "fsdp": "full_shard",
    "fsdp_min_num_params": 100,
}
# What a value needs beside it to mean something, or to be quick.
COMPANY = {
    "jit_mode_eval": {"torchdynamo": "eager"},
    "fp16_opt_level": {"bf16": True},
    "fp16_backend": {"bf16": True},
    "half_precision_backend": {"bf16": True},
    "optim_args": {"optim": "adamw_anyprecision"},
    "length_column_name": {"group_by_length": True},
    "load_best_model_at_end": {"eval_strategy": "epoch"},
    "metric_for_best_model": {"eval_strategy": "epoch"},
    "eval_delay": {"eval_strategy": "epoch"},
    "eval_steps": {"eval_strategy": "steps"},
    "fsdp_min_num_params": {"fsdp": "full_shard"},
}
# Refused on a CPU, or while a package is missing.
REFUSED = {
    "use_ipex": True,
    "tf32": True,
    "fp16_backend": "apex",
    "half_precision_backend": "apex",
    "optim": "adamw_apex_fused",
    "use_mps_device": True,
    "debug": "tpu_metrics_debug",
    "deepspeed": {"zero_optimization": {"stage": 2}},
    "report_to": "neptune",
}


class Small(torch.nn.Module):
    """A classifier of the words' mean that takes `mems` and can be told to recompute."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(8, 4)
        self.head = torch.nn.Linear(4, 2)

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs=None):
        self.recomputes = True

    def forward(self, input_ids, labels=None, mems=None):
        logits = self.head(self.table(input_ids).mean(1))
        outputs = {"logits": logits}
        return outputs if labels is None else {"loss": torch.nn.functional.cross_entropy(logits, labels), **outputs}


ROWS = [{"input_ids": [i, i, i], "labels": i % 2} for i in range(8)]


@pytest.fixture
def unchanged(monkeypatch):
    """Whatever an argument changes outside the Trainer is changed back."""
    environment, level = dict(os.environ), logging.getLogger("oneloop").level
    yield
    os.environ.clear()
    os.environ.update(environment)
    logging.getLogger("oneloop").setLevel(level)
    torch.use_deterministic_algorithms(False)
    torch.compiler.reset()


def make(tmp_path, **given):
    args = TrainingArguments(**{"output_dir": str(tmp_path / "out"), "max_steps": 2, "report_to": "none"} | given)
    return Trainer(model=Small(), args=args, train_dataset=ROWS, eval_dataset=ROWS)


# -- the constructor --------------------------------------------------------------------------------------------------


def test_every_parameter_of_the_constructor(run_script, tmp_path):
    names = run_script("huggingface_trainer", *RUN, "--evaluation_strategy", "epoch")
    trainer, events = names["trainer"], names["events"].seen
    assert trainer.optimizer is names["optimizer"] and trainer.lr_scheduler is names["scheduler"]
    assert trainer.get_learning_rates() == [pytest.approx(0.1 * 0.95**36)]
    assert [step for name, step in events if name == "step"] == list(range(1, 37))
    # Two sets, each of them an evaluation: after three epochs, and once more by the script.
    assert [step for name, step in events if name == "evaluate"] == [12, 12, 24, 24, 36, 36, 36, 36]
    assert {"eval_seen_loss", "eval_new_accuracy", "eval_new_runtime"} <= names["metrics"].keys()
    assert names["metrics"]["eval_new_accuracy"] > 0.9
    assert names["predicted"].predictions.shape == (32,)  # classes, since the logits were preprocessed
    assert names["predicted"].metrics["test_accuracy"] == names["metrics"]["eval_new_accuracy"]

    out = tmp_path / "out"
    assert {"config.json", "model.safetensors", "tokenizer.json", "trainer_state.json"} <= set(os.listdir(out))
    results = json.loads((out / "all_results.json").read_text())
    for split, name in (("train", "train_loss"), ("eval", "eval_seen_loss"), ("test", "test_accuracy")):
        assert json.loads((out / f"{split}_results.json").read_text())[name] == results[name]


def test_a_model_made_anew_for_each_run(tmp_path):
    made = []

    def model_init():
        made.append(Small())
        return made[-1]

    args = TrainingArguments(str(tmp_path), max_steps=3, learning_rate=0.1, report_to="none")
    trainer = Trainer(model_init=model_init, args=args, train_dataset=ROWS)
    first = trainer.train()
    assert trainer.model is made[-1]
    assert trainer.train().training_loss == first.training_loss
    assert trainer.model is made[-1] is not made[0]


def test_without_arguments(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer = Trainer(Small(), train_dataset=ROWS)
    assert trainer.args.output_dir == "tmp_trainer"
    assert trainer.train().global_step == 3


def test_removing_a_default_callback(tmp_path):
    from oneloop import PrinterCallback

    trainer = make(tmp_path, disable_tqdm=True)
    assert isinstance(trainer.pop_callback(PrinterCallback), PrinterCallback)
    trainer.remove_callback(PrinterCallback)
    assert "PrinterCallback" not in trainer.callback_handler.callback_list


# -- the table --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def a_hub():
    """A Hub of this machine, for the argument that pushes."""
    with serving() as hub, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", hub.url)
        yield


@pytest.mark.parametrize("name", WORKS)
def test_an_argument_that_works(name, tmp_path, unchanged, a_hub):
    value = str(tmp_path / "logs") if name == "logging_dir" else WORKS[name]
    given = COMPANY.get(name, {}) | {name: value}
    default = getattr(TrainingArguments("out"), name)
    trainer = make(tmp_path, **given)
    assert getattr(trainer.args, name) == value
    assert name in ("disable_tqdm", "push_to_hub") or value != default
    result = trainer.train()
    assert result.global_step >= 1 and math.isfinite(result.training_loss)
    assert math.isfinite(trainer.evaluate()["eval_loss"])


@pytest.mark.parametrize(("name", "value"), REFUSED.items())
def test_an_argument_that_is_refused_in_words(name, value, tmp_path):
    with pytest.raises(UnsupportedError) as refused:
        make(tmp_path, **{name: value})
    (line,) = str(refused.value).splitlines()
    assert line.startswith(f"{name}=") or name == "fsdp_min_num_params"
    assert "Instead: " in line
    assert not (tmp_path / "out").exists()


def test_everything_refused_is_in_one_message(tmp_path):
    given = {name: value for name, value in REFUSED.items() if name not in ("fp16_backend", "use_mps_device")}
    with pytest.raises(UnsupportedError) as refused:
        make(tmp_path, **given)
    assert {line.split("=")[0] for line in str(refused.value).splitlines()} == set(given)


def test_all_arguments_that_work_at_once(tmp_path, unchanged):
    # Of some there can be only one: a precision, an optimizer, a length of the run.
    left_out = {"fp16", "f16_full_eval", "optim", "optim_args", "fp16_backend", "past_index", "torchdynamo"}
    given = {name: value for name, value in WORKS.items() if name not in left_out}
    given |= {"jit_mode_eval": False, "logging_dir": str(tmp_path / "logs"), "logging_strategy": "steps"}
    given |= {"save_strategy": "steps", "max_steps": 8, "include_inputs_for_metrics": False}
    trainer = make(tmp_path, **given)
    result = trainer.train()
    log = trainer.state.log_history
    assert result.global_step == 8
    assert [entry["step"] for entry in log if "loss" in entry] == [1, 2, 4, 6, 8]
    assert [entry["step"] for entry in log if "eval_loss" in entry and entry["step"] > 1] == [2, 4, 6, 8]
    assert {"init_mem_cpu_alloc_delta", "train_mem_cpu_alloc_delta"} <= result.metrics.keys()
    assert type(trainer.optimizer).__name__ == "Adafactor"
    assert trainer.model.recomputes
    assert list((tmp_path / "logs").glob("events.out.tfevents.*"))
    assert "hf_secret" not in "".join(path.read_text(errors="ignore") for path in tmp_path.rglob("*") if path.is_file())


def test_eval_delay_holds_for_the_first_step_too(tmp_path):
    trainer = make(tmp_path, eval_strategy="steps", eval_steps=2, eval_delay=2, logging_first_step=True)
    trainer.train()
    assert [entry["step"] for entry in trainer.state.log_history if "eval_loss" in entry] == [2]


# -- its methods ------------------------------------------------------------------------------------------------------


def test_the_methods_of_the_arguments(tmp_path):
    args = TrainingArguments(
        str(tmp_path), log_level="info", warmup_ratio=0.1, evaluation_strategy="epoch", hub_token="hf_secret"
    )
    assert args.get_process_log_level() == logging.INFO
    assert args.get_warmup_steps(1000) == 100
    with args.main_process_first(desc="preparing the data"):
        done = True
    assert done
    plain = args.to_dict()
    assert plain["eval_strategy"] == "epoch" and type(plain["eval_strategy"]) is str
    assert plain["hub_token"] == "<HUB_TOKEN>"
    assert json.loads(args.to_json_string()) == plain
    sanitized = args.to_sanitized_dict()
    assert {type(value) for value in sanitized.values()} <= {bool, int, float, str}
    assert sanitized["train_batch_size"] == 8
    assert TrainingArguments(str(tmp_path), warmup_steps=7, warmup_ratio=0.1).get_warmup_steps(1000) == 7


# -- Seq2Seq ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sortish", [False, True])
def test_seq2seq(run_script, sortish):
    options = ["--output_dir", "out", "--report_to", "none", "--learning_rate", 0.01, "--num_train_epochs", 8]
    options += ["--predict_with_generate", "--generation_max_length", 6, "--generation_num_beams", 2]
    names = run_script("huggingface_seq2seq", *options, "--sortish_sampler", sortish, "--save_strategy", "no")
    assert names["args"].sortish_sampler == sortish
    assert names["after"]["eval_loss"] < names["before"]["eval_loss"]
    assert names["before"]["eval_exact"] < 0.5 < 0.9 < names["after"]["eval_exact"]
    assert names["before"]["eval_gen_len"] <= 6
    predicted = names["predicted"]
    assert predicted.predictions.shape[0] == 32 and predicted.predictions.shape[1] <= 4
    assert predicted.metrics["test_exact"] > 0.9
