"""A language model in Paddle that takes a mask, for tests of packing."""

import paddle
from paddle import nn

from tests.backends.kits.paddle_models import mean_cross_entropy
from tests.backends.support import WORDS

SIZE = 8
LONGEST = 64


class LanguageModel(nn.Layer):
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
            position_ids = paddle.arange(tokens)
        if attention_mask is None:
            attention_mask = paddle.tril(paddle.ones([tokens, tokens])).astype("bool")[None, None]
        hidden = self.embed(input_ids) + self.places(position_ids)
        scores = self.query(hidden) @ self.key(hidden).transpose([0, 2, 1])
        scores = paddle.where(attention_mask[:, 0], scores, paddle.full_like(scores, -1e9))
        logits = self.head(hidden + nn.functional.softmax(scores) @ self.value(hidden))
        if labels is None:
            return {"logits": logits}
        return {"loss": mean_cross_entropy(logits[:, :-1], labels[:, 1:]), "logits": logits}


class Unmasked(LanguageModel):
    """The same without a way to keep documents apart."""

    def forward(self, input_ids, labels=None):
        return super().forward(input_ids, labels)
