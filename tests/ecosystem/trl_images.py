"""Image-text models in TRL's trainers and in a plain Trainer."""

from pathlib import Path
from typing import Any

from tests.ecosystem import tiny_images
from tests.ecosystem.scenario import Scenario
from tests.ecosystem.trl_data import ACCUMULATED, COMMON, EVALUATED, N, library


def _of_trl(name: str, folder: Path, data: Any, given: dict[str, Any]) -> Any:
    args = getattr(library(name), f"{name}Config")(output_dir=str(folder), max_length=None, **{**COMMON, **given})
    extra = {"eval_dataset": data.select(range(0, len(data), 2))} if "eval_strategy" in given else {}
    return getattr(library(name), f"{name}Trainer")(
        model=tiny_images.llava(), args=args, train_dataset=data, processing_class=tiny_images.processor(),
        **({"ref_model": tiny_images.llava()} if name == "DPO" else {}), **extra,
    )  # fmt: skip


def sft(folder: Path, **given: Any) -> Any:
    return _of_trl("SFT", folder, tiny_images.messages(N), given)


def dpo(folder: Path, **given: Any) -> Any:
    return _of_trl("DPO", folder, tiny_images.preferences(N), given)


def plain(folder: Path, model: str = "llava", **given: Any) -> Any:
    """A script with transformers' own Trainer. Rows have different numbers of labels."""
    from transformers import Trainer, TrainingArguments

    made, rows, collate = getattr(tiny_images, f"{model}_rows")(N)
    args = TrainingArguments(output_dir=str(folder), remove_unused_columns=False, **{**COMMON, **given})
    return Trainer(made, args, train_dataset=rows, eval_dataset=rows[::2], data_collator=collate)


IMAGES = [
    Scenario("sft-llava", sft, dict(ACCUMULATED), quick=True),
    Scenario("dpo-llava", dpo, dict(ACCUMULATED), quick=True),
    Scenario("plain-llava", plain, dict(ACCUMULATED), quick=True, tolerance=1e-4),
    Scenario("plain-qwen2-vl", plain, {"model": "qwen2_vl", **ACCUMULATED}, quick=True),
    Scenario("sft-llava-plain", sft),
    Scenario("dpo-llava-plain", dpo),
    Scenario("sft-llava-best", sft, dict(EVALUATED)),
    Scenario("dpo-llava-best", dpo, dict(EVALUATED)),
    Scenario("plain-llava-best", plain, {**EVALUATED, **ACCUMULATED}, tolerance=1e-4),
    Scenario("plain-gemma3", plain, {"model": "gemma3", **ACCUMULATED}),
]
