"""Configurations of `llamafactory-cli train`, as its YAML files have them, and a way to play them in one process.

    python -m tests.llamafactory.scenarios transformers|oneloop FOLDER [NAME ...]

FOLDER has what tiny.make wrote. The files of a run go to FOLDER/SIDE/NAME, an error to FOLDER/SIDE/NAME.error.
"""

import sys
from contextlib import contextmanager
from pathlib import Path

from tests.ecosystem.two_sides import play_all

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false"}
DATA = {"pt": "texts", "sft": "conversations", "dpo": "preferences", "kto": "verdicts", "rm": "preferences"}
LORA = {"finetuning_type": "lora", "lora_rank": 4, "lora_target": "all", "lora_dropout": 0.1}
FULL = {"finetuning_type": "full"}
STAGES = ("pt", "sft", "dpo", "rm")

SCENARIOS = {
    f"{stage}-{kind}": {"stage": stage} | how for stage in STAGES for kind, how in (("full", FULL), ("lora", LORA))
}
SCENARIOS |= {
    "sft-freeze": {"stage": "sft", "finetuning_type": "freeze", "freeze_trainable_layers": 1},
    "sft-packed": {"stage": "sft", "packing": True, "neat_packing": False, "max_steps": 3, "save_steps": 2} | FULL,
    "sft-accuracy": {"stage": "sft", "compute_accuracy": True, "disable_shuffling": True} | FULL,
    "sft-loraplus": {"stage": "sft", "loraplus_lr_ratio": 16.0} | LORA,
    "sft-neftune": {"stage": "sft", "neftune_noise_alpha": 5.0, "lr_scheduler_type": "cosine"} | LORA,
    "dpo-orpo": {"stage": "dpo", "pref_loss": "orpo"} | LORA,
    "dpo-ftx": {"stage": "dpo", "pref_ftx": 0.5, "average_tokens_across_devices": False} | FULL,
    "kto-lora": {"stage": "kto"} | LORA,
}  # fmt: skip


def configuration(folder, output, scenario):
    """The whole configuration of a scenario."""
    folder, own = Path(folder), SCENARIOS[scenario]
    return {
        "model_name_or_path": str(folder / "model"),
        "dataset_dir": str(folder / "data"),
        "dataset": DATA[own["stage"]],
        "template": "default",
        "cutoff_len": 64,
        "val_size": 0.2,
        "do_train": True,
        "output_dir": str(output),
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "learning_rate": 0.01,
        "max_steps": 6,
        "save_steps": 3,
        "logging_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 3,
        "plot_loss": True,
        "report_to": "none",
        "disable_tqdm": True,
    } | own  # fmt: skip


@contextmanager
def shifted_counts():
    """A causal model compares position i with label i+1, so the first label of a row is none. transformers counts it in
    num_items_in_batch before 5.22, also where it is not -100, which makes the losses of pre-training too small."""
    from transformers import Trainer

    counted = Trainer._get_num_items_in_batch

    def shifted(self, batches, device):
        return counted(self, [{"labels": batch["labels"][:, 1:]} for batch in batches], device)

    Trainer._get_num_items_in_batch = shifted
    try:
        yield
    finally:
        Trainer._get_num_items_in_batch = counted


def play(folder, side, name):
    """NAME is a scenario; NAME:again resumes it from its first checkpoint, NAME:over from that of transformers, and
    NAME:shifted counts labels as transformers 5.22 does; each in a directory of its own."""
    from llamafactory.train.tuner import run_exp

    scenario, _, how = name.partition(":")
    given = configuration(folder, Path(folder) / side / name.replace(":", "-"), scenario)
    if how == "shifted":
        with shifted_counts():
            run_exp(given)
        return
    if how:
        source = {"again": side, "over": "transformers"}[how]
        given["resume_from_checkpoint"] = str(Path(folder) / source / scenario / f"checkpoint-{given['save_steps']}")
    if side == "oneloop":
        given["data_order"] = "transformers"
    run_exp(given)


def main(side, folder, *names):
    return play_all(play, OFFLINE, side, folder, names or SCENARIOS)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
