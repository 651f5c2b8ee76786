"""One run on a stream, of one process or several, that may be killed and resumed.

    job.py FORMAT FOLDER OUTPUT [--workers N] [--sharding samples|shards] [--steps N] [--kill STEP] [--resume]

Each process appends the numbers of the samples of each step to OUTPUT/rank-R.jsonl; the main process writes the bytes
of the weights to OUTPUT/weights.json.
"""

import argparse
import json
import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn

from oneloop import Trainer, TrainerCallback, TrainingArguments
from oneloop.distributed.world import world
from tests.streams import formats

SAVE, BATCH = 4, 4  # of all processes


class Model(nn.Module):
    def __init__(self, file):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(formats.WIDTH, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        self.file, self.step = file, 0

    def forward(self, x, number, labels=None):
        with open(self.file, "a") as file:
            file.write(json.dumps([self.step, number.tolist()]) + "\n")
        logits = self.layers(x.float())
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Kill(TrainerCallback):
    def __init__(self, step, model):
        self.step, self.model = step, model

    def on_step_begin(self, args, state, control, **kwargs):
        self.model.step = state.global_step + 1

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def run(format, folder, output, workers=0, sharding="samples", steps=14, kill=0, resume=False, **given):
    """The Trainer after a run."""
    output.mkdir(parents=True, exist_ok=True)
    model = Model(output / f"rank-{world().rank}.jsonl")
    options = {"per_device_train_batch_size": BATCH // world().size, "max_steps": steps, "learning_rate": 0.05}
    options |= {"save_steps": SAVE, "save_async": False, "logging_steps": 2, "seed": 7, "device": "cpu"}
    options |= {"report_to": "none", "disable_tqdm": True, "dataloader_num_workers": workers}
    args = TrainingArguments(str(output), stream_sharding=sharding, **options | given)
    assert args.processes.size == world().size  # joins them: MDS would start a group of its own
    dataset = formats.build(format, folder) if isinstance(format, str) else format
    trainer = Trainer(model, args, train_dataset=dataset, callbacks=[Kill(kill, model)])
    trainer.train(resume_from_checkpoint=resume)
    if world().is_main:
        weights = {name: tensor.numpy().tobytes().hex() for name, tensor in model.state_dict().items()}
        losses = [entry for entry in trainer.state.log_history if "loss" in entry]
        (output / "weights.json").write_text(json.dumps({"weights": weights, "losses": losses}))
    return trainer


def samples(output, rank=0):
    """{step: the numbers of its samples}, of the last time that the step was done."""
    lines = (output / f"rank-{rank}.jsonl").read_text().splitlines()
    return dict(json.loads(line) for line in lines)


def result(output):
    """The bytes of the weights, and the logs."""
    return json.loads((output / "weights.json").read_text())


def main(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("format")
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--sharding", default="samples")
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--kill", type=int, default=0)
    parser.add_argument("--resume", action="store_true")
    run(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    main(sys.argv[1:])
