"""A byte-level BPE tokenizer, trained on the job's own text. It has no unknown token: any text becomes bytes."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

START = 0  # the token before each document
FILE = "tokenizer.json"


class BytePairs:
    """Text to ids and back. `save_pretrained` lets the Trainer keep it beside the model."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer

    @classmethod
    def train(cls, texts: Iterable[str], size: int) -> "BytePairs":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        trainer = trainers.BpeTrainer(
            vocab_size=size, special_tokens=["<|start|>"], initial_alphabet=alphabet, show_progress=False
        )
        tokenizer.train_from_iterator(texts, trainer)
        return cls(tokenizer)

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each text after the token that starts a document."""
        encoded = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array([START, *one.ids], np.int64) for one in encoded]

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode([int(i) for i in ids])

    def byte_lengths(self) -> np.ndarray:
        """How many bytes of text each id stands for. In a byte-level vocabulary one character is one byte."""
        tokens = sorted(self.tokenizer.get_vocab().items(), key=lambda item: item[1])
        return np.array([0 if index == START else len(token) for token, index in tokens])

    def save_pretrained(self, folder: str | Path) -> None:
        self.tokenizer.save(str(Path(folder, FILE)))

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> "BytePairs":
        return cls(Tokenizer.from_file(str(Path(folder, FILE))))
