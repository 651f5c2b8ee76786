"""Random state of Paddle, as plain data."""

import os
from typing import Any

import numpy as np
import paddle

from ...data.torch_randperm import randperm as randperm

_WORDS = 313  # of std::mt19937_64: its state and the position in it
_FLAGS = ("FLAGS_cudnn_deterministic", "FLAGS_embedding_deterministic")


def seed(value: int) -> None:
    """Seed every generator of the framework, on all its devices."""
    paddle.seed(value)


def _kinds() -> list[str]:
    """The devices with generators: the CPU and the current device."""
    current = paddle.device.get_device().partition(":")[0]
    return ["cpu"] if current == "cpu" else ["cpu", current]


def get_state() -> dict[str, np.ndarray]:
    """The state of every generator that training may draw from.

    Paddle gives it as (device, seed, offset, characters of the engine's text); a file keeps the numbers.
    """
    found = {}
    for kind in _kinds():
        for i, state in enumerate(paddle.get_rng_state(kind)):
            device, seed, offset, text = state.__getstate__()
            found[f"paddle.{kind}.{i}"] = np.array(text, dtype=np.uint8)
            found[f"paddle.{kind}.{i}.rest"] = np.array([device % 2**64, seed % 2**64, offset], dtype=np.uint64)
    return found


def set_state(state: dict[str, Any]) -> None:
    """Restore the result of get_state; devices that this machine lacks are skipped."""
    for kind in _kinds():
        now = paddle.get_rng_state(kind)
        if all(f"paddle.{kind}.{i}" in state for i in range(len(now))):
            restore_generators(kind, [_made(type(s), state, f"paddle.{kind}.{i}") for i, s in enumerate(now)])


def restore_generators(kind: str, states: list[Any]) -> None:
    """Set the generators of the CPU or of the current device. Before Paddle 3.3, set_rng_state fails given a device."""
    if kind == "cpu":
        paddle.base.core.default_cpu_generator().set_state(states[0])
    else:
        paddle.set_rng_state(states)


def _made(cls: Any, state: dict[str, Any], name: str) -> Any:
    """A new state object, since an existing one would not accept the text."""
    device, seed, offset = (int(value) for value in state[f"{name}.rest"])
    # Paddle parses the text without checking it, and would go on with a part of the state.
    text = bytes(np.asarray(state[name], dtype=np.uint8))
    words = text.decode("ascii").split(" ")
    if len(words) != _WORDS or not all(word.isdigit() and int(word) < 2**64 for word in words):
        raise ValueError(f"{name} is not the text of a Mersenne Twister")
    if int(words[-1]) > _WORDS - 1:
        raise ValueError(f"{name} has a position beyond its words")
    made = cls.__new__(cls)
    made.__setstate__((device - 2**64 if device >= 2**63 else device, seed, offset, state[name].tolist()))
    return made


def deterministic(on: bool = True) -> None:
    """Use deterministic algorithms on accelerators; those of a CPU always are. Flags that this build of Paddle does not
    have are set in the environment, for child processes."""
    for name in _FLAGS:
        if on:
            os.environ[name] = "1"
        else:
            os.environ.pop(name, None)
        if name in paddle.base.core.globals():
            paddle.set_flags({name: on})


def worker_seed() -> int:
    """In a worker of a loader: the seed of its generator."""
    return int(paddle.get_rng_state("cpu")[0].__getstate__()[1]) % 2**32
