"""Language models: pretraining on text, and supervised fine-tuning on answers."""

from typing import Any

from .base import GENERATIVE, Default, Form, Task


def encode_text(rows: list[Any], tokenizer: Any, max_length: int | None) -> list[dict[str, Any]]:
    """The tokens of each text with an end-of-text token, in pieces of max_length; with packing (None), whole."""
    samples = []
    for row in rows:
        tokens = tokenizer(row["text"])["input_ids"]
        if tokenizer.eos_token_id is not None and tokens[-1:] != [tokenizer.eos_token_id]:
            tokens = [*tokens, tokenizer.eos_token_id]
        size = max_length or len(tokens)
        for start in range(0, len(tokens), size):
            piece = tokens[start : start + size]
            if len(piece) > 1:  # a single token predicts nothing
                samples.append({"input_ids": piece, "labels": list(piece)})
    return samples


def encode_answers(rows: list[Any], tokenizer: Any, max_length: int) -> list[dict[str, Any]]:
    """The tokens of each prompt and its completion, of which the completion is learned. Rows whose completion begins
    beyond max_length are left out."""
    samples = []
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    for row in rows:
        prompt = tokenizer(row["prompt"])["input_ids"]
        prompt = prompt[:-1] if prompt[-1:] == end else prompt
        answer = tokenizer(row["completion"], add_special_tokens=False)["input_ids"] + end
        tokens = (prompt + answer)[:max_length]
        if len(tokens) > len(prompt):
            samples.append({"input_ids": tokens, "labels": [-100] * len(prompt) + tokens[len(prompt) :]})
    return samples


def encode_chats(rows: list[Any], tokenizer: Any, max_length: int) -> list[dict[str, Any]]:
    """The tokens of each chat by the tokenizer's template, of which the assistant's messages are learned. Chats with no
    such message within max_length are left out."""
    samples = []
    for row in rows:
        chat = row["messages"]
        tokens = tokenizer.apply_chat_template(chat, return_dict=True)["input_ids"]
        labels = [-100] * len(tokens)
        for place, message in enumerate(chat):
            if message["role"] != "assistant":
                continue
            before = tokenizer.apply_chat_template(chat[:place], add_generation_prompt=True, return_dict=True)
            after = tokenizer.apply_chat_template(chat[: place + 1], return_dict=True)
            start, stop = len(before["input_ids"]), len(after["input_ids"])
            if tokens[:start] != before["input_ids"] or tokens[:stop] != after["input_ids"]:
                raise ValueError(
                    "the chat template changes earlier messages when later ones are added, so the tokens of the "
                    "assistant cannot be found. Use a template without that."
                )
            labels[start:stop] = tokens[start:stop]
        if any(label != -100 for label in labels[:max_length]):
            samples.append({"input_ids": tokens[:max_length], "labels": labels[:max_length]})
    return samples


def shift_labels(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each label at the position that predicts it, for models that compare position i with label i."""
    return [{**sample, "labels": [*sample["labels"][1:], -100]} for sample in samples]


def prompt_of_text(row: Any, tokenizer: Any) -> list[int]:
    tokens = tokenizer(row["text"])["input_ids"]
    return tokens[:-1] if tokens[-1:] == [tokenizer.eos_token_id] else tokens


def prompt_of_answer(row: Any, tokenizer: Any) -> list[int]:
    tokens = tokenizer(row["prompt"])["input_ids"]
    return tokens[:-1] if tokens[-1:] == [tokenizer.eos_token_id] else tokens


def prompt_of_chat(row: Any, tokenizer: Any) -> list[int]:
    chat = list(row["messages"])
    while chat and chat[-1]["role"] == "assistant":
        chat.pop()
    return tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]


PRETRAIN = Task(
    "pretrain",
    "a language model on plain text",
    "AutoModelForCausalLM",
    (Form(("text",), encode_text, prompt=prompt_of_text),),
    "DataCollatorForSeq2Seq",
    "text-generation",
    "CAUSAL_LM",
    {
        **GENERATIVE,
        "num_train_epochs": Default(1, "usual for pretraining"),
        "learning_rate": Default(5e-5, "for a model that is trained already", with_lora=2e-4),
        "weight_decay": Default(0.1, "usual for language models"),
        "packing": Default(True, "short texts share a row"),
    },
    longest=1024,
    generates=True,
)
SFT = Task(
    "sft",
    "a language model on prompts with completions, or on chats",
    "AutoModelForCausalLM",
    (
        Form(("prompt",), encode_answers, "completion", prompt=prompt_of_answer),
        Form(("messages",), encode_chats, prompt=prompt_of_chat),
    ),
    "DataCollatorForSeq2Seq",
    "text-generation",
    "CAUSAL_LM",
    GENERATIVE,
    longest=2048,
    generates=True,
)
