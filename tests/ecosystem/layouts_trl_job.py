"""TRL's trainers on oneloop with divided sequences, as a program: `sequence_trl_job.py FOLDER SEQUENCE_SIZE`.

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

from oneloop.distributed.world import world  # noqa: E402
from tests.ecosystem import tiny, trl_data  # noqa: E402

LORA = {"peft_config": peft.LoraConfig(r=2, lora_dropout=0.0, target_modules=["q_proj", "v_proj"])}
PACKED = {"packing": True, "max_length": 19, "gradient_checkpointing": True}
CASES = {
    "sft": ("SFT", trl_data.messages, {"assistant_only_loss": True}, {}),
    "sft_packed": ("SFT", trl_data.texts, PACKED, {}),
    "sft_packed_lora": ("SFT", trl_data.texts, PACKED, LORA),
    "sft_smoothed": ("SFT", trl_data.texts, {"label_smoothing_factor": 0.1}, {}),
    "dpo": ("DPO", trl_data.preferences, {"gradient_accumulation_steps": 2}, {}),
    "dpo_lora": ("DPO", trl_data.preferences, {"gradient_checkpointing": True}, LORA),
    "reward": ("Reward", trl_data.preferences, {}, {}),
}


SENT = []  # all-to-alls of the current case
_exchange = dist.all_to_all_single


def _counted(*args, **kwargs):
    SENT.append(1)
    return _exchange(*args, **kwargs)


def play(folder, size, name):
    SENT.clear()
    kind, data, given, extra = CASES[name]
    options = trl_data.COMMON | {"sequence_parallel_size": size, "logging_steps": 1} | given
    args = getattr(trl, f"{kind}Config")(output_dir=str(folder / name), **options)
    model = tiny.classifier() if kind == "Reward" else tiny.causal()
    trainer = getattr(trl, f"{kind}Trainer")(
        model=model, args=args, train_dataset=data(), processing_class=tiny.tokenizer(), **extra
    )
    assert trainer.accelerator.parallelism_config is None
    trainer.train()
    found = {
        key: [log[key] for log in trainer.state.log_history if "loss" in log]
        for key in ("loss", "grad_norm", "mean_token_accuracy", "rewards/margins")
        if any(key in log for log in trainer.state.log_history)
    }
    return found | {"messages": len(SENT)}


def main(folder, size):
    dist.all_to_all_single = _counted
    found = {name: play(Path(folder), int(size), name) for name in CASES}
    (Path(folder) / f"rank{world().rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
