"""What published scripts download, written in place: texts, a tokenizer, and models without training.

The tokenizer and the configurations are written as files and not by transformers, so that its versions 4 and 5 read
the same ones. The directories of models hold weights too: `models` makes them with the transformers that is there.
"""

import json
import random
from pathlib import Path

GOOD, BAD = "lovely superb charming moving".split(), "dull awful boring clumsy".split()
THINGS = "film story cast music camera".split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
NAMES, PLACES = "anna boris chloe david".split(), "paris oslo rome kyoto".split()
WORDS = [
    *SPECIAL,
    *GOOD,
    *BAD,
    *THINGS,
    *NAMES,
    *PLACES,
    *"the is a in who lives ? . eins zwei drei one two three".split(),
]
NUMBERS = {"one": "eins", "two": "zwei", "three": "drei"}


def data(folder: Path) -> None:
    """Every file that the scripts read."""
    draw = random.Random(0)
    for split, count in (("train", 48), ("dev", 16)):
        rows = [(draw.choice(THINGS), draw.choice(BAD if i % 2 else GOOD), i % 2) for i in range(count)]
        said = [(f"the {thing} is {word} .", label) for thing, word, label in rows]
        _write(folder / f"{split}.csv", ["text,label", *(f"{text},{('good', 'bad')[label]}" for text, label in said)])
        _write(folder / f"{split}.tsv", [f"{text}\t{label}" for text, label in said])
        _write(folder / f"{split}.txt", [text for text, _ in said])
        homes = [(draw.choice(NAMES), draw.choice(PLACES)) for _ in range(count)]
        _write(
            folder / f"{split}_ner.json",
            [
                json.dumps({"tokens": [name, "lives", "in", place, "."], "ner_tags": ["PER", "O", "O", "LOC", "O"]})
                for name, place in homes
            ],
        )
        asked = [
            {"question": f"who lives in {place} ?", "context": f"{name} lives in {place} .", "answer": name}
            for name, place in homes
        ]
        (folder / f"{split}_qa.json").write_text(json.dumps({"data": asked}))
        counted = [draw.choices(list(NUMBERS), k=3) for _ in range(count)]
        _write(
            folder / f"{split}_translation.json",
            [
                json.dumps({"translation": {"en": " ".join(words), "de": " ".join(NUMBERS[word] for word in words)}})
                for words in counted
            ],
        )


def _write(path: Path, lines: list) -> None:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def tokenizer(folder: Path, end: str = "[SEP]") -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    seq2seq = end == "only"
    core.post_processor = processors.TemplateProcessing(
        single="$A [SEP]" if seq2seq else "[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", WORDS.index("[CLS]")), ("[SEP]", WORDS.index("[SEP]"))],
    )
    folder.mkdir(parents=True, exist_ok=True)
    core.save(str(folder / "tokenizer.json"))
    names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]", "eos": "[SEP]"}
    settings = {f"{name}_token": token for name, token in names.items()}
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 32}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


SMALL = {"vocab_size": len(WORDS), "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def models(folder: Path) -> None:
    """bert and t5, each a directory with tokenizer, configuration and weights."""
    import torch
    from transformers import BertConfig, BertForMaskedLM, T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    bert = BertConfig(**SMALL, intermediate_size=32, max_position_embeddings=32)
    BertForMaskedLM(bert).save_pretrained(folder / "bert")
    pad, end = WORDS.index("[PAD]"), WORDS.index("[SEP]")
    t5 = T5Config(
        vocab_size=len(WORDS), d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, dropout_rate=0.0,
        decoder_start_token_id=pad, pad_token_id=pad, eos_token_id=end,
    )  # fmt: skip
    T5ForConditionalGeneration(t5).save_pretrained(folder / "t5")
    tokenizer(folder / "bert")
    tokenizer(folder / "t5", end="only")
