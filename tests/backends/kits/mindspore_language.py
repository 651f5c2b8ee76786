"""A language model in MindSpore that takes a mask, for tests of packing."""

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from tests.backends.kits.mindspore_models import cross_entropy
from tests.backends.support import WORDS

SIZE = 8
LONGEST = 64


class LanguageModel(nn.Cell):
    """One layer of attention. `attention_mask`: (rows, 1, tokens, tokens), True where a token may attend to another."""

    shifts_labels = True

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, SIZE)
        self.places = nn.Embedding(LONGEST, SIZE)
        self.query, self.key, self.value = (nn.Dense(SIZE, SIZE) for _ in range(3))
        self.head = nn.Dense(SIZE, WORDS)

    def construct(self, input_ids, labels=None, attention_mask=None, position_ids=None):
        tokens = input_ids.shape[1]
        if position_ids is None:
            position_ids = ms.Tensor(np.arange(tokens)[None])
        if attention_mask is None:
            attention_mask = ms.Tensor(np.tri(tokens, dtype=bool)[None, None])
        hidden = self.embed(input_ids) + self.places(position_ids)
        scores = ops.bmm(self.query(hidden), self.key(hidden).transpose(0, 2, 1))
        scores = scores.masked_fill(ops.logical_not(attention_mask[:, 0]), -1e9)
        logits = self.head(hidden + ops.bmm(ops.softmax(scores), self.value(hidden)))
        if labels is None:
            return {"logits": logits}
        return {"loss": cross_entropy(logits[:, :-1], labels[:, 1:]), "logits": logits}


class Unmasked(LanguageModel):
    """The same without a way to keep documents apart."""

    def construct(self, input_ids, labels=None):
        return super().construct(input_ids, labels)
