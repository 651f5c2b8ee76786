"""What checkpoints need of a Trainer and of its run: protocols, which trainer/ implements."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..behaviour import Behaviour
from ..distributed.collectives import ProcessGroup
from ..distributed.mesh import Mesh
from ..extension import Extensions
from ..steps import Position, StepPlan
from .run_state import PositionState

if TYPE_CHECKING:
    from ..backends.base import Backend
    from .checkpointer import Checkpointer


class SavedTrainer(Protocol):
    """A Trainer with its framework, its processes, and the strategy by which they share its state."""

    @property
    def trainer(self) -> Any:
        """With the methods that may be overridden."""

    @property
    def backend(self) -> "Backend": ...

    @property
    def processes(self) -> ProcessGroup: ...

    @property
    def mesh(self) -> Mesh: ...

    @property
    def strategy(self) -> Any: ...

    @property
    def engine(self) -> Any: ...

    @property
    def extensions(self) -> Extensions: ...

    @property
    def behaviour(self) -> Behaviour: ...

    @property
    def data_seed(self) -> int: ...

    @property
    def in_transformers_order(self) -> bool: ...

    @property
    def run(self) -> "SavedRun": ...


class SavedPart(Protocol):
    """A part of a run: what it stores, and what it has to know of saves."""

    @property
    def name(self) -> str:
        """Its tensors are in NAME.safetensors."""

    def check_pending(self) -> None:
        """Before a save: look at what is still on the device. All processes are here."""

    def before_save(self) -> None:
        """Gather what the state needs of other processes. All of them are here."""

    def tensors(self) -> dict[str, Any]:
        """Tensors of the framework by name; {}: no file."""

    def checkpoint_saved(self, step: int, path: Path, is_scheduled: bool) -> None:
        """A checkpoint is complete. `is_scheduled`: the arguments ask for it."""

    def checkpoint_needed(self, checkpoint: Path) -> int | None:
        """The step of another checkpoint that a run may return to which resumes from this one."""

    def load_from_other_trainer(self, path: Path, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint that is not oneloop's; `state` is its trainer_state.json."""


class SavedParts(Protocol):
    """All parts of a run."""

    def __iter__(self) -> Iterator[SavedPart]: ...

    def having(self, event: str) -> tuple[SavedPart, ...]:
        """The active parts that override this method."""

    def state(self) -> dict[str, Any]:
        """What run.json has of them."""

    def process_states(self) -> dict[str, Any]:
        """What this process alone has of them."""

    def properties(self) -> dict[str, Any]:
        """Arguments that change how the run continues."""

    def weights_for(self, purpose: str) -> AbstractContextManager[None]:
        """A context in which the model has the weights to save apart from checkpoints ("save")."""

    def checkpoints_to_keep(self) -> tuple[Path, ...]:
        """Those that rotation must not delete."""

    def load(self, source: Any) -> None:
        """Continue from a resume.StoredRun."""

    def load_best_model(self, source: Any) -> None:
        """The model was replaced by that of a resume.StoredRun."""


class SavedRun(Protocol):
    """A run whose state is saved and restored."""

    @property
    def core(self) -> SavedTrainer: ...

    @property
    def id(self) -> str: ...

    @property
    def plan(self) -> StepPlan: ...

    @property
    def position(self) -> Position: ...

    @property
    def batch_size(self) -> int:
        """Samples in a micro-batch of one process."""

    @property
    def parts(self) -> SavedParts: ...

    @property
    def events(self) -> Any:
        """The record of the run, and its log history."""

    @property
    def epochs(self) -> Any:
        """The data and the random streams."""

    @property
    def modes(self) -> Any: ...

    @property
    def restart(self) -> Any:
        """Set if a part has asked for this run."""

    @property
    def checkpointer(self) -> "Checkpointer": ...

    def call(self, event: str, **more: Any) -> None:
        """Call the callbacks for an event."""

    def position_state(self) -> PositionState:
        """Where the run is in its data."""

    def set_run_id(self, run_id: str, parent_id: str | None = None) -> None:
        """The id of the run that is resumed, or a new one for a run that is branched from it."""

    def set_accumulation(self, steps: int) -> None:
        """Micro-batches in an update, on another number of processes."""
