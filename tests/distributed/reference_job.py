"""TRL's trainers with a second model that is not trained, as a program: `reference_job.py FOLDER ENGINE TRAINER ...`.

ENGINE shards the models on two processes: `zero2` or `zero3` (DeepSpeed), `stage2` or `stage3` (FSDP2). TRL itself
prepares the reference model, by what the Trainer and accelerate tell it. Each process writes FOLDER/rankN.json.
"""

import json
import os
import sys
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

from oneloop.compat.redirect import redirect

redirect("transformers")

from accelerate.state import AcceleratorState  # noqa: E402

from oneloop.distributed.world import world  # noqa: E402
from tests.ecosystem import tiny, trl_data  # noqa: E402

DATA = {"DPO": trl_data.preferences, "KTO": trl_data.unpaired, "GRPO": trl_data.prompts}
MORE = {
    "DPO": {},
    "KTO": {},
    "GRPO": {"num_generations": 2, "max_completion_length": 4, "beta": 0.1},
}


def sharded(engine):
    if world().size == 1:
        return {}
    if engine.startswith("stage"):
        return {"sharding": engine}
    from tests.distributed.deepspeed_job import without_building

    without_building()
    zero = {"stage": int(engine[-1]), "reduce_bucket_size": "auto"}
    return {"deepspeed": {"zero_optimization": zero, "train_micro_batch_size_per_gpu": "auto"}}


def run(folder, name, engine):
    size = world().size
    library = trl_data.library(name)
    given = trl_data.COMMON | {"per_device_train_batch_size": 4 // size, "max_steps": 3} | MORE[name] | sharded(engine)
    args = getattr(library, f"{name}Config")(output_dir=f"{folder}/{name}", **given)
    rewards = {"reward_funcs": [trl_data.by_words]} if name == "GRPO" else {}
    trainer = getattr(library, f"{name}Trainer")(
        model=f"{folder}/model", args=args, train_dataset=DATA[name](), processing_class=tiny.tokenizer(), **rewards
    )
    before = trainer.deepspeed is None
    trainer.train()
    state = AcceleratorState()
    plugin = state.deepspeed_plugin
    return {
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        "flags": [trainer.is_deepspeed_enabled, trainer.is_fsdp_enabled],
        "type": str(state.distributed_type.value),
        "stage": None if plugin is None else plugin.zero_stage,
        "reference": type(trainer.ref_model).__name__,
        "here": sum(p.numel() for p in map(local, trainer.ref_model.parameters())),
        "engine": before and type(trainer.deepspeed).__name__,
        "wrapped": trainer.accelerator.unwrap_model(trainer.model_wrapped) is trainer.model,
    }


def local(parameter):
    """What this process has of it, between passes."""
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def main(folder, engine, *names):
    found = {name: run(folder, name, engine) for name in names}
    (Path(folder) / f"rank{world().rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
