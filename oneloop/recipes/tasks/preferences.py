"""Preferences: a language model learns the better of two answers, by TRL's DPOTrainer on oneloop."""

from typing import Any

from .base import Default, Form, Task
from .language import prompt_of_answer


def encode(rows: list[Any], tokenizer: Any, max_length: int) -> list[dict[str, Any]]:
    """The tokens of each prompt with its better answer, to show and to measure; TRL makes its own."""
    samples = []
    for row in rows:
        prompt = tokenizer(row["prompt"])["input_ids"]
        answer = tokenizer(row["chosen"], add_special_tokens=False)["input_ids"]
        tokens = (prompt + answer)[:max_length]
        samples.append({"input_ids": tokens, "labels": [-100] * len(prompt) + tokens[len(prompt) :]})
    return samples


TASK = Task(
    "dpo",
    "a language model on pairs of a better and a worse answer (TRL)",
    "AutoModelForCausalLM",
    (Form(("prompt",), encode, "chosen", other_targets=("rejected",), prompt=prompt_of_answer),),
    "",
    "text-generation",
    "CAUSAL_LM",
    {
        "num_train_epochs": Default(1, "more would lead far from the model"),
        "learning_rate": Default(1e-6, "for all weights", with_lora=1e-5),
        "per_device_train_batch_size": Default(4, "each row is two texts, for two models"),
        "per_device_eval_batch_size": Default(4, "as in training"),
        "lr_scheduler_type": Default("cosine", "usual for language models"),
        "warmup_ratio": Default(0.1, "usual for DPO"),
        "bf16": Default(False, "as for other tasks"),
        "gradient_checkpointing": Default(False, "as for other tasks"),
    },
    longest=1024,
    generates=True,
    trl="DPO",
)
