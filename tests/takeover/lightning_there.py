"""A run of Lightning's Trainer, alone or under torchrun: `lightning_there.py FOLDER WAY`.

Each update has all rows, so that their order does not matter. It saves after 20 of 40 steps to FOLDER/saved; the losses
of all steps go to FOLDER/there.json.
"""

import json
import logging
import os
import sys
from pathlib import Path

import lightning
import torch
import torch.distributed as dist
import transformers
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy

from tests.takeover import common
from tests.takeover.by_hand import groups, loss_of

WAYS = ("file", "ddp", "sharded", "whole")  # of ModelParallelStrategy the last two


class Rows(torch.utils.data.IterableDataset):
    def __init__(self, rank, size):
        self.rows = common.rows(common.BATCH)[rank::size]

    def __iter__(self):
        while True:
            yield self.rows


class Lit(lightning.LightningModule):
    def __init__(self, way, size):
        super().__init__()
        self.model, self.way, self.size, self.losses = common.model(), way, size, []
        self.total = sum(int((row["labels"][1:] != -100).sum()) for row in common.rows(common.BATCH))

    def configure_model(self):
        if self.way in ("sharded", "whole"):
            from torch.distributed.fsdp import FSDPModule, fully_shard

            if not isinstance(self.model, FSDPModule):
                for layer in self.model.model.layers:
                    fully_shard(layer, mesh=self.device_mesh["data_parallel"])
                fully_shard(self.model, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch, index):
        loss = loss_of(self.model, batch, self.total, self.size)
        mean = loss.detach().clone()
        if self.size > 1:
            dist.all_reduce(mean)
        self.losses.append(float(mean) / self.size)
        return loss

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(groups(self.model), lr=common.SHARED["learning_rate"])
        schedule = transformers.get_linear_schedule_with_warmup(optimizer, common.SHARED["warmup_steps"], common.STEPS)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main(folder, way):
    logging.getLogger("lightning").setLevel(logging.ERROR)
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    parallel = ModelParallelStrategy(
        data_parallel_size=size,
        tensor_parallel_size=1,
        save_distributed_checkpoint=way == "sharded",
        process_group_backend="gloo",
    )
    strategy = {"file": "auto", "ddp": DDPStrategy(process_group_backend="gloo")}.get(way, parallel)
    saving = ModelCheckpoint(f"{folder}/saved", every_n_train_steps=common.SAVED, save_top_k=-1)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=size,
        strategy=strategy,
        max_steps=common.STEPS,
        callbacks=[saving],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Lit(way, size)
    trainer.fit(module, torch.utils.data.DataLoader(Rows(rank, size), batch_size=None))
    if rank == 0:
        (Path(folder) / "there.json").write_text(json.dumps(module.losses))


if __name__ == "__main__":
    main(*sys.argv[1:])
