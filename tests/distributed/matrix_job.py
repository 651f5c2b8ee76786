"""Tiny runs with one argument each, in one layout: `matrix_job.py FOLDER LAYOUT NUMBER ...`.

Each number is that of an entry of ENTRIES. The first process appends a line of JSON for every run to FOLDER/LAYOUT, so
that one pair of processes does hundreds of runs, and what was done is known if they die.
"""

import contextlib
import io
import json
import logging
import os
import shutil
import sys
import time
import warnings
from functools import partial
from pathlib import Path

from oneloop import Trainer, TrainingArguments
from oneloop.arguments.fields import declared
from oneloop.distributed.world import world
from oneloop.errors import OneloopError
from tests.arguments.cases import OBSERVATIONS
from tests.distributed.cases import Seen
from tests.distributed.experts_job import qwen3 as moe
from tests.distributed.layouts_job import llama, texts
from tests.internals import full_tensors

GLOBAL_BATCH = 8
# In bfloat16, kernels for several experts want rows of a multiple of 16 bytes.
experts = partial(moe, moe_intermediate_size=16)
# Name: number of processes, number of batches, arguments, and the model.
LAYOUTS = {
    "alone": (1, 1, {}, llama),
    "tp2": (2, 1, {"tensor_parallel_size": 2}, llama),
    "sp2": (2, 1, {"sequence_parallel_size": 2}, llama),
    "tp2 x shard2": (4, 2, {"tensor_parallel_size": 2, "sharding": "stage3"}, llama),
    "alone with experts": (1, 1, {}, experts),
    "ep2": (2, 1, {"expert_parallel_size": 2}, experts),
    "dp2": (2, 2, {}, llama),
}
DIVIDED = ("tp2", "sp2", "tp2 x shard2", "ep2")
ALONE = {"ep2": "alone with experts"}  # what a layout is compared with, if not with "alone"
# What depends on how many batches there are: layouts with two are compared with data parallelism.
BY_BATCHES = {
    "average_tokens_across_devices": "each batch has its own mean",
    "label_names": "a batch without labels of that name is a mean over its samples",
    "max_length": "packed rows have different numbers of labels, and an evaluation weighs batches by their rows",
    "max_tokens_per_batch": "each batch has its own budget",
    "neftune_noise_alpha": "each batch has its own noise",
}
TWO_BATCHES = "dp2"
USUAL = {
    "max_steps": 3,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "constant",
    "optim": "adamw_torch",
    "per_device_eval_batch_size": 4,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "log_level": "error",
    "use_cpu": True,
    "ddp_timeout": 120,
}
# Values for arguments that one process alone shows nothing of.
MORE = {
    "average_tokens_across_devices": [False],
    "ddp_backend": ["gloo"],
    "ddp_broadcast_buffers": [True, False],
    "ddp_bucket_cap_mb": [1],
    "ddp_find_unused_parameters": [True, False],
    "ddp_static_graph": [True],
    "ddp_timeout": [90],
    "deepspeed": [{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}],
    "eval_use_gather_object": [True],
    "fsdp_config": [{"min_num_params": 100}],
    "log_level_replica": ["error"],
    "log_on_each_node": [False],
    "save_on_each_node": [True],
    "sharding": ["stage1", "stage2", "stage3 offload"],
    "sharding_degree": [1],
    "torch_compile_backend": ["eager"],
    "use_liger_kernel": [True],
    "use_legacy_prediction_loop": [True],
}
GIVEN = {"torch_compile_mode": {"torch_compile_backend": "inductor"}}
# A length that two processes divide: noise is drawn for sequences with their padding.
LENGTH = {"neftune_noise_alpha": 8}
# Of several processes. What one process refuses, since there is nothing to divide, changes no result.
OF_SEVERAL = ("sharding_degree", "fsdp_config")
# Why an argument has no run here. What belongs to one process, or to services, is not a question of the layout.
ELSEWHERE = {
    "output_url": "storage, which is tested by itself",
    "push_to_hub": "the Hub, which is tested by itself",
    "hub_model_id": "the Hub, which is tested by itself",
    "hub_strategy": "the Hub, which is tested by itself",
    "hub_token": "the Hub, which is tested by itself",
    "hub_private_repo": "the Hub, which is tested by itself",
    "hub_always_push": "the Hub, which is tested by itself",
    "hub_revision": "the Hub, which is tested by itself",
    "project": "a writer, in the first process alone",
    "trackio_space_id": "a writer, in the first process alone",
    "trackio_bucket_id": "a writer, in the first process alone",
    "trackio_static_space_id": "a writer, in the first process alone",
    "dataloader_in_order": "samples in the order of their arrival, which no run repeats",
    "ray_scope": "a search, which compares runs",
    "local_rank": "a fixed value",
    "device_spec": "the device",
    "tpu_num_cores": "a fixed value",
    "mp_parameters": "a fixed value",
    "use_ipex": "a fixed value",
    "liger_kernel_config": "a part of use_liger_kernel",
    "tensor_parallel_size": "an axis",
    "sequence_parallel_size": "an axis",
    "expert_parallel_size": "an axis",
    "tensor_parallel_plan": "an axis",
    "parallelism_config": "the axes",
    "mixture_weights": "mixtures, which tests/distributed/test_sequence_parallel.py and test_mixtures.py train",
    "mixture_temperature": "mixtures",
    "mixture_stop": "mixtures",
    "mixture_metrics": "mixtures",
}
HALF = ("bf16", "fp16", "fp16_opt_level", "scale_loss", "half_precision_backend")  # runs in half precision


