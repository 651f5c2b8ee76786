"""TRL's trainers on oneloop with models or sequences that are divided: `layouts_trl_job.py FOLDER LAYOUT [CASE ...]`.

Each process writes the losses and gradient norms of every case to FOLDER/rankN.json.
"""

import json
import os
import sys
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

from oneloop.compat.redirect import redirect

redirect("transformers")

import peft  # noqa: E402
import torch.distributed as dist  # noqa: E402
import trl  # noqa: E402

from oneloop.backends.torch.parallel import local  # noqa: E402
from oneloop.distributed.world import world  # noqa: E402
from tests.ecosystem import tiny, trl_data  # noqa: E402

LAYOUTS = {
    "whole": {},  # on one process, or two with different batches
    "sp2": {"sequence_parallel_size": 2},
    "tp2": {"tensor_parallel_size": 2},
    "shard2": {"sharding": "stage3"},
    "shard2 stage2": {"sharding": "stage2"},
    "tp2 x shard2": {"tensor_parallel_size": 2, "sharding": "stage3"},
}
LORA = {"peft_config": peft.LoraConfig(r=2, lora_dropout=0.0, target_modules=["q_proj", "v_proj"])}
PACKED = {"packing": True, "max_length": 19, "gradient_checkpointing": True}
# Small steps: where advantages cancel out, gradients are rounding errors, of which AdamW makes steps of full length.
ONLINE = trl_data.ONLINE | {"per_device_train_batch_size": 4, "temperature": 0.7, "learning_rate": 1e-6}
REWARDS = {"reward_funcs": trl_data.by_words}
CASES = {
    "sft": ("SFT", trl_data.messages, {"assistant_only_loss": True}, {}),
    "sft_packed": ("SFT", trl_data.texts, PACKED, {}),
    "sft_packed_lora": ("SFT", trl_data.texts, PACKED, LORA),
    "sft_smoothed": ("SFT", trl_data.texts, {"label_smoothing_factor": 0.1}, {}),
    "dpo": ("DPO", trl_data.preferences, {"gradient_accumulation_steps": 2}, {}),
    "dpo_lora": ("DPO", trl_data.preferences, {"gradient_checkpointing": True}, LORA),
    "reward": ("Reward", trl_data.preferences, {}, {}),
    "kto": ("KTO", trl_data.unpaired, {}, {}),
    "grpo": ("GRPO", trl_data.prompts, ONLINE, REWARDS),
    "rloo": ("RLOO", trl_data.prompts, ONLINE, REWARDS),
}
KEYS = ("loss", "grad_norm", "mean_token_accuracy", "rewards/margins", "reward", "kl")


SENT = []  # all-to-alls of the current case
_exchange = dist.all_to_all_single


def _counted(*args, **kwargs):
    SENT.append(1)
    return _exchange(*args, **kwargs)


def play(folder, layout, name):
    SENT.clear()
    kind, data, given, extra = CASES[name]
    options = trl_data.COMMON | {"logging_steps": 1} | given | LAYOUTS[layout]
    args = getattr(trl, f"{kind}Config")(output_dir=str(folder / name), **options)
    model = tiny.classifier() if kind == "Reward" else tiny.causal()
    if kind in ("GRPO", "RLOO"):
        trl_data.seeded(model)
    trainer = getattr(trl, f"{kind}Trainer")(
        model=model, args=args, train_dataset=data(), processing_class=tiny.tokenizer(), **extra
    )
    assert trainer.accelerator.parallelism_config is None
    trainer.train()
    found = {
        key: [log[key] for log in trainer.state.log_history if "loss" in log]
        for key in KEYS
        if any(key in log for log in trainer.state.log_history)
    }
    return found | {"messages": len(SENT), "held": held(trainer.model)}


def held(model):
    """The share of the weights that this process has."""
    own = sum(local(p).numel() for p in model.parameters())
    return own / sum(p.numel() for p in model.parameters())


def main(folder, layout, *names):
    dist.all_to_all_single = _counted
    found = {}
    for name in names or CASES:
        found[name] = play(Path(folder), layout, name)
    (Path(folder) / f"rank{world().rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
