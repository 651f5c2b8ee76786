"""A language model in PyTorch that takes a mask, for tests of packing."""

import torch
from torch import nn

from tests.backends.support import WORDS

SIZE = 8
LONGEST = 64


class LanguageModel(nn.Module):
    """One layer of attention. `attention_mask`: (rows, 1, tokens, tokens), True where a token may attend to another."""

    shifts_labels = True

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, SIZE)
        self.places = nn.Embedding(LONGEST, SIZE)
        self.query, self.key, self.value = (nn.Linear(SIZE, SIZE) for _ in range(3))
        self.head = nn.Linear(SIZE, WORDS)

    def forward(self, input_ids, labels=None, attention_mask=None, position_ids=None):
        tokens = input_ids.shape[1]
        if position_ids is None:
            position_ids = torch.arange(tokens)
        if attention_mask is None:
            attention_mask = torch.ones(tokens, tokens, dtype=torch.bool).tril()[None, None]
        hidden = self.embed(input_ids) + self.places(position_ids)
        scores = self.query(hidden) @ self.key(hidden).transpose(1, 2)
        scores = scores.masked_fill(~attention_mask[:, 0], -1e9)
        logits = self.head(hidden + scores.softmax(-1) @ self.value(hidden))
        if labels is None:
            return {"logits": logits}
        loss = nn.functional.cross_entropy(logits[:, :-1].reshape(-1, WORDS), labels[:, 1:].reshape(-1))
        return {"loss": loss, "logits": logits}


class Unmasked(LanguageModel):
    """The same without a way to keep documents apart."""

    def forward(self, input_ids, labels=None):
        return super().forward(input_ids, labels)
