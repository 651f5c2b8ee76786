"""Optimizer state under common names, for checkpoints that another framework resumes from.

The common names are torch's: exp_avg and exp_avg_sq of the Adams, momentum_buffer of SGD, and the number of updates.
What else a framework keeps can be computed from these: Paddle's powers of the betas are beta ** (updates + 1).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..backends import registry
from ..errors import CheckpointError
from ..formats.safetensors_io import Raw, from_numpy


@dataclass
class State:
    """The state of one parameter: number of updates (None if not counted), and moments by common name."""

    step: int | None
    moments: dict[str, Raw]


Common = dict[str, State]
Stored = Mapping[str, Raw]


def read(framework: str, stored: Stored, data: Mapping[str, Any], updates: int) -> Common:
    """The state in a checkpoint of that framework under common names. `updates`: the number in the whole run."""
    layout = registry.optimizer_layout(framework)
    found = _by_parameter(stored, layout.words, layout.counters, data)
    for name, state in found.items():
        state.step = layout.step(stored, name, updates)
    return found


def write(framework: str, common: Common, own: Mapping[str, Any]) -> dict[str, Raw]:
    """From common names to the format of that framework's checkpoints; `own` describes the optimizer to load them."""
    layout = registry.optimizer_layout(framework)
    counts = layout.counts({name: (state.step, "exp_avg" in state.moments) for name, state in common.items()}, own)
    return _moments(common, layout.words) | {key: from_numpy(array) for key, array in counts.items()}


def _by_parameter(
    stored: Stored, words: Mapping[str, str], counters: tuple[str, ...], data: Mapping[str, Any]
) -> Common:
    """Moments by parameter; a name that is neither a moment nor a counter cannot be converted."""
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
            f"the state of {data.get('class')} ({', '.join(sorted(unknown))}) cannot be converted to other frameworks. "
            "Adam, AdamW and SGD can; with others load the weights yourself and start with a new optimizer."
        )
    return found


def _moments(common: Common, words: Mapping[str, str]) -> dict[str, Raw]:
    own = {word: mine for mine, word in words.items()}
    return {f"{name}:{own[word]}": raw for name, state in common.items() for word, raw in state.moments.items()}
