"""Optimizer state in words that the frameworks share, for checkpoints that cross from one to another.

The common words are torch's: exp_avg and exp_avg_sq of the Adams, momentum_buffer of SGD, and the number of updates.
What a framework keeps beside them follows from these: Paddle's powers of the betas are beta ** (updates + 1).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...backends import registry
from ...errors import CheckpointError
from ..safetensors_io import Raw, from_numpy


@dataclass
class State:
    """The state of one parameter: updates seen (None where nothing counts them), and moments by their common words."""

    step: int | None
    moments: dict[str, Raw]


Common = dict[str, State]
Stored = Mapping[str, Raw]


def read(framework: str, stored: Stored, data: Mapping[str, Any], updates: int) -> Common:
    """What a checkpoint of that framework holds, in common words. `updates`: how many the whole run has made."""
    layout = registry.optimizer_layout(framework)
    found = _by_parameter(stored, layout.words, layout.counters, data)
    for name, state in found.items():
        state.step = layout.step(stored, name, updates)
    return found


def write(framework: str, common: Common, own: Mapping[str, Any]) -> dict[str, Raw]:
    """Common words as that framework's checkpoints hold them; `own` describes the optimizer that will take them."""
    layout = registry.optimizer_layout(framework)
    counts = layout.counts({name: (state.step, "exp_avg" in state.moments) for name, state in common.items()}, own)
    return _moments(common, layout.words) | {key: from_numpy(array) for key, array in counts.items()}


def _by_parameter(
    stored: Stored, words: Mapping[str, str], counters: tuple[str, ...], data: Mapping[str, Any]
) -> Common:
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


def _moments(common: Common, words: Mapping[str, str]) -> dict[str, Raw]:
    own = {word: mine for mine, word in words.items()}
    return {f"{name}:{own[word]}": raw for name, state in common.items() for word, raw in state.moments.items()}
