"""A small transformer in PyTorch, with the same names as those in paddle_model.py and mindspore_model.py."""

import math

import torch
from torch import nn
from torch.nn import functional

WORDS, WIDTH, LONGEST, CLASSES = 29, 16, 12, 5


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.scale = 1 / math.sqrt(WIDTH)

    def forward(self, x):
        scores = self.query(x) @ self.key(x).transpose(1, 2) * self.scale
        return self.out(scores.softmax(-1) @ self.value(x))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.act, self.outer = nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return self.outer(self.act(self.inner(x)))


class Block(nn.Module):
    residual = 1.0

    def __init__(self):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2, self.mlp = nn.LayerNorm(WIDTH), Mlp()
        self.drop = nn.Dropout(0.0)

    def forward(self, x):
        x = x * self.residual + self.drop(self.attention(self.norm1(x)))
        return x * self.residual + self.mlp(self.norm2(x))


class Model(nn.Module):
    loss_factor = 1.0

    def __init__(self):
        super().__init__()
        self.embed, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.stats, self.head = nn.LayerNorm(WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, CLASSES)
        self.with_stats = True

    def forward(self, input_ids, labels):
        x = self.embed(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        x = self.norm(x).mean(1)
        if self.with_stats:
            x = self.stats(x)
        logits = self.head(x)
        return {"loss": functional.cross_entropy(logits, labels) * self.loss_factor, "logits": logits}


# -- what faults.py needs of a framework


def stop(x):
    return x.detach()


def transposed(x):
    return x.transpose(-1, -2)


def linear(x, weight, bias):
    """With a weight as the layer has it."""
    return functional.linear(x, weight, bias)


def tanh_gelu(x):
    return functional.gelu(x, approximate="tanh")


def replace_forward(layer, function):
    layer.forward = function


def named_layers(model):
    return dict(model.named_modules())


def set_epsilon(norm, value):
    norm.eps = value


def set_momentum(norm, value):
    norm.momentum = value


def set_dropout(layer, p):
    layer.p = p


def assign(parameter, array):
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(array))


def freeze(parameter):
    parameter.requires_grad_(False)
