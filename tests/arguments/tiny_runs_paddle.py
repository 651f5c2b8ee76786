"""The models of tiny_runs.py and probes.py as Paddle has them."""

import math

import paddle
from paddle import nn

from tests.arguments.config import Config


class Block(nn.Layer):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.computed = 0

    def forward(self, x):
        self.computed += 1
        return paddle.tanh(self.linear(x))


class Notes(nn.Layer):
    def __init__(self):
        super().__init__()
        paddle.seed(0)
        self.layers = nn.Sequential(Block(4, 8))
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(8, 3)
        self.config = Config()
        self.calls = []
        self.generated = []

    def forward(self, x, labels=None, number=None, origin=None, mems=None, **rest):
        logits = self.head(self.dropout(self.layers(x)))
        note = {"training": self.training, "rows": len(x), "rest": sorted(rest), "mems": mems is not None}
        note |= {"logits": logits.dtype, "weights": self.head.weight.dtype}
        note |= {"number": number, "origin": origin}
        self.calls.append({key: value.tolist() if paddle.is_tensor(value) else value for key, value in note.items()})
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits, "memory": logits.sum(0)}

    def generate(self, x, **options):
        self.generated.append(options)
        return paddle.zeros([len(x), options.get("max_length", 5)], dtype="int64")


class Hungry(Notes):
    def forward(self, x, labels=None):
        if len(x) > 2:
            raise MemoryError("more than two samples")
        return super().forward(x, labels)


class Poisoned(Notes):
    def forward(self, x, labels=None, number=None):
        outputs = super().forward(x, labels, number)
        if outputs["loss"] is not None and 0 in number.tolist():
            outputs["loss"] = outputs["loss"] * math.nan
        return outputs


class Broken(Notes):
    def forward(self, x, labels=None):
        return super().forward(x * math.inf, labels)


class Plain(nn.Layer):
    def __init__(self):
        super().__init__()
        paddle.seed(0)
        self.head = nn.Linear(4, 3)

    def forward(self, x, labels):
        logits = self.head(x)
        return nn.functional.cross_entropy(logits, labels), logits


class Words(nn.Layer):
    def __init__(self):
        super().__init__()
        paddle.seed(0)
        self.embedding = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, input_ids, attention_mask, labels):
        return {"loss": nn.functional.cross_entropy(self.head(self.embedding(input_ids).mean(1)), labels)}


def weights_of(model):
    return [value.tolist() for value in model.state_dict().values()]
