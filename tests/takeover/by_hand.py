"""Training by hand with FSDP or DDP, as a program under torchrun: `by_hand.py FOLDER WAY`.

Each update has all rows, so that their order does not matter. After 20 of 40 steps it saves to FOLDER/saved by the
functions of accelerate or of torch that WAY names; the losses of all steps go to FOLDER/there.json.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import cross_entropy

from tests.takeover import common

WAYS = ("fsdp2-sharded", "fsdp2-full", "fsdp1-sharded", "fsdp1-full", "dcp", "titan", "accelerate")
LORA = ("fsdp2-sharded-lora", "fsdp2-full-lora", "fsdp1-sharded-lora")  # the adapter alone, as transformers' Trainer


def groups(model):
    decayed = [p for n, p in model.named_parameters() if "norm" not in n and p.requires_grad]
    still = [p for n, p in model.named_parameters() if "norm" in n and p.requires_grad]
    return [{"params": decayed, "weight_decay": common.SHARED["weight_decay"]}, {"params": still, "weight_decay": 0.0}]


def divided(model, way):
    if way.startswith("fsdp1"):
        from torch.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    if way == "accelerate":
        return model
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model.base_model.model if way.endswith("lora") else model).model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def save(folder, way, model, optimizer, schedule, step):
    if way.startswith("fsdp"):
        from accelerate import Accelerator, FullyShardedDataParallelPlugin
        from accelerate.utils import save_fsdp_model, save_fsdp_optimizer

        kind = "SHARDED_STATE_DICT" if "sharded" in way else "FULL_STATE_DICT"
        plugin = FullyShardedDataParallelPlugin(fsdp_version=int(way[4]), state_dict_type=kind)
        plugin.set_state_dict_type(kind)
        more = {"adapter_only": True} if way.endswith("lora") else {}
        save_fsdp_model(plugin, Accelerator(cpu=True), model, str(folder), **more)
        save_fsdp_optimizer(plugin, Accelerator(cpu=True), optimizer, model, str(folder))
        if dist.get_rank() == 0:
            torch.save(schedule.state_dict(), folder / "scheduler.bin")
        return
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, get_state_dict

    weights, state = get_state_dict(model, optimizer)
    if way == "dcp":
        dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder)
        return
    # As torchtitan: weights without a name around them, a flat optimizer, and objects with a state.
    flat = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))
    more = {"train_state": {"step": torch.tensor(step)}, "lr_scheduler": schedule, "dataloader": {"dp_rank_0": b"x"}}
    dcp.save({**weights, "optimizer": flat, **more}, checkpoint_id=folder)


def loss_of(model, rows, total, size):
    ids, labels = torch.stack([r["input_ids"] for r in rows]), torch.stack([r["labels"] for r in rows])
    logits = model(input_ids=ids).logits[:, :-1].flatten(0, 1)
    return cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum") * size / total


def main(folder, way):
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    rows = common.rows(common.BATCH)
    total = sum(int((row["labels"][1:] != -100).sum()) for row in rows)
    model = divided(common.model("lora" if way.endswith("lora") else "whole"), way)
    optimizer = torch.optim.AdamW(
        [group for group in groups(model) if group["params"]], lr=common.SHARED["learning_rate"]
    )
    times = size if way == "accelerate" else 1  # it steps schedules once for each process
    lengths = (common.SHARED["warmup_steps"] * times, common.STEPS * times)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, *lengths)
    accelerator = None
    if way == "accelerate":
        import accelerate

        accelerator = accelerate.Accelerator(cpu=True)
        model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    found = []
    for step in range(1, common.STEPS + 1):
        loss = loss_of(model, rows[rank::size], total, size)
        loss.backward()
        clip = model.clip_grad_norm_ if way.startswith("fsdp1") else None
        clip(1.0) if clip else torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        found.append(float(mean) / size)
        if step == common.SAVED:
            target = Path(folder) / "saved"
            target.mkdir(exist_ok=True)
            accelerator.save_state(str(target)) if accelerator else save(target, way, model, optimizer, schedule, step)
    if rank == 0:
        (Path(folder) / "there.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
