"""Sequence to sequence: a text for a text, such as a translation or a summary."""

from typing import Any

from .base import GENERATIVE, Default, Form, Task


def encode(rows: list[Any], tokenizer: Any, max_length: int) -> list[dict[str, Any]]:
    """The tokens of each input, and those of the text to write as labels."""
    samples = []
    for row in rows:
        sample = dict(tokenizer(row["source"], truncation=True, max_length=max_length))
        if "target" in row:
            target = tokenizer(text_target=row["target"], truncation=True, max_length=max_length)
            sample["labels"] = target["input_ids"]
        samples.append(sample)
    return samples


def prompt(row: Any, tokenizer: Any) -> list[int]:
    return tokenizer(row["source"])["input_ids"]


TASK = Task(
    "seq2seq",
    "a text for a text, such as a translation or a summary",
    "AutoModelForSeq2SeqLM",
    (Form(("source",), encode, "target", prompt=prompt),),
    "DataCollatorForSeq2Seq",
    "text2text-generation",
    "SEQ_2_SEQ_LM",
    {**GENERATIVE, "learning_rate": Default(1e-4, "for all weights", with_lora=1e-3)},
    longest=512,
    generates=True,
)
