"""The PyTorch models of torch_kit."""

from types import SimpleNamespace

import torch
from torch import nn

from tests.backends.support import CLASSES, FEATURES, WORDS


class Classifier(nn.Module):
    def __init__(self, returns="dict", dropout=0.0, norm=False):
        super().__init__()
        self.returns = returns
        self.hidden = nn.Linear(FEATURES, 8)
        self.norm = nn.BatchNorm1d(8) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x, labels=None):
        logits = self.head(self.dropout(torch.relu(self.norm(self.hidden(x)))))
        loss = None if labels is None else nn.functional.cross_entropy(logits.float(), labels)
        if self.returns == "logits":
            return logits
        if self.returns == "scalar":
            return loss
        if self.returns == "tuple":
            return (logits,) if loss is None else (loss, logits)
        if self.returns == "object":
            return SimpleNamespace(loss=loss, logits=logits)
        return {"logits": logits} if loss is None else {"loss": loss, "logits": logits}


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, input_ids, labels=None):
        logits = self.head(torch.tanh(self.embed(input_ids)))
        if labels is None:
            return {"logits": logits}
        loss = nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
        return {"loss": loss, "logits": logits}


class KwargsTagger(Tagger):
    """The same, with the open signature that makes other trainers divide differently."""

    def forward(self, input_ids, labels=None, **kwargs):
        assert not kwargs, f"the model was handed {sorted(kwargs)}"
        return super().forward(input_ids, labels)
