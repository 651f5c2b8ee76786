"""Command lines of `swift pt`, `swift sft` and `swift rlhf`, and a way to play them in one process.

    python -m tests.swift.scenarios transformers|oneloop FOLDER [NAME ...]

FOLDER has what tiny.make wrote. The files of a run go to FOLDER/SIDE/NAME, an error to FOLDER/SIDE/NAME.error.
"""

import sys
from pathlib import Path

from tests.ecosystem.two_sides import play_all

OFFLINE = {"HF_HUB_OFFLINE": "1", "USE_HF": "1", "TOKENIZERS_PARALLELISM": "false"}
DATA = {"pt": "texts", "sft": "conversations", "dpo": "preferences"}
LORA = {"tuner_type": "lora", "lora_rank": 4, "target_modules": "all-linear", "lora_dropout": 0.1}
FULL = {"tuner_type": "full"}

SCENARIOS = {
    "pt-full": ("pt", FULL),
    "pt-lora": ("pt", LORA),
    "sft-full": ("sft", FULL),
    "sft-lora": ("sft", LORA),
    "dpo-full": ("dpo", FULL),
    "dpo-lora": ("dpo", LORA),
    "sft-best": ("sft", FULL | {"load_best_model_at_end": "true", "save_total_limit": 1, "max_epochs": 1}),
    "dpo-rpo": ("dpo", LORA | {"rpo_alpha": 0.5, "beta": 0.3}),
}


def options(folder, output, scenario):
    """The options of a scenario, as a dict."""
    folder = Path(folder)
    stage, own = SCENARIOS[scenario]
    given = {
        "model": folder / "model",
        "model_type": "llama",
        "template": "dummy",
        "dataset": folder / "data" / f"{DATA[stage]}.jsonl",
        "split_dataset_ratio": 0.2,
        "max_length": 64,
        "torch_dtype": "float32",
        "fp16": "false",
        "bf16": "false",
        "output_dir": output,
        "add_version": "false",
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "learning_rate": 0.01,
        "max_steps": 6,
        "save_steps": 3,
        "logging_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 3,
        "dataloader_num_workers": 0,
        "dataset_num_proc": 1,
        "report_to": "none",
        "check_model": "false",
    }
    return (given | {"rlhf_type": "dpo"} if stage == "dpo" else given) | own


def command_line(given):
    return [str(word) for name, value in given.items() for word in (f"--{name}", value)]


def play(folder, side, name):
    """NAME is a scenario; NAME:again resumes it from its first checkpoint, in a directory of its own."""
    from swift.pipelines import pretrain_main, rlhf_main, sft_main

    scenario, _, again = name.partition(":")
    given = options(folder, Path(folder) / side / name.replace(":", "-"), scenario)
    if again:
        given["resume_from_checkpoint"] = Path(folder) / side / scenario / f"checkpoint-{given['save_steps']}"
    if side == "oneloop":
        given["data_order"] = "transformers"
    main = {"pt": pretrain_main, "sft": sft_main, "dpo": rlhf_main}[SCENARIOS[scenario][0]]
    main(command_line(given))


def main(side, folder, *names):
    return play_all(play, OFFLINE, side, folder, names or SCENARIOS)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
