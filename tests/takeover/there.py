"""Runs of transformers' Trainer with DeepSpeed, as a program under torchrun: `there.py FOLDER CONFIG [NAME=JSON ...]`.

It trains the model of common.py and saves in the middle; the losses of all steps go to FOLDER/there.json.
"""

import json
import os
import sys
from pathlib import Path

import torch
import transformers

from tests.takeover import common


def main(folder, config, *more):
    common.prepare_deepspeed()
    given = {name: json.loads(value) for name, value in (text.split("=", 1) for text in more)}
    kind = given.pop("model", "whole")
    args = transformers.TrainingArguments(
        output_dir=str(Path(folder) / "out"),
        use_cpu=True,
        deepspeed=json.loads(config),
        per_device_train_batch_size=common.BATCH // int(os.environ.get("WORLD_SIZE", "1")),
        **common.SHARED | given,
    )
    trainer = transformers.Trainer(common.model(kind), args, train_dataset=common.rows())
    trainer.train()
    if trainer.is_world_process_zero():
        (Path(folder) / "there.json").write_text(json.dumps(common.losses(trainer)))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
