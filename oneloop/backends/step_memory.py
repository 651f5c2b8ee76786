"""The memory of a simulated step."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StepMemory:
    """The memory of a step in one process."""

    peak: int
    parameters: int
    gradients: int
    optimizer: int
    activations: int  # the most that a forward or backward pass holds beside these three
    collectives: tuple[tuple[str, int, int], ...] = ()  # (name, bytes of the whole tensor, processes), in an update
