"""Tiny models, and data files that they can learn, made in place."""

import csv
import json
from pathlib import Path

from tests.ecosystem import tiny, tiny_text

NAMES = ("cat", "dog", "bird", "fish", "horse")  # the names among the words of tiny_text


def models(folder: Path) -> None:
    """bert, llama and t5 with their tokenizers."""
    tiny_text.bert(folder / "bert", "BertForMaskedLM", dropout=0.1)
    (folder / "body").mkdir()  # a model without a tokenizer
    for name in ("config.json", "model.safetensors"):
        (folder / "body" / name).write_bytes((folder / "bert" / name).read_bytes())
    (folder / "llama").mkdir()
    tiny.save(tiny.causal(), folder / "llama")
    _t5(folder / "t5")
    _without_pad_token(folder / "bare")


def _without_pad_token(folder: Path) -> None:
    folder.mkdir()
    model, tokenizer = tiny.causal(), tiny.tokenizer()
    model.config.pad_token_id = tokenizer.pad_token = None
    tiny.save(model, folder)
    tokenizer.save_pretrained(folder)


def _t5(folder: Path) -> None:
    import transformers
    from tokenizers import processors

    transformers.set_seed(0)
    tokenizer = tiny.tokenizer()
    end = tokenizer.eos_token_id
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <eos>", special_tokens=[("<eos>", end)]
    )
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
    config = transformers.T5Config(vocab_size=len(tokenizer), pad_token_id=0, eos_token_id=end, **sizes)
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def data(folder: Path) -> None:
    """A file for each kind of rows."""
    texts = tiny_text.sentences(96)
    animal = [any(name in text.split() for name in NAMES) for text in texts]
    words = [["animal" if seen else "thing", *(["red"] if "red" in text else [])] for text, seen in zip(texts, animal)]
    write_jsonl(folder / "reviews.jsonl", [{"review": t, "sentiment": w[0], "id": 7} for t, w in zip(texts, words)])
    odd = [{"text": t, "label": "plant" if i % 9 == 1 else w[0]} for i, (t, w) in enumerate(zip(texts, words))]
    write_jsonl(folder / "odd.jsonl", odd)
    write_csv(folder / "reviews.csv", [{"review": t, "sentiment": w[0]} for t, w in zip(texts, words)])
    write_jsonl(folder / "topics.jsonl", [{"text": t, "labels": w} for t, w in zip(texts, words)])
    pairs = [{"sentence1": a, "sentence2": b, "label": int(a[0] == b[0])} for a, b in zip(texts, texts[1:])]
    write_jsonl(folder / "pairs.jsonl", pairs)
    write_csv(folder / "stars.csv", [{"text": t, "score": len(set(t))} for t in texts])
    tags = [{"words": t.split(), "tags": ["B-ANIMAL" if w in NAMES else "O" for w in t.split()]} for t in texts]
    write_jsonl(folder / "names.jsonl", tags)
    write_jsonl(folder / "text.jsonl", [{"text": tiny.sentence(i, 6 + i % 5)} for i in range(64)])
    write_jsonl(folder / "answers.jsonl", [_answer(i) for i in range(48)])
    chats = [_chat(_answer(i)) for i in range(48)]
    write_jsonl(folder / "chats.jsonl", chats)
    answers = [(tiny.sentence(i, 3), tiny.sentence(i + 2, 2 + i % 3), tiny.sentence(i + 9, 2)) for i in range(24)]
    write_jsonl(folder / "preferences.jsonl", [dict(zip(("prompt", "chosen", "rejected"), each)) for each in answers])
    write_jsonl(folder / "reversed.jsonl", [_reversed(i) for i in range(48)])


def _answer(i: int) -> dict[str, str]:
    return {"prompt": f"{tiny.WORDS[i % 7]} {tiny.WORDS[i % 11]}", "completion": tiny.WORDS[i % 7]}


def _chat(row: dict[str, str]) -> dict[str, object]:
    asked, answered = ({"role": r, "content": row[k]} for r, k in (("user", "prompt"), ("assistant", "completion")))
    return {"messages": [asked, answered, asked, answered]}


def _reversed(i: int) -> dict[str, str]:
    words = tiny.sentence(i, 4)
    return {"source": words, "target": " ".join(reversed(words.split()))}


def write_jsonl(path: Path, rows: list) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_csv(path: Path, rows: list, separator: str = ",") -> None:
    with path.open("w", newline="") as f:
        writer = csv.DictWriter(f, list(rows[0]), delimiter=separator)
        writer.writeheader()
        writer.writerows(rows)


def read_jsonl(path: Path) -> list:
    return [json.loads(line) for line in path.read_text().splitlines()]
