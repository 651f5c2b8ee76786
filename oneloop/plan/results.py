"""The figures of a plan. All sizes are in bytes."""

from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import ArgumentError
from . import text


@dataclass(frozen=True)
class ModelSizes:
    """The model and its training state, whole."""

    parameters: int  # elements
    trainable: int  # elements
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int | None  # None: not known for this optimizer


@dataclass(frozen=True)
class RunLength:
    """The length of the run; None where the data has no length."""

    samples: int | None  # in an epoch
    samples_per_step: int
    steps_per_epoch: int | None
    steps: int | None
    epochs: float
    tokens_per_step: int | None  # with padding, as in the first micro-batches of the data
    tokens: int | None


@dataclass(frozen=True)
class CheckpointSizes:
    weights: int
    optimizer: int | None  # 0 with save_only_model
    saves: int | None  # during the run
    kept: int | None  # checkpoints on the disk at the end
    on_disk: int | None  # their size

    @property
    def total(self) -> int:
        return self.weights + (self.optimizer or 0)


@dataclass(frozen=True)
class Messages:
    """What processes exchange in one step. A collective counts with the size of the whole tensor that it is about."""

    collectives: int | None  # None: the framework decides
    bytes: int
    sent: int  # by each process, with ring algorithms


@dataclass(frozen=True)
class StrategyPlan:
    """Training with one way of distributing the model, in one process. None: not known, or not possible."""

    name: str
    arguments: dict[str, Any]
    refused: str | None = None
    parameters: int | None = None
    gradients: int | None = None
    optimizer: int | None = None
    activations: int | None = None  # as the arguments have it, beside these three
    peak: int | None = None  # as the arguments have it
    peak_recomputed: int | None = None  # with gradient_checkpointing
    peak_kept: int | None = None  # without it
    save_copy: int | None = None  # on the host, while a checkpoint is written in the background
    fits: bool | None = None
    largest_micro_batch: int | None = None
    messages: Messages | None = None


@dataclass(frozen=True)
class LayoutChoice:
    """A layout that the search has found to fit, with the same number of samples per update."""

    name: str
    arguments: dict[str, Any]
    peak: int
    sent: int  # by each process in an update
    simulated: bool  # otherwise computed from the steps of other layouts


@dataclass(frozen=True)
class Search:
    """The layouts that fit, those that send least first; the first three are simulated."""

    choices: tuple[LayoutChoice, ...]
    too_large: int  # layouts that do not fit
    smallest: int | None  # peak of the smallest of these

    @property
    def best(self) -> LayoutChoice | None:
        return self.choices[0] if self.choices else None


@dataclass(frozen=True)
class Effect:
    """What an argument does: works, maps, refused or no effect."""

    argument: str
    value: str
    effect: str
    text: str = ""


@dataclass(frozen=True)
class TrainingPlan:
    """What `Trainer.plan` returns."""

    framework: str
    device: str
    world: int
    device_memory: int | None
    micro_batch: int
    accumulation: int
    recompute: bool
    model: ModelSizes
    activations: int | None  # of a micro-batch in one process
    activations_recomputed: int | None  # with gradient_checkpointing
    length: RunLength
    checkpoint: CheckpointSizes
    strategies: tuple[StrategyPlan, ...]
    arguments: tuple[Effect, ...] = ()
    notes: tuple[str, ...] = field(default=())
    search: Search | None = None  # None: not asked for, or not possible

    def memory(self, strategy: str) -> StrategyPlan:
        """The strategy of that name."""
        for each in self.strategies:
            if each.name == strategy:
                return each
        known = ", ".join(each.name for each in self.strategies)
        raise ArgumentError(f"the plan has no strategy {strategy!r}; it has {known}")

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data."""
        return asdict(self) | {"version": 1}

    def to_text(self) -> str:
        """The plan as text for a terminal."""
        return text.render(self)

    def to_html(self, title: str = "Plan") -> str:
        """The plan as a self-contained page."""
        from .page import render  # it imports this module

        return render(self, title)
