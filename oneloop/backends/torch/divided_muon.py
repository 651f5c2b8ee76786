"""Muon's step for matrices that are divided over processes (DTensors).

The momentum of an element needs that element alone, so each process keeps that of its boxes. Only whole matrices can be
orthogonalised: the processes that have them together share them out by work. Each gathers the directions of its own,
and sends every process its box of the update. Matrices that are whole in each process are updated there.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from .parallel import local
from .shards import AT_ONCE, Exchange, copy_of, gather_to, scatter_from

Ranks = tuple[int, ...]


def step(muon: torch.optim.Muon) -> None:
    """A step of torch's Muon, whose parameters may be divided."""
    groups = muon.param_groups
    try:
        muon.param_groups = [{**group, "params": _of_kind(group, divided=False)} for group in groups]
        muon.step()
    finally:
        muon.param_groups = groups
    for group in groups:
        by_ranks: dict[Ranks, list[DTensor]] = {}
        for p in _of_kind(group, divided=True):
            if p.grad is not None:
                by_ranks.setdefault(tuple(copy_of(p)), []).append(p)
        for ranks, matrices in by_ranks.items():
            for bunch in _bunches(matrices, AT_ONCE * len(ranks)):
                _update(bunch, ranks, group, muon)


def _of_kind(group: dict[str, Any], divided: bool) -> list[Any]:
    return [p for p in group["params"] if isinstance(p, DTensor) is divided]


def _bunches(matrices: list[DTensor], most: int) -> Iterator[list[DTensor]]:
    """Matrices of about so many bytes: each process has a share of them whole."""
    bunch: list[DTensor] = []
    size = 0
    for p in matrices:
        bunch.append(p)
        size += p.numel() * p.element_size()
        if size >= most:
            yield bunch
            bunch, size = [], 0
    if bunch:
        yield bunch


def _update(matrices: list[DTensor], ranks: Ranks, group: dict[str, Any], muon: torch.optim.Muon) -> None:
    owners = _owners([tuple(p.shape) for p in matrices], ranks)
    exchange = Exchange()
    directions = [
        gather_to(owner, _direction(p, group, muon.state[p]), p, ranks, exchange)
        for p, owner in zip(matrices, owners, strict=True)
    ]
    exchange.wait()
    updates = _updates(directions, group, muon.defaults)
    exchange = Exchange()
    parts = [
        scatter_from(owner, update, p, ranks, exchange)
        for p, owner, update in zip(matrices, owners, updates, strict=True)
    ]
    exchange.wait()
    for p, part in zip(matrices, parts, strict=True):
        local(p).mul_(1 - group["lr"] * group["weight_decay"]).add_(part)


def _owners(shapes: list[tuple[int, ...]], ranks: Ranks) -> list[int]:
    """The rank that orthogonalises each matrix: the one with the least work so far."""
    work = dict.fromkeys(ranks, 0)
    found = []
    for rows, columns in shapes:
        found.append(min(ranks, key=lambda rank: work[rank]))
        work[found[-1]] += rows * columns * min(rows, columns)
    return found


def _direction(p: DTensor, group: dict[str, Any], state: dict[str, Any]) -> torch.Tensor:
    """What is to be orthogonalised, of the box of this process."""
    if "momentum_buffer" not in state:
        state["momentum_buffer"] = torch.zeros_like(p)
    assert p.grad is not None
    gradient, momentum = local(p.grad), local(state["momentum_buffer"])
    momentum.lerp_(gradient, 1 - group["momentum"])
    return gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum


def _updates(
    directions: Sequence[torch.Tensor | None], group: dict[str, Any], known: dict[str, Any]
) -> list[torch.Tensor | None]:
    """What torch's Muon adds to the matrices that this process has whole: a step of zeros, without momentum."""
    steps: list[nn.Parameter | None] = []
    for direction in directions:
        steps.append(None if direction is None else nn.Parameter(torch.zeros_like(direction)))
        if steps[-1] is not None:
            steps[-1].grad = direction
    mine = [p for p in steps if p is not None]
    if mine:
        options = {name: group[name] for name in known} | {"weight_decay": 0.0, "momentum": 0.0, "nesterov": False}
        torch.optim.Muon(mine, **options).step()
    return [None if p is None else p.detach() for p in steps]
