"""A small text encoder in PyTorch. Its twins for other frameworks stand beside it: the same class, the same inputs."""

import torch
from torch import nn
from torch.nn import functional as F


class SentimentEncoder(nn.Module):
    """Two views of a review, joined: convolutions over its characters, and the sum of its n-grams' embeddings.

    The convolutions generalise; the n-grams remember. Dropping most n-grams of a review at random while training
    keeps the memory from doing all the work.
    """

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
        self.chars = nn.Embedding(chars, width, padding_idx=0)
        self.grams = nn.EmbeddingBag(grams, gram_width, mode="sum", padding_idx=0)
        self.convolution = nn.Conv1d(width, channels, kernel_size=3, padding=1)
        self.classifier = nn.Linear(channels + gram_width, 2)
        self.gram_dropout, self.dropout = gram_dropout, nn.Dropout(dropout)
        for embedding, std in ((self.chars, 0.1), (self.grams, 0.02)):
            nn.init.normal_(embedding.weight, std=std)
            nn.init.zeros_(embedding.weight[0])

    def forward(self, input_ids, gram_ids, labels=None):
        features = torch.cat([self.read(input_ids), self.remember(gram_ids)], dim=1)
        logits = self.classifier(self.dropout(features))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits} if labels is not None else {"logits": logits}

    def read(self, input_ids):
        """The strongest answer of each filter anywhere in the text."""
        embedded = F.dropout(self.chars(input_ids), 0.2, self.training)
        answers = F.relu(self.convolution(embedded.transpose(1, 2)))
        return answers.masked_fill((input_ids == 0).unsqueeze(1), 0).amax(dim=2)

    def remember(self, gram_ids):
        """The sum of the n-gram embeddings over the root of their number, so that length matters little."""
        if self.training:
            kept = torch.rand(gram_ids.shape, device=gram_ids.device) >= self.gram_dropout
            gram_ids = gram_ids * kept
        count = (gram_ids != 0).sum(dim=1, keepdim=True).clamp(min=1)
        return self.grams(gram_ids) / count.sqrt()
