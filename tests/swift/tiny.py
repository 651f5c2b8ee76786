"""A tiny Llama with its tokenizer, and small local datasets in the formats of ms-swift: nothing is downloaded."""

import json
import random
from pathlib import Path

from tests.ecosystem.tiny import causal, tokenizer
from tests.ecosystem.tiny import drawn_words as words


def texts(count=24, seed=0):
    draw = random.Random(seed)
    return [{"messages": [{"role": "assistant", "content": words(draw, 6 + i % 9)}]} for i in range(count)]


def conversations(count=24, seed=1):
    draw = random.Random(seed)
    rows = []
    for i in range(count):
        asked = {"role": "user", "content": words(draw, 3 + i % 4)}
        rows.append({"messages": [asked, {"role": "assistant", "content": words(draw, 2 + i % 6)}]})
    return rows


def preferences(count=24, seed=2):
    draw = random.Random(seed)
    return [row | {"rejected_response": words(draw, 2 + i % 5)} for i, row in enumerate(conversations(count, seed))]


def make(folder):
    """FOLDER/model and FOLDER/data."""
    folder = Path(folder)
    (folder / "data").mkdir(parents=True)
    causal().save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    for make_rows in (texts, conversations, preferences):
        lines = [json.dumps(row) for row in make_rows()]
        (folder / "data" / f"{make_rows.__name__}.jsonl").write_text("\n".join(lines))
    return folder
