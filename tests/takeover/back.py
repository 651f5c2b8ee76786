"""What is exported, continued elsewhere: `back.py FOLDER CHECKPOINT transformers|dcp [NAME=JSON ...]`, or by torchrun.

The losses of the remaining steps, in transformers' Trainer or in a loop by hand, go to FOLDER/back.json.
"""

import json
import os
import sys
from pathlib import Path

import torch
import transformers

from tests.takeover import common
from tests.takeover.by_hand import groups, loss_of


def by_transformers(folder, checkpoint, rows=common.BATCH, model="whole", **given):
    args = transformers.TrainingArguments(
        output_dir=str(Path(folder) / "back"),
        use_cpu=True,
        per_device_train_batch_size=common.BATCH // int(os.environ.get("WORLD_SIZE", "1")),
        **common.SHARED | given,
    )
    trainer = transformers.Trainer(common.model(model), args, train_dataset=common.rows(rows))
    trainer.train(resume_from_checkpoint=str(checkpoint))
    return common.losses(trainer), trainer.model


def by_dcp(folder, checkpoint):
    """A loop with FSDP2 under torchrun, or without it alone."""
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    model = common.model()
    if size > 1:
        dist.init_process_group("gloo")
        fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (size,)))
    optimizer = torch.optim.AdamW(groups(model), lr=common.SHARED["learning_rate"])
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, common.SHARED["warmup_steps"], common.STEPS)
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "lr_scheduler": schedule.state_dict(), "step": 0}
    dcp.load(state, checkpoint_id=checkpoint, no_dist=size == 1)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    schedule.load_state_dict(state["lr_scheduler"])
    rows = common.rows(common.BATCH)
    total = sum(int((row["labels"][1:] != -100).sum()) for row in rows)
    found = []
    for _ in range(state["step"], common.STEPS):
        loss = loss_of(model, rows[rank::size], total, size)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        if size > 1:
            dist.all_reduce(mean)
        found.append(float(mean) / size)
    if size > 1:
        dist.destroy_process_group()
    return found, model


def main(folder, checkpoint, to, *more):
    given = {name: json.loads(value) for name, value in (text.split("=", 1) for text in more)}
    losses, _ = by_transformers(folder, checkpoint, **given) if to == "transformers" else by_dcp(folder, checkpoint)
    if int(os.environ.get("RANK", "0")) == 0:
        (Path(folder) / "back.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    main(*sys.argv[1:])
