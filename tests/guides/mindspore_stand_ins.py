"""What MindNLP's older guide has at hand by the time it makes a Trainer, in MindSpore: a model, data and a metric."""

from types import SimpleNamespace

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops

WORDS, LENGTH = 40, 6


class Classifier(nn.Cell):
    """Small, and as good as pretrained: the first half of the words is told apart from the second."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 8)
        self.norm = nn.LayerNorm((8,))
        self.dropout = nn.Dropout(p=0.1)
        self.head = nn.Dense(8, 2)
        table = np.random.RandomState(0).randn(WORDS, 8)
        table[:, 0] = np.where(np.arange(WORDS) < WORDS // 2, 3.0, -3.0)
        weight = np.zeros((2, 8))
        weight[:, 0] = 0.05, -0.05
        self.embed.embedding_table.set_data(ms.Tensor(table, ms.float32))
        self.head.weight.set_data(ms.Tensor(weight, ms.float32))

    def construct(self, input_ids, labels=None):
        logits = self.head(self.dropout(self.norm(self.embed(input_ids).mean(1))))
        if labels is None:
            return logits
        return ops.cross_entropy(logits, labels.astype(ms.int32)), logits


def _data(count, seed):
    random = np.random.RandomState(seed)
    labels = np.arange(count) % 2
    words = random.randint(0, WORDS // 2, (count, LENGTH)) + (WORDS // 2) * labels[:, None]
    return ds.NumpySlicesDataset({"input_ids": words.astype(np.int32), "labels": labels.astype(np.int32)}, shuffle=True)


model = Classifier()
dataset_train, dataset_val = _data(640, 1).batch(16), _data(64, 2).batch(16)


def _accuracy(predictions, references):
    return {"accuracy": float((np.asarray(predictions) == np.asarray(references)).mean())}


evaluate = SimpleNamespace(load=lambda name: SimpleNamespace(compute=_accuracy))
