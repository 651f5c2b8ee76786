"""The models of tiny_runs.py and probes.py as MindSpore has them."""

import math

import mindspore as ms
from mindspore import nn, ops

from tests.arguments.config import Config


class Block(nn.Cell):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Dense(inputs, outputs)
        self.computed = 0

    def construct(self, x):
        self.computed += 1
        return ops.tanh(self.linear(x))


class Notes(nn.Cell):
    def __init__(self):
        super().__init__()
        ms.set_seed(0)
        self.layers = nn.SequentialCell(Block(4, 8))
        self.dropout = nn.Dropout(p=0.5)
        self.head = nn.Dense(8, 3)
        self.config = Config()
        self.calls = []
        self.generated = []

    def construct(self, x, labels=None, number=None, origin=None, mems=None, **rest):
        logits = self.head(self.dropout(self.layers(x)))
        note = {"training": self.training, "rows": len(x), "rest": sorted(rest), "mems": mems is not None}
        note |= {"logits": logits.dtype, "weights": self.head.weight.dtype}
        note |= {"number": number, "origin": origin}
        self.calls.append(
            {key: value.asnumpy().tolist() if isinstance(value, ms.Tensor) else value for key, value in note.items()}
        )
        loss = None if labels is None else ops.cross_entropy(logits, labels.astype(ms.int32))
        return {"loss": loss, "logits": logits, "memory": logits.sum(0)}

    def generate(self, x, **options):
        self.generated.append(options)
        return ops.zeros((len(x), options.get("max_length", 5)), ms.int64)


class Hungry(Notes):
    def construct(self, x, labels=None):
        if len(x) > 2:
            raise MemoryError("more than two samples")
        return super().construct(x, labels)


class Poisoned(Notes):
    def construct(self, x, labels=None, number=None):
        outputs = super().construct(x, labels, number)
        if outputs["loss"] is not None and 0 in number.asnumpy().tolist():
            outputs["loss"] = outputs["loss"] * math.nan
        return outputs


class Broken(Notes):
    def construct(self, x, labels=None):
        return super().construct(x * math.inf, labels)


class Plain(nn.Cell):
    def __init__(self):
        super().__init__()
        ms.set_seed(0)
        self.head = nn.Dense(4, 3)

    def construct(self, x, labels):
        logits = self.head(x)
        return ops.cross_entropy(logits, labels.astype(ms.int32)), logits


class Words(nn.Cell):
    def __init__(self):
        super().__init__()
        ms.set_seed(0)
        self.embedding = nn.Embedding(10, 4)
        self.head = nn.Dense(4, 3)

    def construct(self, input_ids, attention_mask, labels):
        logits = self.head(self.embedding(input_ids).mean(1))
        return {"loss": ops.cross_entropy(logits, labels.astype(ms.int32))}


def weights_of(model):
    return [value.asnumpy().tolist() for value in model.get_parameters()]
