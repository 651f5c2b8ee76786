"""One of several processes of a run in object storage: python processes_job.py URL RESULT OPTIONS

OPTIONS is a JSON object: `arguments` of the run, `dies_at` a step, `best` to evaluate and load the best model, `killed`
the checkpoint, the rank, and the number of its uploads at which that process is killed.
"""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import torch

from oneloop import Trainer, TrainingArguments
from oneloop.checkpoint import sharded
from oneloop.storage.remote import RemoteDirectory
from tests.backends.kits.torch_kit import Kit
from tests.backends.support import rows
from tests.storage.support import RUN, At, die


def kill_at(checkpoint, rank, number):
    """The upload of that many files of a checkpoint is the last thing that the process does."""
    upload, seen = RemoteDirectory.upload, []

    def until(self, path, name, progress=None):
        upload(self, path, name, progress)
        if name.startswith(f"{checkpoint}/") and int(os.environ["RANK"]) == rank:
            seen.append(name)
            if len(seen) == number:
                os.kill(os.getpid(), signal.SIGKILL)

    RemoteDirectory.upload = until


class Worsens:
    """The metric of the n-th evaluation, of which the second is the best."""

    def __init__(self):
        self.values = [0.5, 0.9, 0.7]

    def __call__(self, prediction):
        return {"score": self.values.pop(0)}


def main(url, result, options):
    given = json.loads(options)
    sharded._GRACE_SECONDS = 2.0  # a process that was killed leaves no note
    if "killed" in given:
        kill_at(*given["killed"])
    best, more = {}, {}
    if given.get("best"):
        best = {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True, "save_total_limit": 2}
        best["metric_for_best_model"] = "score"
        more = {"eval_dataset": rows(8), "compute_metrics": Worsens()}
    args = TrainingArguments(url, **RUN | {"per_device_train_batch_size": 2} | best | given.get("arguments", {}))
    callbacks = [At(given["dies_at"], die)] if "dies_at" in given else []
    trainer = Trainer(Kit().classifier(), args, train_dataset=rows(16), callbacks=callbacks, **more)
    trainer.train(resume_from_checkpoint=True)
    trainer.save_model()
    local = sorted(path.name for path in Path(args.output_dir).iterdir() if "checkpoint-" in path.name)
    every = [None, None]
    torch.distributed.all_gather_object(every, local)
    if trainer.is_world_process_zero():
        digest = hashlib.sha256(Path(args.output_dir, "model.safetensors").read_bytes()).hexdigest()
        facts = {"digest": digest, "step": trainer.state.global_step, "local": every}
        facts["best"] = os.path.basename(trainer.state.best_model_checkpoint or "")
        Path(result).write_text(json.dumps(facts))
    torch.distributed.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
