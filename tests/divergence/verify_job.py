"""Runs on several processes whose gradients are computed twice: `verify_job.py FOLDER LAYOUT [LAYOUT ...]`.

Each layout is trained without a fault, and with a layer of process 1 that draws random numbers of its own. Every
process writes what it was told into FOLDER/rankN.json.
"""

import json
import random
import sys
from pathlib import Path

from oneloop import Trainer, TrainingArguments
from oneloop.distributed.world import world
from oneloop.errors import ReplayError
from tests.divergence import pairs, torch_model

PLACE = "blocks.1.mlp.act"


def run(folder, layout, with_dice, **given):
    model = torch_model.Model()
    model.with_stats = False
    pairs.set_weights(model, torch_model, 3)
    if with_dice and world().rank == 1:
        dice, layer = random.SystemRandom(), torch_model.named_layers(model)[PLACE]
        before = layer.forward
        layer.forward = lambda x: before(x) * (1 + 1e-3 * dice.random())
    options = {"per_device_train_batch_size": 4} | pairs.LAYOUTS[layout] | given
    args = TrainingArguments(
        str(folder), max_steps=2, verify_steps=2, report_to="none", save_strategy="no", device="cpu",
        disable_tqdm=True, logging_strategy="no", ddp_timeout=60, **options,
    )  # fmt: skip
    trainer = Trainer(model, args, train_dataset=pairs.samples(3))
    try:
        trainer.train()
    except ReplayError as error:
        return trainer.state.global_step, str(error)
    return trainer.state.global_step, ""


def main(folder, *layouts):
    folder, found = Path(folder), {}
    for layout in layouts:
        found[layout] = [run(folder / f"{layout}-{dice}", layout, dice) for dice in (False, True)]
    found["warned"] = [run(folder / "warned", layouts[0], True, verify_action="warn")]
    (folder / f"rank{world().rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
