"""The models that the benchmarks train. Each calls `tick` at the start of its forward."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn


@dataclass
class Case:
    """A model with data for it; a round is `block` steps of every variant."""

    title: str
    make: Callable[[Callable[[], None]], nn.Module]
    samples: Any
    batch: int
    rounds: int
    block: int


class Mlp(nn.Module):
    def __init__(self, tick: Callable[[], None], sizes: tuple[int, ...] = (32, 64, 2)) -> None:
        super().__init__()
        self.tick = tick
        layers: list[nn.Module] = []
        for before, after in zip(sizes, sizes[1:]):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        self.tick()
        logits = self.layers(x)
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def mlp() -> Case:
    """So small that nearly all of a step is the trainer's own work."""
    generator = torch.Generator().manual_seed(0)
    samples = [{"x": torch.randn(32, generator=generator), "labels": i % 2} for i in range(20_000)]
    return Case("MLP 32-64-2, batch 8", Mlp, samples, batch=8, rounds=100, block=100)


class Norms(Mlp):
    """An MLP with a BatchNorm after each of its six hidden layers: 18 buffers, all of which a step changes."""

    def __init__(self, tick: Callable[[], None]) -> None:
        super().__init__(tick, (32, *[64] * 6, 2))
        normed: list[nn.Module] = []
        for layer in self.layers:
            normed += [nn.BatchNorm1d(64), layer] if isinstance(layer, nn.ReLU) else [layer]
        self.layers = nn.Sequential(*normed)


def norms() -> Case:
    """Small layers and many buffers: what is done for each buffer shows."""
    return replace(mlp(), title="MLP 32-64x6-2 with 6 BatchNorms, batch 8", make=Norms)


def bert() -> Case:
    """Small, but no toy: what a trainer adds should vanish."""
    from transformers import BertConfig, BertForSequenceClassification

    class Timed(BertForSequenceClassification):
        tick: Callable[[], None]

        def forward(self, input_ids=None, attention_mask=None, token_type_ids=None, labels=None) -> Any:
            self.tick()
            return super().forward(
                input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids, labels=labels
            )

    def make(tick: Callable[[], None]) -> nn.Module:
        shape = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
        model = Timed(BertConfig(vocab_size=2000, **shape))
        model.tick = tick
        return model

    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 2000, (4_000, 64), generator=generator)
    mask = torch.ones(64, dtype=torch.long)
    samples = [{"input_ids": row, "attention_mask": mask, "labels": i % 2} for i, row in enumerate(ids)]
    return Case("BERT, 2 layers of 128, length 64, batch 8", make, samples, batch=8, rounds=40, block=20)


MODELS: dict[str, Callable[[], Case]] = {"mlp": mlp, "norms": norms, "bert": bert}
