"""A small transformer in MindSpore; see torch_model.py."""

import math

import mindspore as ms
import numpy as np
from mindspore import nn, ops

WORDS, WIDTH, LONGEST, CLASSES = 29, 16, 12, 5


def norm():
    return nn.LayerNorm((WIDTH,), epsilon=1e-5)


class Attention(nn.Cell):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Dense(WIDTH, WIDTH) for _ in range(4))
        self.scale = 1 / math.sqrt(WIDTH)

    def construct(self, x):
        scores = ops.bmm(self.query(x), self.key(x).transpose(0, 2, 1)) * self.scale
        return self.out(ops.bmm(ops.softmax(scores), self.value(x)))


class Mlp(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inner, self.act = nn.Dense(WIDTH, 2 * WIDTH), nn.GELU(approximate=False)
        self.outer = nn.Dense(2 * WIDTH, WIDTH)

    def construct(self, x):
        return self.outer(self.act(self.inner(x)))


class Block(nn.Cell):
    residual = 1.0

    def __init__(self):
        super().__init__()
        self.norm1, self.attention = norm(), Attention()
        self.norm2, self.mlp = norm(), Mlp()
        self.drop = nn.Dropout(p=0.0)

    def construct(self, x):
        x = x * self.residual + self.drop(self.attention(self.norm1(x)))
        return x * self.residual + self.mlp(self.norm2(x))


class Model(nn.Cell):
    loss_factor = 1.0

    def __init__(self):
        super().__init__()
        self.embed, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.blocks = nn.CellList([Block() for _ in range(2)])
        self.norm, self.stats, self.head = norm(), nn.BatchNorm1d(WIDTH), nn.Dense(WIDTH, CLASSES)
        self.with_stats = True

    def construct(self, input_ids, labels):
        x = self.embed(input_ids) + self.places(ms.Tensor(np.arange(input_ids.shape[1])))
        for block in self.blocks:
            x = block(x)
        x = self.norm(x).mean(1)
        if self.with_stats:
            x = self.stats(x)
        logits = self.head(x)
        return {"loss": ops.cross_entropy(logits, labels) * self.loss_factor, "logits": logits}


def stop(x):
    return ops.stop_gradient(x)


def transposed(x):
    return ops.swapaxes(x, -1, -2)


def linear(x, weight, bias):
    return ops.matmul(x, weight.T) + bias


def tanh_gelu(x):
    return ops.gelu(x, approximate="tanh")


def replace_forward(layer, function):
    layer.construct = function


def named_layers(model):
    return dict(model.cells_and_names())


def set_epsilon(norm, value):
    norm.epsilon = value
    if hasattr(norm, "layer_norm"):
        norm.layer_norm = ops.LayerNorm(begin_norm_axis=-1, begin_params_axis=-1, epsilon=value)


def set_momentum(norm, value):
    norm.bn_train = ops.BatchNorm(is_training=True, epsilon=norm.eps, momentum=value)


def set_dropout(layer, p):
    layer.p, layer.keep_prob = p, 1 - p


def assign(parameter, array):
    parameter.set_data(ms.Tensor(array))


def freeze(parameter):
    parameter.requires_grad = False
