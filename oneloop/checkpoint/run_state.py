"""The state of a run in a checkpoint, apart from the weights: run.json, and where a resumed run starts.

`RunState` has the fields of run.json. `PositionState` is the position in the data. `ResumePoint` is what of both
remains to be restored when the resumed run opens its first epoch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ..formats.part_rules import keys as part_keys
from ..formats.reading import restoring
from ..formats.safetensors_io import Raw
from ..formats.safetensors_io import read as read_tensors
from ..formats.structure import ARGUMENTS, FORMAT, OPTIMIZER, OWN_STATES, RANDOM, RUN, STATE, check_run

__all__ = [
    "ARGUMENTS",
    "ATTRIBUTES",
    "BUFFER",
    "OPTIMIZER",
    "OWN_STATES",
    "RANDOM",
    "RUN",
    "STATE",
    "DataStates",
    "PositionState",
    "ResumePoint",
    "RunState",
]

BUFFER = "buffer/"  # prefix of the tensors of one process, stored with its RNG state
ATTRIBUTES = "attributes/"  # prefix of the tensors in attributes of the Trainer's class, likewise
GENERATOR = "generator/"  # prefix of the states of generators that a user's sampler draws from, likewise

_IF_ANY = (
    "trainer",
    "ahead",
    "exhausted",
    "first_batch",
    "parts",
)  # of a position: left out if there is nothing to say


@dataclass
class PositionState:
    """The position of a run. What differs between processes is that of the main process here; `ranks` has the
    others."""

    epoch: int
    step_in_epoch: int
    epoch_ended: bool
    stopped: bool  # by a callback: it stays stopped. A run that reached its last step may get more steps
    epoch_stopped: bool
    pending: dict[str, bool] = field(default_factory=dict)  # what the interruption by a signal postponed at this step
    data: Any = None
    collator: Any = None
    dataset: Any = None
    trainer: Any = None  # attributes that the Trainer's class keeps between steps
    parts: Any = None  # what parts of the run have of this process alone
    ahead: Any = None  # collator and dataset before the fetch of the batch that was waiting
    exhausted: bool = False  # data that keeps its own position had no batch left in its epoch
    first_batch: str | None = None  # digest of the state of such data after the first batch of the epoch
    ranks: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        found = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in found.items() if value or name not in ("ranks", *_IF_ANY)}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "PositionState":
        known = {item.name for item in fields(cls)}
        given = {name: value for name, value in stored.items() if name in known}
        return cls(**given | {"pending": stored.get("pending") or {}})

    def own_states(self) -> dict[str, Any]:
        """What this process alone has."""
        found = {name: getattr(self, name) for name in OWN_STATES}
        return {name: value for name, value in found.items() if value or name not in _IF_ANY}


@dataclass
class RunState:
    """run.json. `format` is the version of all files of a checkpoint; that of a later release is an error."""

    run_id: str
    framework: str
    optimizer: dict[str, Any]  # options of its groups; tensors in optimizer.safetensors. {}: stored by an override
    scheduler: dict[str, Any] | None
    engine: dict[str, Any]
    position: PositionState
    properties: dict[str, Any]  # what should be the same in a resumed run; stored as "course"
    layout: dict[str, Any] | None = None  # common names and axes of the tensors, for other frameworks
    strategy: dict[str, Any] = field(default_factory=dict)
    grad_norm: str | None = None  # of the last step, in case the end of the epoch logs it; hexadecimal: may be infinite
    cooldown: dict[str, Any] | None = None
    parts: dict[str, Any] = field(default_factory=dict)  # of the parts of the run, by the keys that they declare
    format: int = FORMAT

    def to_json(self) -> dict[str, Any]:
        return {
            "format": self.format,
            "run_id": self.run_id,
            "framework": self.framework,
            "layout": self.layout,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "engine": self.engine,
            "position": self.position.to_json(),
            "course": self.properties,
            "strategy": self.strategy,
            "grad_norm": self.grad_norm,
            **({} if self.cooldown is None else {"cooldown": self.cooldown}),
            **self.parts,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any], source: Any = RUN) -> "RunState":
        version = stored.get("format", FORMAT) if isinstance(stored, Mapping) else FORMAT
        if version != FORMAT:
            raise CheckpointError(
                f"{source} has format {version}, but this release of oneloop reads {FORMAT}. Resume with the "
                "release that wrote it, or a later one."
            )
        stored = check_run(stored, source)
        return cls(
            run_id=stored["run_id"],
            framework=stored["framework"],
            optimizer=stored["optimizer"],
            scheduler=stored["scheduler"],
            engine=stored["engine"],
            position=PositionState.from_json(stored["position"]),
            properties=stored["course"],
            layout=stored.get("layout"),
            strategy=stored.get("strategy", {}),
            grad_norm=stored.get("grad_norm"),
            cooldown=stored.get("cooldown"),
            parts={key: stored[key] for key in part_keys() if key in stored},
        )

    @property
    def processes(self) -> int:
        return self.properties.get("processes", 1)


@dataclass
class DataStates:
    """The states of the training data and of the collator that a resumed run restores."""

    position: Any = None  # of data that keeps its own
    exhausted: bool = False  # it has no batch left in its epoch
    first_batch: str | None = None  # digest of its state after the first batch of the epoch
    is_waiting: bool = False  # the position is still to be loaded
    owners: dict[str, Any] = field(default_factory=dict)  # the dataset and the collator
    own: dict[str, Any] = field(default_factory=dict)  # their states, by the same names
    ahead: dict[str, Any] = field(default_factory=dict)  # those before the fetch of the batch that was waiting

    @property
    def has_ended(self) -> bool:
        """Whether the epoch of a position that is still to be loaded has no batch left."""
        return self.is_waiting and self.exhausted

    def take_position(self) -> Any:
        """The position, to be loaded or not."""
        self.is_waiting = False
        return self.position

    def take_first_batch(self) -> str | None:
        """The digest of the state after the first batch, for the epoch that was under way."""
        found, self.first_batch = self.first_batch, None
        return found

    def load(self, is_ahead: bool = False) -> None:
        """Restore the dataset and the collator."""
        for name, state in (self.ahead if is_ahead else self.own).items():
            if state:
                with restoring(f"the state of {type(self.owners[name]).__name__}", "the checkpoint"):
                    self.owners[name].load_state_dict(state)

    def continue_with(self, own: dict[str, Any]) -> None:
        self.own = own


@dataclass
class ResumePoint:
    """State of a checkpoint that is consumed when the first epoch opens. Empty for a run that starts from the
    beginning. A save before that has to carry it over: the data are not where the checkpoint says yet."""

    random: Path | None = None  # the checkpoint whose RNG state remains to be restored
    tensors: dict[str, Raw] | None = None  # its random.safetensors, once it has been read
    is_restored: bool = False  # which has been done, for a pending evaluation, and is done again
    streams: dict[str, Any] | None = None  # RNG state to continue with after a pending evaluation
    generators: list[Any] | None = None  # states of those that a user's sampler draws from, likewise
    crosses_from: str | None = None  # the framework that wrote the checkpoint, if it is another one
    stopped: bool = False  # a callback has stopped the run
    pending: dict[str, bool] = field(default_factory=dict)
    data: DataStates = field(default_factory=DataStates)
    external: Any = None  # what another trainer's optimizer and schedule are, to be logged
    is_external: bool = False  # another library's Trainer wrote the checkpoint
    batches_before: int = 0  # how many batches it would fetch before it restores the RNG state

    @property
    def is_waiting(self) -> bool:
        """Whether the first epoch has not been opened."""
        return self.random is not None

    def read(self, path: Path) -> dict[str, Raw]:
        """random.safetensors of a checkpoint. A pending evaluation may replace that of `random` by a new one."""
        if path != self.random:
            return read_tensors(path / RANDOM)
        if self.tensors is None:
            self.tensors = read_tensors(path / RANDOM)
        return self.tensors

    def keep_external(self, foreign: Any) -> None:
        self.external = foreign

    def begin_pending(self) -> None:
        """Called when a pending evaluation begins, with the RNG state of the checkpoint."""
        self.is_restored = True

    def continue_with(self, streams: dict[str, Any], generators: list[Any], own: dict[str, Any]) -> None:
        """Called after a pending evaluation: the epoch opens with this RNG state, dataset and collator."""
        self.streams, self.generators = streams, generators
        self.data.continue_with(own)

    def rng_state_restored(self) -> None:
        self.random = self.tensors = self.streams = self.generators = None
        self.batches_before = 0
