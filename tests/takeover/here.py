"""A run that began elsewhere and continues here: `here.py FOLDER CHECKPOINT [NAME=JSON ...]`, or with torchrun.
Without a checkpoint (`-`) it begins here.

The losses of its steps go to FOLDER/here.json.
"""

import json
import logging
import os
import sys
from pathlib import Path

from oneloop import Trainer, TrainingArguments
from tests.takeover import common


def main(folder, checkpoint, *more):
    logging.basicConfig(level=logging.WARNING)
    given = {name: json.loads(value) for name, value in (text.split("=", 1) for text in more)}
    kind = given.pop("model", "whole")
    rows = given.pop("rows", 8 * common.BATCH)
    if rows > common.BATCH:  # else every update has all rows
        given = {"data_order": "transformers"} | given
    if "deepspeed" in given:
        common.prepare_deepspeed()
    batches = int(os.environ.get("WORLD_SIZE", "1")) // given.get("tensor_parallel_size", 1)
    args = TrainingArguments(
        output_dir=str(Path(folder) / "out"),
        device="cpu",
        per_device_train_batch_size=common.BATCH // batches,
        **common.SHARED | given,
    )
    trainer = Trainer(common.model(kind), args, train_dataset=common.rows(rows))
    trainer.train(resume_from_checkpoint=None if checkpoint == "-" else checkpoint)
    if trainer.is_world_process_zero():
        (Path(folder) / "here.json").write_text(json.dumps(common.losses(trainer)))


if __name__ == "__main__":
    main(*sys.argv[1:])
