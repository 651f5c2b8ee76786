"""A tagger of embeddings and a list of blocks in each framework, for what needs such models."""

from tests.backends.support import CLASSES, WORDS

WIDTH = 8


def torch_stack():
    import torch
    from torch import nn

    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(WORDS, WIDTH)
            self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
            self.head = nn.Linear(WIDTH, CLASSES)

        def forward(self, input_ids, labels=None):
            hidden = self.embed(input_ids)
            for block in self.blocks:
                hidden = torch.tanh(block(hidden))
            logits = self.head(hidden)
            if labels is None:
                return {"logits": logits}
            return {
                "loss": nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten()),
                "logits": logits,
            }

    return Stack()


def paddle_stack():
    from paddle import nn

    from tests.backends.kits.paddle_models import mean_cross_entropy

    class Stack(nn.Layer):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(WORDS, WIDTH)
            self.blocks = nn.LayerList([nn.Linear(WIDTH, WIDTH) for _ in range(2)])
            self.head = nn.Linear(WIDTH, CLASSES)

        def forward(self, input_ids, labels=None):
            hidden = self.embed(input_ids)
            for block in self.blocks:
                hidden = nn.functional.tanh(block(hidden))
            logits = self.head(hidden)
            if labels is None:
                return {"logits": logits}
            return {"loss": mean_cross_entropy(logits, labels), "logits": logits}

    return Stack()


def mindspore_stack():
    from mindspore import nn, ops

    from tests.backends.kits.mindspore_models import cross_entropy

    class Stack(nn.Cell):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(WORDS, WIDTH)
            self.blocks = nn.CellList([nn.Dense(WIDTH, WIDTH) for _ in range(2)])
            self.head = nn.Dense(WIDTH, CLASSES)

        def construct(self, input_ids, labels=None):
            hidden = self.embed(input_ids)
            for block in self.blocks:
                hidden = ops.tanh(block(hidden))
            logits = self.head(hidden)
            if labels is None:
                return {"logits": logits}
            return {"loss": cross_entropy(logits, labels), "logits": logits}

    return Stack()


STACKS = {"torch": torch_stack, "paddle": paddle_stack, "mindspore": mindspore_stack}
