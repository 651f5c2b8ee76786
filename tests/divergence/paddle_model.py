"""A small transformer in Paddle; see torch_model.py."""

import math

import paddle
from paddle import nn
from paddle.nn import functional

WORDS, WIDTH, LONGEST, CLASSES = 29, 16, 12, 5


class Attention(nn.Layer):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.scale = 1 / math.sqrt(WIDTH)

    def forward(self, x):
        scores = self.query(x) @ self.key(x).transpose([0, 2, 1]) * self.scale
        return self.out(functional.softmax(scores) @ self.value(x))


class Mlp(nn.Layer):
    def __init__(self):
        super().__init__()
        self.inner, self.act, self.outer = nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return self.outer(self.act(self.inner(x)))


class Block(nn.Layer):
    residual = 1.0

    def __init__(self):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2, self.mlp = nn.LayerNorm(WIDTH), Mlp()
        self.drop = nn.Dropout(0.0)

    def forward(self, x):
        x = x * self.residual + self.drop(self.attention(self.norm1(x)))
        return x * self.residual + self.mlp(self.norm2(x))


class Model(nn.Layer):
    loss_factor = 1.0

    def __init__(self):
        super().__init__()
        self.embed, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.blocks = nn.LayerList([Block() for _ in range(2)])
        # Paddle's running statistics keep 0.9 of the old ones, and the variance is not corrected.
        self.norm, self.stats, self.head = nn.LayerNorm(WIDTH), nn.BatchNorm1D(WIDTH), nn.Linear(WIDTH, CLASSES)
        self.with_stats = True

    def forward(self, input_ids, labels):
        x = self.embed(input_ids) + self.places(paddle.arange(input_ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        x = self.norm(x).mean(1)
        if self.with_stats:
            x = self.stats(x)
        logits = self.head(x)
        return {"loss": functional.cross_entropy(logits, labels) * self.loss_factor, "logits": logits}


def stop(x):
    return x.detach()


def transposed(x):
    return x.transpose([*range(x.ndim - 2), x.ndim - 1, x.ndim - 2])


def linear(x, weight, bias):
    return functional.linear(x, weight, bias)


def tanh_gelu(x):
    return functional.gelu(x, approximate=True)


def replace_forward(layer, function):
    layer.forward = function


def named_layers(model):
    return dict(model.named_sublayers(include_self=True))


def set_epsilon(norm, value):
    norm._epsilon = value


def set_momentum(norm, value):
    norm._momentum = 1.0 - value


def set_dropout(layer, p):
    layer.p = p


def assign(parameter, array):
    parameter.set_value(array)


def freeze(parameter):
    parameter.stop_gradient = True
