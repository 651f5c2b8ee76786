"""The same network in each framework, with every kind of layer that a checkpoint turns or renames on its way.

One of its linear layers is square: no check of shapes can tell whether it was turned.
"""

import numpy as np

WORDS, WIDTH, LENGTH, CLASSES = 19, 8, 6, 3


def texts(count=40, seed=0):
    random = np.random.RandomState(seed)
    ids = random.randint(0, WORDS, (count, LENGTH))
    return [{"input_ids": row, "labels": int(row.sum() % CLASSES)} for row in ids.astype(np.int64)]


def torch_twin():
    import torch
    from torch import nn

    class Twin(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(WORDS, WIDTH)
            self.convolution = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
            self.norm = nn.LayerNorm(WIDTH)
            self.square = nn.Linear(WIDTH, WIDTH)
            self.batch_norm = nn.BatchNorm1d(WIDTH)
            self.head = nn.Linear(WIDTH, CLASSES)

        def forward(self, input_ids, labels=None):
            hidden = self.convolution(self.embed(input_ids).transpose(1, 2)).transpose(1, 2)
            hidden = self.batch_norm(torch.tanh(self.square(self.norm(hidden).mean(dim=1))))
            logits = self.head(hidden)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    return Twin()


def paddle_twin():
    import paddle
    from paddle import nn

    class Twin(nn.Layer):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(WORDS, WIDTH)
            self.convolution = nn.Conv1D(WIDTH, WIDTH, 3, padding=1)
            self.norm = nn.LayerNorm(WIDTH)
            self.square = nn.Linear(WIDTH, WIDTH)
            self.batch_norm = nn.BatchNorm1D(WIDTH)
            self.head = nn.Linear(WIDTH, CLASSES)

        def forward(self, input_ids, labels=None):
            hidden = self.convolution(self.embed(input_ids).transpose([0, 2, 1])).transpose([0, 2, 1])
            hidden = self.batch_norm(paddle.tanh(self.square(self.norm(hidden).mean(axis=1))))
            logits = self.head(hidden)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    return Twin()


def mindspore_twin():
    import mindspore as ms
    from mindspore import nn, ops

    class Twin(nn.Cell):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(WORDS, WIDTH)
            self.convolution = nn.Conv1d(WIDTH, WIDTH, 3, pad_mode="pad", padding=1, has_bias=True)
            self.norm = nn.LayerNorm((WIDTH,), epsilon=1e-5)
            self.square = nn.Dense(WIDTH, WIDTH)
            self.batch_norm = nn.BatchNorm1d(WIDTH)
            self.head = nn.Dense(WIDTH, CLASSES)

        def construct(self, input_ids, labels=None):
            hidden = self.convolution(self.embed(input_ids).swapaxes(1, 2)).swapaxes(1, 2)
            hidden = self.batch_norm(ops.tanh(self.square(self.norm(hidden).mean(axis=1))))
            logits = self.head(hidden)
            # Not ops.cross_entropy, whose last bits can change in its first launches: see docs/mindspore.md.
            return {"loss": ops.nll_loss(ops.log_softmax(logits), labels.astype(ms.int32)), "logits": logits}

    return Twin()


TWINS = {"torch": torch_twin, "paddle": paddle_twin, "mindspore": mindspore_twin}


def start(seed=1):
    """First weights by their common names and in torch's order of axes."""
    random = np.random.RandomState(seed)
    shapes = {
        "embed.weight": (WORDS, WIDTH),
        "convolution.weight": (WIDTH, WIDTH, 3),
        "convolution.bias": (WIDTH,),
        "norm.bias": (WIDTH,),
        "square.weight": (WIDTH, WIDTH),
        "square.bias": (WIDTH,),
        "batch_norm.bias": (WIDTH,),
        "head.weight": (CLASSES, WIDTH),
        "head.bias": (CLASSES,),
    }
    values = {name: (0.3 * random.randn(*shape)).astype(np.float32) for name, shape in shapes.items()}
    values |= {
        name: np.ones(WIDTH, np.float32) for name in ("norm.weight", "batch_norm.weight", "batch_norm.running_var")
    }
    return values | {"batch_norm.running_mean": np.zeros(WIDTH, np.float32)}
