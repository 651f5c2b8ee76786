"""A script as users write it, which `accelerate launch --config_file x.yaml` starts. FOLDER has a model of
transformers.

Nothing in it says how the processes share the work. Each writes what it saw to FOLDER/rankN.json.
"""

import json
import os
import sys
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification

from oneloop import Trainer, TrainingArguments
from oneloop.distributed.world import world
from tests.internals import strategy_of

STEPS = 4
ATTENTION = os.environ.get("ATTENTION", "eager")


def samples():
    drawn = torch.Generator().manual_seed(1)
    rows = torch.randint(3, 40, (32, 6), generator=drawn)
    return [{"input_ids": row, "labels": int(row[0] > 20)} for row in rows]


def main(folder):
    if len(sys.argv) > 2:  # DeepSpeed would compile a transport through shared memory for minutes; gloo does.
        import deepspeed.ops

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    args = TrainingArguments(
        str(folder / "out"),
        per_device_train_batch_size=8 // int(os.environ.get("BATCHES", world().size)),
        max_steps=STEPS,
        logging_steps=1,
        save_steps=2,
        learning_rate=0.01,
        report_to="none",
        disable_tqdm=True,
    )
    model = AutoModelForSequenceClassification.from_pretrained(folder / "model", attn_implementation=ATTENTION)
    empty = not any(bool(p.any()) for p in model.parameters())
    divided = any(hasattr(p, "ds_id") for p in model.parameters())
    trainer = Trainer(model, args, train_dataset=samples())
    trainer.train()
    found = {
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        "strategy": type(strategy_of(trainer)).__name__,
        "empty": empty,
        "divided": divided,
        "checkpointing": model.is_gradient_checkpointing,
        "sharding": args.sharding,
        "sizes": [args.tensor_parallel_size, args.sequence_parallel_size],
        "bf16": args.bf16,
    }
    (folder / f"rank{world().rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
