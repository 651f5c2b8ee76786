"""A longer run of several processes, as a program that is killed, stopped and signalled from outside.

    running.py --output DIR [--resume] [--steps N] [--pause S] [--hang RANK:STEP] [--fail RANK:STEP] [--adapter]
               [--model llama|moe] [--set NAME=JSON]

Each process prints `rank R pid P` at its start and `rank R step N` after every step. At its end the main process writes
DIR/result.json, as tests/checkpoint/job.py does.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

from oneloop import Trainer, TrainerCallback, TrainingArguments
from oneloop.distributed.world import world
from tests.backends.kits.torch_kit import Job
from tests.checkpoint.job import NoisyCollator, NoisyTexts, result
from tests.internals import full_tensors


class Telling(TrainerCallback):
    def __init__(self, pause, hang, fail):
        self.pause, self.hang, self.fail = pause, hang, fail

    def on_step_end(self, args, state, control, **kwargs):
        print(f"rank {world().rank} step {state.global_step}\n", end="", flush=True)
        here = f"{world().rank}:{state.global_step}"
        if here == self.fail:
            raise KeyError("broken")
        time.sleep(600 if here == self.hang else self.pause)


def parts(model, adapter, args):
    """What a Trainer is made of: model, arguments, collator, data for training and evaluation."""
    if model is not None:
        from tests.distributed import experts_job, layouts_job

        made = layouts_job.llama(attention_dropout=0.1) if model == "llama" else experts_job.qwen3()
        return made, args, None, layouts_job.texts(56), layouts_job.texts(7, seed=1)
    kit = Job()
    made = kit.adapted() if adapter else kit.model()
    return made, args, NoisyCollator(kit), NoisyTexts(56, 5, kit), NoisyTexts(7, 6, kit)


def main(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", required=True)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--hang", help="RANK:STEP, after which this process does nothing more")
    parser.add_argument("--fail", help="RANK:STEP, after which this process raises an error")
    parser.add_argument("--no-sync", action="store_true")
    parser.add_argument("--adapter", action="store_true", help="train LoRA")
    parser.add_argument("--model", choices=("llama", "moe"), help="a tiny one of transformers")
    parser.add_argument("--set", action="append", default=[])
    given = parser.parse_args(argv)
    if given.no_sync:
        os.fsync = lambda descriptor: None
    print(f"rank {world().rank} pid {os.getpid()}\n", end="", flush=True)
    options = {
        "per_device_train_batch_size": 12 // world().size,
        "per_device_eval_batch_size": 4,
        "max_steps": given.steps,
        "learning_rate": 0.05,
        "logging_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 5,
        "save_steps": 2,
        "save_total_limit": 3,
        "seed": 11,
        "report_to": "none",
        "disable_tqdm": True,
        "device": "cpu",
        "ddp_timeout": 8,
    }
    options |= {name: json.loads(value) for name, value in (text.split("=", 1) for text in given.set)}
    trainer = Trainer(
        *parts(given.model, given.adapter, TrainingArguments(given.output, **options)),
        callbacks=[Telling(given.pause, given.hang, given.fail)],
    )
    trainer.train(resume_from_checkpoint=given.resume)
    weights = {name: tensor.numpy() for name, tensor in full_tensors(trainer).items()}
    if world().is_main:
        partial = Path(given.output) / "result.partial"
        partial.write_text(
            json.dumps(result(trainer, given.output, weights) | {"counts": None}, indent=1, sort_keys=True)
        )
        os.replace(partial, Path(given.output) / "result.json")
    print(f"rank {world().rank} done\n", end="", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
