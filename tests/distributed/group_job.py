"""A script that makes its process group itself, without a launcher's variables, or leaves it to oneloop: `group_job.py
FOLDER own|launched`."""

import json
import os
import sys
from pathlib import Path

import torch.distributed as dist

from oneloop import Trainer, TrainingArguments
from tests.backends.support import kit_module, rows

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def main(folder, own_group):
    if own_group:
        given = {name: os.environ.pop(name) for name in VARIABLES}
        rank, size = int(given["RANK"]), int(given["WORLD_SIZE"])
        dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=size)
    model = kit_module("torch").Kit().classifier()
    options = {"per_device_train_batch_size": 4, "max_steps": 4, "report_to": "none", "save_strategy": "no"}
    args = TrainingArguments(output_dir=str(folder / "run"), logging_steps=1, disable_tqdm=True, **options)
    trainer = Trainer(model, args, train_dataset=rows(32))
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    told = {"world": [args.process_index, args.world_size], "losses": losses, "kept": dist.is_initialized()}
    (folder / f"rank{args.process_index}.json").write_text(json.dumps(told))
    if own_group:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] == "own")
