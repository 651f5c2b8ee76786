"""The MindSpore models of mindspore_kit."""

from types import SimpleNamespace

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from tests.backends.support import CLASSES, FEATURES, JOB_CLASSES, JOB_WIDTH, JOB_WORDS, WORDS


def fill(cell, seed):
    """Weights that depend on nothing but the seed, in the ranges that PyTorch's layers start with."""
    random = np.random.RandomState(seed + 1)
    for _, layer in cell.cells_and_names():
        for name, p in layer.parameters_and_names(expand=False):
            if isinstance(layer, nn.Dense):
                bound = layer.in_channels**-0.5
                value = random.uniform(-bound, bound, p.shape)
            elif name == "embedding_table":
                value = random.randn(*p.shape)
            else:
                continue
            p.set_data(ms.Tensor(value, ms.float32))
    return cell


def cross_entropy(logits, labels, reduction="mean", smoothing=0.0, ignore_index=-100):
    """Labels equal to ignore_index take no part. ops.cross_entropy takes a logarithm, whose kernel gives the last bit
    up in some of its first launches: see docs/mindspore.md."""
    scores = ops.log_softmax(logits.reshape(-1, logits.shape[-1]).astype(ms.float32))
    labels = labels.reshape(-1).astype(ms.int32)
    return ops.nll_loss(scores, labels, ignore_index=ignore_index, reduction=reduction, label_smoothing=smoothing)


class Classifier(nn.Cell):
    def __init__(self, returns="dict", dropout=0.0, norm=False):
        super().__init__()
        self.returns = returns
        self.hidden = nn.Dense(FEATURES, 8)
        self.norm = nn.BatchNorm1d(8) if norm else nn.Identity()
        self.dropout = nn.Dropout(p=dropout)
        self.head = nn.Dense(8, CLASSES)

    def construct(self, x, labels=None):
        hidden = self.norm(self.hidden(x))
        hidden = hidden * (hidden > 0)  # ops.relu, but for NaN, of which that makes zero
        logits = self.head(self.dropout(hidden))
        loss = None if labels is None else cross_entropy(logits, labels)
        if self.returns == "logits":
            return logits
        if self.returns == "scalar":
            return loss
        if self.returns == "tuple":
            return (logits,) if loss is None else (loss, logits)
        if self.returns == "object":
            return SimpleNamespace(loss=loss, logits=logits)
        return {"logits": logits} if loss is None else {"loss": loss, "logits": logits}


class Tagger(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 8)
        self.head = nn.Dense(8, CLASSES)

    def construct(self, input_ids, labels=None):
        logits = self.head(ops.tanh(self.embed(input_ids)))
        if labels is None:
            return {"logits": logits}
        return {"loss": cross_entropy(logits, labels), "logits": logits}


class KwargsTagger(Tagger):
    """The same, with the open signature that makes other trainers divide differently."""

    def construct(self, input_ids, labels=None, **kwargs):
        assert not kwargs, f"the model was handed {sorted(kwargs)}"
        return super().construct(input_ids, labels)


class Reader(nn.Cell):
    """The model of tests/checkpoint/job.py."""

    def __init__(self, dropout, norm=True):
        super().__init__()
        self.embed = nn.Embedding(JOB_WORDS, JOB_WIDTH)
        self.norm = nn.BatchNorm1d(JOB_WIDTH) if norm else nn.Identity()
        self.dropout = nn.Dropout(p=dropout)
        self.head = nn.Dense(JOB_WIDTH, JOB_CLASSES)

    def construct(self, input_ids, labels=None):
        known = (input_ids > 0).astype(ms.float32).expand_dims(-1)
        mean = (self.embed(input_ids) * known).sum(1) / known.sum(1)
        logits = self.head(self.dropout(self.norm(mean)))
        if labels is None:
            return {"logits": logits}
        return {"loss": cross_entropy(logits, labels), "logits": logits}
