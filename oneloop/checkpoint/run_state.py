"""The state of a run as a checkpoint holds it, beside the weights: run.json, and where a resumed run begins.

`RunState` is run.json, field by field. `PositionState` is its place in the data. `ResumePoint` is what of both is still
to be done when the resumed run opens its first epoch.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from . import store

OPTIMIZER = "optimizer.safetensors"
RANDOM = "random.safetensors"
STATE = "trainer_state.json"
RUN = "run.json"
ARGUMENTS = "training_args.json"

BUFFER = "buffer/"  # beside a process's streams: tensors of its own
DATA_STATES = ("data", "collator", "dataset")  # of a position: what each process has its own of


@dataclass
class PositionState:
    """Where a run stands. What each process has its own of is the main one's here; `ranks` has the others'."""

    epoch: int
    step_in_epoch: int
    epoch_ended: bool
    stopped: bool  # by a callback: it stays stopped. A run that reached its last step may be given more
    epoch_stopped: bool
    pending: dict[str, bool] = field(default_factory=dict)  # what a signal did not leave time for at this step
    data: Any = None
    collator: Any = None
    dataset: Any = None
    ranks: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        found = {item.name: getattr(self, item.name) for item in fields(self)}
        return found if self.ranks else {name: value for name, value in found.items() if name != "ranks"}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "PositionState":
        known = {item.name for item in fields(cls)}
        given = {name: value for name, value in stored.items() if name in known}
        return cls(**given | {"pending": stored.get("pending") or {}})

    def own_states(self) -> dict[str, Any]:
        """The states that the data of this process had."""
        return {name: getattr(self, name) for name in DATA_STATES}


@dataclass
class RunState:
    """run.json. `format` is the version of all files of a checkpoint; one of a later release is refused."""

    run_id: str
    framework: str
    optimizer: dict[str, Any]  # options of its groups; the tensors are in optimizer.safetensors
    scheduler: dict[str, Any] | None
    engine: dict[str, Any]
    losses: dict[str, Any]
    work: dict[str, Any]
    position: PositionState
    properties: dict[str, Any]  # what a resumed run should have the same of; stored as "course"
    layout: dict[str, Any] | None = None  # common names and axes of the tensors, for other frameworks
    measured: dict[str, Any] = field(default_factory=dict)  # norm and rate of the last step, split, strategy
    format: int = store.FORMAT

    def to_json(self) -> dict[str, Any]:
        return {
            "format": self.format,
            "run_id": self.run_id,
            "framework": self.framework,
            "layout": self.layout,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "engine": self.engine,
            "losses": self.losses,
            "work": self.work,
            "position": self.position.to_json(),
            "course": self.properties,
            **self.measured,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any], source: Any = RUN) -> "RunState":
        version = stored.get("format", store.FORMAT)
        if version != store.FORMAT:
            raise CheckpointError(
                f"{source} has format {version}, and this release of oneloop reads {store.FORMAT}. Resume with the "
                "release that wrote it, or a later one."
            )
        names = ("strategy", "grad_norm", "learning_rate", "split")
        return cls(
            run_id=stored["run_id"],
            framework=stored["framework"],
            optimizer=stored["optimizer"],
            scheduler=stored["scheduler"],
            engine=stored["engine"],
            losses=stored["losses"],
            work=stored["work"],
            position=PositionState.from_json(stored["position"]),
            properties=stored["course"],
            layout=stored.get("layout"),
            measured={name: stored[name] for name in names if name in stored},
        )

    @property
    def processes(self) -> int:
        return self.properties.get("processes", 1)

    @classmethod
    def read(cls, path: Path) -> "RunState | None":
        """run.json of a checkpoint; None where there is none."""
        file = path / RUN
        return cls.from_json(json.loads(file.read_text(encoding="utf-8")), file) if file.is_file() else None


@dataclass
class ResumePoint:
    """What a checkpoint says that is used up when the first epoch opens. Empty for a run that starts anew."""

    random: Path | None = None  # the checkpoint whose random state is still to be restored
    streams: dict[str, Any] | None = None  # streams to go on with after a pending evaluation
    crosses_from: str | None = None  # the framework that wrote the checkpoint, where it is another one
    stopped: bool = False  # a callback had stopped the run
    pending: dict[str, bool] = field(default_factory=dict)
    data: Any = None  # the state of the training data

    def take_data(self) -> Any:
        """The state of the training data, which is used once."""
        data, self.data = self.data, None
        return data

    def continue_with(self, streams: dict[str, Any]) -> None:
        """A pending evaluation is done: the epoch opens with these streams."""
        self.streams = streams

    def streams_restored(self) -> None:
        self.random = self.streams = None