def entries():
    """(argument, value, other arguments), in the order of the documentation."""
    found = []
    for name in declared(TrainingArguments):
        if name in ELSEWHERE:
            continue
        if name in MORE:
            found += [(name, value, {}) for value in MORE[name]]
            continue
        case = OBSERVATIONS[name]
        default = getattr(TrainingArguments("unused", use_cpu=True), name, None)
        values = [value for value, _ in case.seen if value != default] or [case.seen[-1][0]]
        # Large steps would blow up the last bits in which any two layouts differ.
        given = {key: value for key, value in case.given.items() if key != "learning_rate"}
        found += [(name, value, GIVEN.get(name, given)) for value in values[-2:]]
    return found


ENTRIES = entries()


def train(folder, layout, argument, value, given):
    _, batches, own, make = LAYOUTS[layout]
    options = USUAL | {"per_device_train_batch_size": GLOBAL_BATCH // batches} | given | {argument: value} | own
    if argument in own:
        options[argument] = value
    if argument == "per_device_train_batch_size" or "per_device_train_batch_size" in given:
        options["per_device_train_batch_size"] = max(1, options["per_device_train_batch_size"] // batches)
    output = str(Path(folder) / "run")
    if argument == "output_dir":
        output = str(Path(folder) / "run" / options.pop("output_dir"))
    if "max_steps" in options and options["max_steps"] > 3:
        options["max_steps"] = 6
    resume = options.pop("resume_from_checkpoint", None)
    data = texts(length=LENGTH.get(argument, 9))
    if resume:
        first = {"max_steps": 2, "save_strategy": "steps", "save_steps": 2, "cooldown_steps": None}
        trainer_of(make(), output, data, USUAL | options | first, []).train()
        options["max_steps"] = 4
    seen = Seen()
    trainer = trainer_of(make(), output, data, options, [seen])
    trainer.train(resume_from_checkpoint=resume)
    evaluated = trainer.evaluate()
    weights = full_tensors(trainer)
    return {
        "losses": seen.losses,
        "norms": [norm for norm in seen.norms if norm is not None],
        "steps": trainer.state.global_step,
        "eval_loss": evaluated.get("eval_loss"),
        "weights": [float(abs(weights[name]).double().sum()) for name in sorted(weights)],
    }


def trainer_of(model, output, data, options, callbacks):
    return Trainer(
        model,
        TrainingArguments(output, **options),
        train_dataset=data,
        # With a label for every token, the loss does not depend on which samples are evaluated together.
        eval_dataset=[sample | {"labels": sample["input_ids"]} for sample in texts(6, seed=1)],
        callbacks=callbacks,
        compute_metrics=lambda prediction, compute_result=True: {"rising": 1.0, "falling": -1.0, "score": 1.0},
    )


def outcome(folder, layout, number):
    """What the run of an entry came to."""
    shutil.rmtree(Path(folder) / "run", ignore_errors=True)
    argument, value, given = ENTRIES[number]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return {"trained": train(folder, layout, argument, value, dict(given))}
    except OneloopError as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {str(error)[:400]}"}


def main(folder, layout, *numbers):
    logging.disable(logging.WARNING)
    folder = Path(folder).absolute()
    place = folder / layout  # shared by the processes of a run
    place.mkdir(exist_ok=True)
    os.chdir(place)  # of logs with relative names
    for number in map(int, numbers):
        began = time.monotonic()
        with contextlib.redirect_stdout(io.StringIO()):
            found = outcome(place, layout, number)
        found["seconds"] = round(time.monotonic() - began, 2)
        if world().rank == 0:
            with (folder / f"{layout}.jsonl").open("a") as file:
                file.write(json.dumps({"number": number} | found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
