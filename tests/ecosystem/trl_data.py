"""Data, rewards and common arguments for TRL's trainers, and how one of them is made."""

import importlib
from pathlib import Path
from typing import Any

from tests.ecosystem import tiny

COMMON = {
    "report_to": "none", "disable_tqdm": True, "use_cpu": True, "bf16": False, "gradient_checkpointing": False,
    "train_sampling_strategy": "sequential", "per_device_train_batch_size": 2, "per_device_eval_batch_size": 2,
    "logging_steps": 1, "max_steps": 4, "save_strategy": "no", "learning_rate": 1e-2, "seed": 11,
}  # fmt: skip
EVALUATED = {
    "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2, "load_best_model_at_end": True
}  # fmt: skip
SAVED = {"save_strategy": "steps", "save_steps": 2}
ACCUMULATED = {"gradient_accumulation_steps": 3}
N = 16
MODULES = {
    "ORPO": "orpo", "CPO": "cpo", "GKD": "gkd", "OnlineDPO": "online_dpo", "GMPO": "gmpo", "TPO": "tpo", "A2PO": "a2po",
    "GOLD": "gold", "IWOPD": "iw_opd", "SDFT": "sdft", "SDPO": "sdpo",
}  # fmt: skip


def columns(values: dict[str, list[Any]]) -> Any:
    from datasets import Dataset

    return Dataset.from_dict(values)


def texts(n: int = N) -> Any:
    return columns({"text": [tiny.sentence(i, 4 + i % 5) for i in range(n)]})


def _chat(i: int, answers: bool = True) -> list[dict[str, str]]:
    asked = [{"role": "user", "content": tiny.sentence(i, 3)}]
    return [*asked, {"role": "assistant", "content": tiny.sentence(i + 3, 2 + i % 4)}] if answers else asked


def messages(n: int = N) -> Any:
    return columns({"messages": [_chat(i) for i in range(n)]})


def completions(n: int = N) -> Any:
    return columns(
        {
            "prompt": [tiny.sentence(i, 3) for i in range(n)],
            "completion": [" " + tiny.sentence(i + 5) for i in range(n)],
        }
    )


def preferences(n: int = N) -> Any:
    return columns(
        {
            "prompt": [tiny.sentence(i, 3) for i in range(n)],
            "chosen": [" " + tiny.sentence(i + 2, 2 + i % 3) for i in range(n)],
            "rejected": [" " + tiny.sentence(i + 9, 2 + i % 2) for i in range(n)],
        }
    )


def unpaired(n: int = N) -> Any:
    return columns(
        {
            "prompt": [tiny.sentence(i, 3) for i in range(n)],
            "completion": [" " + tiny.sentence(i + 2, 2 + i % 3) for i in range(n)],
            "label": [i % 2 == 0 for i in range(n)],
        }
    )


def prompts(n: int = N) -> Any:
    return columns({"prompt": [tiny.sentence(i, 3) for i in range(n)]})


def by_place(completions: list[Any], **kwargs: Any) -> list[float]:
    """A reward that depends on the place in the batch."""
    return [float(i % 3) for i in range(len(completions))]


def by_words(completions: list[Any], **kwargs: Any) -> list[float]:
    """A reward that depends on what was generated."""
    return [sum(map(ord, text)) % 7 / 7 for text in completions]


def library(name: str) -> Any:
    """Where the Trainer and the arguments of that name are: in the package itself, or in trl.experimental."""
    return importlib.import_module(f"trl.experimental.{MODULES[name]}" if name in MODULES else "trl")


def build(name: str, folder: Path, data: Any, model: Any, trainer: dict[str, Any], given: dict[str, Any]) -> Any:
    lora, evaluated_on = given.pop("lora", False), given.pop("evaluated_on", None)
    evaluated = "eval_strategy" in given
    args = getattr(library(name), f"{name}Config")(output_dir=str(folder), **{**COMMON, **given})
    extra = {"peft_config": tiny.lora()} if lora else {}
    if evaluated:
        # On two processes each batch has as many labels, and what is generated from them makes full batches. Else
        # transformers' eval_loss on two processes is another than on one, see trl_two_processes.py.
        indexed = hasattr(data, "select")
        extra["eval_dataset"] = data.select(evaluated_on or range(0, len(data), 2)) if indexed else data
    return getattr(library(name), f"{name}Trainer")(
        model=model, args=args, train_dataset=data, processing_class=tiny.tokenizer(), **trainer, **extra
    )


def rescale_for_world(trainer: Any) -> Any:
    """For trainers whose compute_loss divides by the items of all processes. Gradients are averaged over processes all
    the same, so on transformers an update on two processes is half of that on one. Here the loss is multiplied by the
    number of processes, as transformers does where it divides itself. On oneloop nothing changes."""
    if any(base.__module__.startswith("oneloop.") for base in type(trainer).__mro__):
        return trainer
    divided, processes = trainer.compute_loss, trainer.accelerator.num_processes

    def compute_loss(model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        factor = 1 if num_items_in_batch is None else processes
        loss, outputs = divided(model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch)
        return (loss * factor, outputs) if return_outputs else loss * factor

    trainer.compute_loss = compute_loss
    return trainer


ONLINE = {
    "max_completion_length": 6, "num_generations": 2, "shuffle_dataset": False, "beta": 0.1,
    "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4,
}  # fmt: skip


def seeded(model: Any) -> Any:
    """Generation draws numbers that depend on the prompts alone: the two Trainers consume random numbers at different
    moments, and a resumed run generates as the unbroken one."""
    import torch

    generate = model.generate

    def same(*args: Any, **kwargs: Any) -> Any:
        given = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
        torch.manual_seed(sum(int(each.sum()) for each in given))
        return generate(*args, **kwargs)

    model.generate = same
    return model


# Completions of a round serve four updates: two of two micro-batches each, twice.
ROUNDS = {
    "max_completion_length": 6, "num_generations": 2, "beta": 0.1, "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2, "steps_per_generation": 4, "num_iterations": 2,
}  # fmt: skip
