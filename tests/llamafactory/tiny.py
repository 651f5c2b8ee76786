"""A tiny Llama with its tokenizer, and small local datasets in the formats of LLaMA-Factory: nothing is downloaded."""

import json
import random
from pathlib import Path

from tests.ecosystem.tiny import causal, tokenizer
from tests.ecosystem.tiny import drawn_words as words


def texts(count=200, seed=0):
    draw = random.Random(seed)
    return [{"text": words(draw, 4 + i % 9)} for i in range(count)]


def conversations(count=24, seed=1):
    draw = random.Random(seed)
    return [
        {"instruction": words(draw, 3 + i % 4), "input": "", "output": words(draw, 2 + i % 6)} for i in range(count)
    ]


def preferences(count=24, seed=2):
    draw = random.Random(seed)
    rows = conversations(count, seed)
    return [
        {"instruction": row["instruction"], "input": "", "chosen": row["output"], "rejected": words(draw, 2 + i % 5)}
        for i, row in enumerate(rows)
    ]


def verdicts(count=24, seed=3):
    return [row | {"good": i % 3 != 0} for i, row in enumerate(conversations(count, seed))]


def make(folder):
    """FOLDER/model and FOLDER/data."""
    folder = Path(folder)
    (folder / "data").mkdir(parents=True)
    causal().save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    pairs = {"prompt": "instruction", "query": "input", "chosen": "chosen", "rejected": "rejected"}
    verdict = {"prompt": "instruction", "query": "input", "response": "output", "kto_tag": "good"}
    described = {
        "texts": {"file_name": "texts.json", "columns": {"prompt": "text"}},
        "conversations": {"file_name": "conversations.json"},
        "verdicts": {"file_name": "verdicts.json", "columns": verdict},
        "preferences": {"file_name": "preferences.json", "ranking": True, "columns": pairs},
    }
    for make_rows in (texts, conversations, verdicts, preferences):
        (folder / "data" / f"{make_rows.__name__}.json").write_text(json.dumps(make_rows()))
    (folder / "data" / "dataset_info.json").write_text(json.dumps(described))
    return folder
