"""Optimizer state in words that the frameworks share, for checkpoints that cross from one to another.

The common words are torch's: exp_avg and exp_avg_sq of the Adams, momentum_buffer of SGD, and the number of updates.
What a framework keeps beside them follows from these: Paddle's powers of the betas are beta ** (updates + 1).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import CheckpointError
from ..safetensors_io import Raw, from_numpy


@dataclass
class State:
    """The state of one parameter: updates seen (None where nothing counts them), and moments by their common words."""

    step: int | None
    moments: dict[str, Raw]


Common = dict[str, State]
Stored = Mapping[str, Raw]

# A framework's own word -> the common one.
_TORCH = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq", "momentum_buffer": "momentum_buffer"}
_PADDLE = {"moment1": "exp_avg", "moment2": "exp_avg_sq", "velocity": "momentum_buffer"}
_MINDSPORE = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq", "momentum_buffer": "momentum_buffer"}


def read(framework: str, stored: Stored, data: Mapping[str, Any], updates: int) -> Common:
    """What a checkpoint of that framework holds, in common words. `updates`: how many the whole run has made."""
    return _READERS[framework](stored, data, updates)


def write(framework: str, common: Common, own: Mapping[str, Any]) -> dict[str, Raw]:
    """Common words as that framework's checkpoints hold them; `own` describes the optimizer that will take them."""
    return _WRITERS[framework](common, own)


def _by_parameter(stored: Stored, words: dict[str, str], counters: tuple[str, ...], data: Mapping[str, Any]) -> Common:
    """Moments by parameter; a word that is neither a moment nor a counter cannot cross."""
    found: Common = {}
    unknown = set()
    for key, raw in stored.items():
        name, word = key.rsplit(":", 1)
        if word in words:
            found.setdefault(name, State(None, {})).moments[words[word]] = raw
        elif word not in counters:
            unknown.add(word)
    if unknown:
        raise CheckpointError(
            f"the state of {data.get('class')} ({', '.join(sorted(unknown))}) has no counterpart in other frameworks. "
            "Adam, AdamW and SGD cross; with others load the weights by hand and start the optimizer anew."
        )
    return found


def _moments(common: Common, words: dict[str, str]) -> dict[str, Raw]:
    own = {word: mine for mine, word in words.items()}
    return {f"{name}:{own[word]}": raw for name, state in common.items() for word, raw in state.moments.items()}


def _is_adam(state: State) -> bool:
    return "exp_avg" in state.moments


# -- torch: a count beside the moments of each parameter


def _read_torch(stored: Stored, data: Mapping[str, Any], updates: int) -> Common:
    found = _by_parameter(stored, _TORCH, ("step",), data)
    for name, state in found.items():
        step = stored.get(f"{name}:step")
        state.step = updates if step is None else int(step.array())
    return found


def _write_torch(common: Common, own: Mapping[str, Any]) -> dict[str, Raw]:
    steps = {
        f"{name}:step": from_numpy(np.array(state.step, dtype=np.float32))
        for name, state in common.items()
        if _is_adam(state)
    }
    return _moments(common, _TORCH) | steps


# -- Paddle: powers of the betas instead of a count; they vanish in a long run, so the run's own count is read


def _read_paddle(stored: Stored, data: Mapping[str, Any], updates: int) -> Common:
    found = _by_parameter(stored, _PADDLE, ("beta1_pow_acc", "beta2_pow_acc"), data)
    for state in found.values():
        state.step = updates
    return found


def _write_paddle(common: Common, own: Mapping[str, Any]) -> dict[str, Raw]:
    betas = {
        name: (group.get("beta1", 0.9), group.get("beta2", 0.999)) for group in own["groups"] for name in group["names"]
    }
    powers = {}
    for name, state in common.items():
        if _is_adam(state):
            for i, beta in enumerate(betas[name], start=1):
                power = np.array([beta ** ((state.step or 0) + 1)], dtype=np.float32)
                powers[f"{name}:beta{i}_pow_acc"] = from_numpy(power)
    return _moments(common, _PADDLE) | powers


# -- MindSpore: a count beside the moments of each parameter, also for SGD; its own AdamW has one for all


def _read_mindspore(stored: Stored, data: Mapping[str, Any], updates: int) -> Common:
    found = _by_parameter(stored, _MINDSPORE, ("step", "state_step"), data)
    for name, state in found.items():
        count = stored.get(f"{name}:step", stored.get(":state_step"))
        state.step = updates if count is None else int(count.array().reshape(-1)[0])
    return found


def _write_mindspore(common: Common, own: Mapping[str, Any]) -> dict[str, Raw]:
    steps = {f"{name}:step": from_numpy(np.array(state.step or 0, np.float32)) for name, state in common.items()}
    return _moments(common, _MINDSPORE) | steps


_READERS: dict[str, Callable[[Stored, Mapping[str, Any], int], Common]] = {
    "torch": _read_torch,
    "paddle": _read_paddle,
    "mindspore": _read_mindspore,
    "mindtorch": _read_torch,
}
_WRITERS: dict[str, Callable[[Common, Mapping[str, Any]], dict[str, Raw]]] = {
    "torch": _write_torch,
    "paddle": _write_paddle,
    "mindspore": _write_mindspore,
    "mindtorch": _write_torch,
}
