"""Tiny runs with one argument each, in one layout: `matrix_job.py FOLDER LAYOUT NUMBER ...`.

Each number is that of an entry of ENTRIES. The first process appends a line of JSON for every run to FOLDER/LAYOUT, so
that one pair of processes does hundreds of runs, and what was done is known if they die.
"""

import contextlib
import io
import json
import logging
import shutil
import sys
import warnings
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
# Name: number of processes, number of batches, arguments, and the model.
LAYOUTS = {
    "alone": (1, 1, {}, llama),
    "tp2": (2, 1, {"tensor_parallel_size": 2}, llama),
    "sp2": (2, 1, {"sequence_parallel_size": 2}, llama),
    "tp2 x shard2": (4, 2, {"tensor_parallel_size": 2, "sharding": "stage3"}, llama),
    "alone with experts": (1, 1, {}, moe),
    "ep2": (2, 1, {"expert_parallel_size": 2}, moe),
}
ALONE = {"ep2": "alone with experts"}  # what a layout is compared with, if not with "alone"
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
    "use_liger_kernel": [True],
    "use_legacy_prediction_loop": [True],
}
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
    "neftune_noise_alpha": "noise; it differs from that of one process on the sequence axis and with several batches",
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
        given = {key: value for key, value in case.given.items() if key != "resume_from_checkpoint"}
        found += [(name, value, given) for value in values[-2:]]
    return found


ENTRIES = entries()


def train(folder, layout, argument, value, given):
    _, batches, own, make = LAYOUTS[layout]
    options = USUAL | {"per_device_train_batch_size": GLOBAL_BATCH // batches} | given | {argument: value} | own
    if argument in own:
        options[argument] = value
    if argument == "per_device_train_batch_size" or "per_device_train_batch_size" in given:
        options["per_device_train_batch_size"] = max(1, options["per_device_train_batch_size"] // batches)
    if argument == "output_dir":
        options.pop("output_dir")
    if "max_steps" in options and options["max_steps"] > 3:
        options["max_steps"] = 6
    seen = Seen()
    resume = options.pop("resume_from_checkpoint", None)
    trainer = Trainer(
        make(),
        TrainingArguments(str(Path(folder) / "run"), **options),
        train_dataset=texts(),
        # With a label for every token, the loss does not depend on which samples are evaluated together.
        eval_dataset=[sample | {"labels": sample["input_ids"]} for sample in texts(6, seed=1)],
        callbacks=[seen],
        compute_metrics=lambda prediction, compute_result=True: {"rising": 1.0, "falling": -1.0, "score": 1.0},
    )
    trainer.train(resume_from_checkpoint=resume if (Path(folder) / "run").exists() else None)
    evaluated = trainer.evaluate()
    weights = full_tensors(trainer)
    return {
        "losses": seen.losses,
        "norms": [norm for norm in seen.norms if norm is not None],
        "steps": trainer.state.global_step,
        "eval_loss": evaluated.get("eval_loss"),
        "weights": [float(abs(weights[name]).double().sum()) for name in sorted(weights)],
    }


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
    own = Path(folder) / f"{layout}-{world().rank}"
    own.mkdir(parents=True, exist_ok=True)
    place = Path(folder) / layout  # shared by the processes of a run
    place.mkdir(exist_ok=True)
    for number in map(int, numbers):
        with contextlib.redirect_stdout(io.StringIO()):
            found = outcome(place, layout, number)
        if world().rank == 0:
            with (Path(folder) / f"{layout}.jsonl").open("a") as file:
                file.write(json.dumps({"number": number} | found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
