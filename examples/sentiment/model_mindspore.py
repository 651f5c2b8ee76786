"""The text encoder of model_torch.py in MindSpore."""

import mindspore as ms
from mindspore import nn, ops
from mindspore.common.initializer import Normal


class SentimentEncoder(nn.Cell):
    """Two views of a review, joined: convolutions over its characters, and the sum of its n-grams' embeddings."""

    def __init__(
        self,
        chars: int,
        grams: int,
        width: int = 64,
        gram_width: int = 32,
        channels: int = 128,
        gram_dropout: float = 0.5,
        dropout: float = 0.4,
    ):
        super().__init__()
        self.chars = nn.Embedding(chars, width, embedding_table=Normal(0.1))
        self.grams = nn.Embedding(grams, gram_width, embedding_table=Normal(0.02))
        # A convolution of width three is a linear layer over each character and its neighbours.
        self.convolution = nn.Dense(3 * width, channels)
        self.classifier = nn.Dense(channels + gram_width, 2)
        self.char_dropout, self.dropout = nn.Dropout(p=0.2), nn.Dropout(p=dropout)
        self.gram_dropout = nn.Dropout(p=gram_dropout)

    def construct(self, input_ids, gram_ids, labels=None):
        features = ops.cat([self.read(input_ids), self.remember(gram_ids)], axis=1)
        logits = self.classifier(self.dropout(features))
        if labels is None:
            return {"logits": logits}
        return {"loss": ops.cross_entropy(logits, labels.astype(ms.int32)), "logits": logits}

    def read(self, input_ids):
        """The strongest answer of each filter anywhere in the text."""
        known = (input_ids != 0).astype(ms.float32).expand_dims(2)
        embedded = self.char_dropout(self.chars(input_ids) * known)
        edge = ops.zeros((embedded.shape[0], 1, embedded.shape[2]), ms.float32)
        padded = ops.cat([edge, embedded, edge], axis=1)
        answers = ops.relu(self.convolution(ops.cat([padded[:, :-2], padded[:, 1:-1], padded[:, 2:]], axis=2)))
        return (answers * known).max(axis=1)

    def remember(self, gram_ids):
        """The sum of the n-gram embeddings over the root of their number, so that length matters little."""
        kept = (gram_ids != 0).astype(ms.float32)
        if self.training:
            kept = (self.gram_dropout(kept) > 0).astype(ms.float32)
        count = ops.maximum(kept.sum(axis=1, keepdims=True), ms.Tensor(1.0))
        return (self.grams(gram_ids) * kept.expand_dims(2)).sum(axis=1) / ops.sqrt(count)
