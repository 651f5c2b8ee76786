"""The text encoder of model_torch.py in PaddlePaddle."""

import paddle
from paddle import nn
from paddle.nn import functional as F


class SentimentEncoder(nn.Layer):
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
        self.chars = nn.Embedding(chars, width, padding_idx=0, weight_attr=nn.initializer.Normal(std=0.1))
        self.grams = nn.Embedding(grams, gram_width, padding_idx=0, weight_attr=nn.initializer.Normal(std=0.02))
        self.convolution = nn.Conv1D(width, channels, kernel_size=3, padding=1)
        self.classifier = nn.Linear(channels + gram_width, 2)
        self.gram_dropout, self.dropout = gram_dropout, nn.Dropout(dropout)

    def forward(self, input_ids, gram_ids, labels=None):
        features = paddle.concat([self.read(input_ids), self.remember(gram_ids)], axis=1)
        logits = self.classifier(self.dropout(features))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits} if labels is not None else {"logits": logits}

    def read(self, input_ids):
        """The strongest answer of each filter anywhere in the text."""
        embedded = F.dropout(self.chars(input_ids), 0.2, training=self.training)
        answers = F.relu(self.convolution(embedded.transpose([0, 2, 1])))
        return (answers * (input_ids != 0).unsqueeze(1).astype("float32")).max(axis=2)

    def remember(self, gram_ids):
        """The sum of the n-gram embeddings over the root of their number, so that length matters little."""
        if self.training:
            gram_ids = gram_ids * (paddle.rand(gram_ids.shape) >= self.gram_dropout).astype("int64")
        count = (gram_ids != 0).astype("float32").sum(axis=1, keepdim=True).clip(min=1)
        return self.grams(gram_ids).sum(axis=1) / count.sqrt()
