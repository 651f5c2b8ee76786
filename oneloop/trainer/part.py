"""Parts of a run: whatever measures, logs or stores something while a run trains.

A part is a subclass of `Part`. It overrides the methods of the events that it needs, and declares what checkpoints have
of it: the keys of run.json with their rules (`schema`), the values (`state`, `tensors`) and how they are restored
(`load`). Nothing of it is known elsewhere. `register` adds a part to every run that starts afterwards; those of oneloop
are listed in parts.py.

A part receives a `RunContext`. State of the whole run is stored once, by the main process: a part whose processes
differ adds them up in `before_save`, which all of them call. What differs between processes with different batches, and
is of use to these alone, is `process_state`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ..errors import ArgumentError
from ..formats import part_rules
from ..formats.part_rules import PartRules
from ..formats.reading import restoring
from ..formats.schema import Rule
from ..formats.structure import RESERVED

if TYPE_CHECKING:
    from ..backends.base import Backend
    from ..checkpoint.checkpointer import Checkpointer
    from ..checkpoint.resume import StoredRun
    from ..distributed.collectives import ProcessGroup
    from ..distributed.mesh import Mesh
    from ..distributed.strategy import Strategy
    from ..extension import Extensions
    from ..state import TrainerState
    from ..steps import Position, StepPlan
    from .epochs import Epochs
    from .events import RunEvents
    from .loss import ItemCounting
    from .model_info import ModelInfo
    from .replaying import Replay
    from .run import Run
    from .trainer import Trainer

RESERVED_NAMES = ("model", "optimizer", "random")  # of tensor files


@dataclass(frozen=True)
class Restart:
    """What a run that continues from a checkpoint in the same train() takes over from the one before."""

    checkpoint: str
    run_id: str
    parent_id: str | None
    began: tuple[float, int]  # when and with which step train() started
    carried: Mapping[str, Any] = field(default_factory=dict)  # of parts, by their names


class RestartRequested(Exception):
    """Raised by a part between two steps, and caught by train(): the run continues from a checkpoint. Not an error. It
    is recorded in run.jsonl as `event`, with these facts."""

    def __init__(self, message: str, restart: Restart, event: str, facts: dict[str, Any]) -> None:
        super().__init__(message)
        self.restart, self.event, self.facts = restart, event, facts


class RunContext:
    """What a part may use of its run. Some of it is there later than the part: `state`, `engine` and `model` are those
    of the moment, and `plan` exists from `plan_ready` on."""

    def __init__(self, run: "Run") -> None:
        self._run = run
        self.trainer: Trainer = run.core.trainer  # with its methods that may be overridden
        self.backend: Backend = run.core.backend
        self.processes: ProcessGroup = run.core.processes
        self.mesh: Mesh = run.core.mesh
        self.extensions: Extensions = run.core.extensions
        self.events: RunEvents = run.events

    @property
    def args(self) -> Any:
        return self.trainer.args

    @property
    def state(self) -> "TrainerState":
        return self.trainer.state

    @property
    def model(self) -> Any:
        return self.trainer.model

    @property
    def model_info(self) -> "ModelInfo":
        return self._run.core.model_info

    @property
    def engine(self) -> Any:
        return self._run.core.engine

    @property
    def strategy(self) -> "Strategy":
        return self._run.core.strategy

    @property
    def learning_rate(self) -> float:
        """That of the last update."""
        return self._run.update.last_rate

    @property
    def run_id(self) -> str:
        return self._run.id

    @property
    def plan(self) -> "StepPlan":
        return self._run.plan

    @property
    def position(self) -> "Position":
        return self._run.position

    @property
    def restart(self) -> Restart | None:
        """Set if a part has asked for this run."""
        return self._run.restart

    @property
    def checkpointer(self) -> "Checkpointer":
        return self._run.checkpointer

    @property
    def epochs(self) -> "Epochs":
        """The data and the random streams."""
        return self._run.epochs

    @property
    def eval_loaders(self) -> dict[str, Any]:
        """Evaluation loaders that are kept, by the name of the dataset."""
        return self._run.step_end.eval_loaders

    @property
    def batch_size(self) -> int:
        """Samples in a micro-batch of one process."""
        return self._run.batch_size

    @property
    def counting(self) -> "ItemCounting":
        """Which items count in the loss."""
        return self._run.update.counting

    def exit_if_interrupted(self) -> None:
        """End the run if a signal has asked for it. A collective."""
        self._run.step_end.exit_if_interrupted()

    @property
    def output_dir(self) -> Path:
        """The output directory; absolute once the run has started."""
        return self._run.output_dir

    @property
    def parts(self) -> "Parts":
        """All parts of the run; those of oneloop are created before those that were registered."""
        return self._run.parts

    @property
    def hooks(self) -> "Hooks":
        return self._run.hooks


class Part:
    """Created for each run. Its methods do nothing."""

    name: ClassVar[str]  # `run.parts[name]`; tensors are stored in NAME.safetensors
    title: ClassVar[str] = ""  # for messages; "state of NAME" without one
    schema: ClassVar[Mapping[str, Rule]] = {}  # keys of run.json that it stores, with their rules
    required: ClassVar[tuple[str, ...]] = ()  # those of them that every run.json has
    process_schema: ClassVar[Rule | None] = None  # of what `process_state` returns
    skipped_steps: Collection[int] = ()  # those whose samples are left out; asked before the first step

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.backend: Backend = context.backend

    @property
    def is_active(self) -> bool:
        """Whether it takes part in the steps and saves of this run; asked before the first step. `load` is called
        regardless: the checkpoint may be of a run in which it did."""
        return True

    @property
    def depends_on_label_shift(self) -> bool:
        """Whether it has to be known if the loss compares position i with label i or i + 1."""
        return False

    # -- before the first step, in this order

    def plan_ready(self) -> None:
        """The training loader and the numbers of steps and epochs are known."""

    def model_ready(self) -> None:
        """The model has its final parameters, and there is an optimizer."""

    # `load` comes here, in a run that is resumed

    def begin_run(self) -> None:
        """Training starts at `context.state.global_step`."""

    # -- in each step

    def wants_presync(self, step: int) -> bool:
        """Whether processes have to agree on the items of this step before it, and not while they compute it: it may
        be computed more than once."""
        return False

    def start_update(self, micro_batches: list[Any]) -> None:
        """Before the forward passes of an update; its micro-batches are still on the host."""

    def split_micro_batches(self, micro_batches: list[Any]) -> None:
        """The micro-batches of the update were split into these, since memory ran out."""

    def before_accumulation(self, replay: "Replay") -> None:
        """Before the first forward pass. `replay(hooks)` computes the gradients of the update, with these hooks instead
        of those of the run; random states, buffers and gradients must be those of before afterwards (see
        replaying.restored)."""

    def start_micro_batch(self, index: int) -> None:
        """Before the forward pass of a micro-batch of the update."""

    def record_outputs(self, outputs: Any, inputs: Any, loss: Any, is_mean: bool) -> None:
        """Oneloop's compute_loss of a micro-batch: the outputs of the model, and the loss before it is normalized, a
        mean over the items if `is_mean`."""

    def end_micro_batch(self, index: int) -> None:
        """After the backward pass of a micro-batch."""

    def end_accumulation(self, micro_batches: list[Any]) -> None:
        """The gradients of the update are complete."""

    def gradients_ready(self, loss: Any) -> None:
        """The gradients of all processes have come together; they are not unscaled or clipped. `loss` is that of this
        process."""

    def start_optimizer_step(self) -> None:
        """Before the optimizer step: gradients are unscaled and clipped."""

    def end_optimizer_step(self, is_bad: Any) -> None:
        """After the optimizer step. `is_bad`: the loss or a gradient is not finite (a bool, or a flag on the
        device)."""

    def handle_nonfinite(self, step: int) -> None:
        """The update of this step was skipped, because the loss or a gradient is not finite. It may be the one before
        the current step, if the device tells late."""

    def end_update(self, step: int, loss: Any) -> None:
        """The update of this step is done. Its loss may be on the device, and is None in a process without a batch."""

    def skip_step(self, step: int) -> None:
        """The samples of this step are skipped, because of a loss spike: it has no update."""

    def end_step(self, step: int) -> None:
        """After the update of a step, or after it was skipped, when the gradients have been cleared."""

    def check_step(self, may_wait: bool) -> None:
        """Between two steps, where the run may end; all processes are here. Unless it `may_wait`, look at the values of
        the last steps now: a log or an evaluation follows."""

    def check_pending(self) -> None:
        """Before a save and after the last step; all processes are here. Look at what is still on the device, since a
        checkpoint must not hold what should have ended the run."""

    def log(self) -> dict[str, Any]:
        """Values for the log of a step. All processes are here, and a host sync is allowed."""
        return {}

    # -- evaluation

    def weights_for(self, purpose: str) -> AbstractContextManager[None] | None:
        """A context in which the model has the weights to evaluate ("eval") or to save apart from checkpoints ("save");
        None for those of the training."""
        return None

    # -- the end

    def end_run(self) -> None:
        """After the last step, when all saves are complete. All processes are here."""

    def fail_run(self) -> None:
        """An error ends the run: write what explains it. Not called on several processes, where a value may depend on a
        process that has failed."""

    # -- checkpoints

    def before_save(self) -> None:
        """All processes are here: what the state needs of the others can be gathered. A host sync is allowed."""

    def state(self) -> dict[str, Any]:
        """Plain data for run.json by the keys of `schema`, in the process that writes; keys without a value are left
        out."""
        return {}

    def tensors(self) -> dict[str, Any]:
        """Tensors of the framework by name, in the process that writes; {}: no file."""
        return {}

    @classmethod
    def expects_tensors(cls, stored: Mapping[str, Any]) -> bool:
        """Whether a checkpoint with this state is incomplete without tensors."""
        return False

    def process_state(self) -> Any:
        """Plain data of this process; None for nothing."""
        return None

    def load(self, stored: dict[str, Any], source: "StoredRun") -> None:
        """Continue from a checkpoint: `stored` has its keys of run.json, and nothing if the run that wrote it had no
        such part. `source` has the tensors."""

    def load_from_other_trainer(self, path: Path, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint that is not oneloop's; `state` is its trainer_state.json."""

    def load_process_state(self, stored: Any) -> None:
        """What this process stored; not called if the checkpoint has nothing of it, as on another number of
        processes."""

    def load_best_model(self, source: "StoredRun") -> None:
        """The model was replaced by that of another checkpoint of the run, after the last step."""

    def checkpoint_saved(self, step: int, path: Path, is_scheduled: bool) -> None:
        """A checkpoint is complete. `is_scheduled`: the arguments ask for it, and not a signal or a callback."""

    def checkpoint_to_keep(self) -> Path | None:
        """A checkpoint that must not be deleted as superseded, beside the last and the best one."""
        return None

    def checkpoint_needed(self, checkpoint: Path) -> int | None:
        """The step of another checkpoint that a run may return to which resumes from this one. Its files have not been
        checked."""
        return None

    def properties(self) -> dict[str, Any]:
        """Arguments that change how the run continues: a resume with others is warned of."""
        return {}


Kind = TypeVar("Kind", bound=Part)


@dataclass(frozen=True)
class Hooks:
    """The methods of the parts of a run that are called in steps, by event: a part that does not override one is not
    in its tuple."""

    wants_presync: tuple[Callable[[int], bool], ...] = ()
    start_update: tuple[Callable[[list[Any]], None], ...] = ()
    split_micro_batches: tuple[Callable[[list[Any]], None], ...] = ()
    before_accumulation: tuple[Callable[["Replay"], None], ...] = ()
    start_micro_batch: tuple[Callable[[int], None], ...] = ()
    record_outputs: tuple[Callable[[Any, Any, Any, bool], None], ...] = ()
    end_micro_batch: tuple[Callable[[int], None], ...] = ()
    end_accumulation: tuple[Callable[[list[Any]], None], ...] = ()
    gradients_ready: tuple[Callable[[Any], None], ...] = ()
    start_optimizer_step: tuple[Callable[[], None], ...] = ()
    end_optimizer_step: tuple[Callable[[Any], None], ...] = ()
    end_update: tuple[Callable[[int, Any], None], ...] = ()
    handle_nonfinite: tuple[Callable[[int], None], ...] = ()
    skip_step: tuple[Callable[[int], None], ...] = ()
    end_step: tuple[Callable[[int], None], ...] = ()
    check_step: tuple[Callable[[bool], None], ...] = ()
    log: tuple[Callable[[], dict[str, Any]], ...] = ()

    @classmethod
    def of(cls, parts: "Parts") -> "Hooks":
        names = [event.name for event in fields(cls)]
        return cls(**{name: tuple(getattr(part, name) for part in parts.having(name)) for name in names})


class Parts:
    """All parts of one run, in the order in which they are called."""

    def __init__(self) -> None:
        self._by_name: dict[str, Part] = {}
        self._having: dict[str, tuple[Part, ...]] = {}  # by the name of the method, once training starts

    def add(self, part: Part) -> None:
        self._by_name[part.name] = part

    def start(self) -> None:
        """Before the first step: which parts are active, and which of their methods are called."""
        events = [name for name, value in vars(Part).items() if callable(value) and not name.startswith("_")]
        self._having = {event: self._find(event) for event in events}

    def having(self, event: str) -> tuple[Part, ...]:
        """The active parts that override this method; the others need not be called."""
        return self._having[event] if self._having else self._find(event)

    def _find(self, event: str) -> tuple[Part, ...]:
        default = getattr(Part, event)
        return tuple(part for part in self if getattr(type(part), event) is not default and part.is_active)

    def __iter__(self) -> Iterator[Part]:
        return iter(self._by_name.values())

    def __getitem__(self, name: str) -> Part:
        return self._by_name[name]

    def of(self, kind: type[Kind]) -> Kind:
        """The part of this class."""
        return next(part for part in self if isinstance(part, kind))

    @contextmanager
    def weights_for(self, purpose: str) -> Iterator[None]:
        """A context in which the model has the weights to evaluate ("eval") or to save apart from checkpoints
        ("save")."""
        with ExitStack() as stack:
            for part in self:
                if (context := part.weights_for(purpose)) is not None:
                    stack.enter_context(context)
            yield

    # -- checkpoints

    def state(self) -> dict[str, Any]:
        """What run.json has of all parts."""
        return {key: value for part in self.having("state") for key, value in part.state().items()}

    def process_states(self) -> dict[str, Any]:
        """What this process alone has of them."""
        states = ((part.name, part.process_state()) for part in self.having("process_state"))
        return {name: state for name, state in states if state is not None}

    def properties(self) -> dict[str, Any]:
        return {key: value for part in self.having("properties") for key, value in part.properties().items()}

    def checkpoints_to_keep(self) -> tuple[Path, ...]:
        """Those that rotation must not delete."""
        paths = (part.checkpoint_to_keep() for part in self.having("checkpoint_to_keep"))
        return tuple(path for path in paths if path is not None)

    def load(self, source: "StoredRun") -> None:
        """Continue all of them from a checkpoint."""
        for part in self:
            with restoring(f"the {title_of(type(part))}", source.path):
                part.load(source.state_of(part.schema), source)
                if (own := source.process_state_of(part.name)) is not None:
                    part.load_process_state(own)

    def load_best_model(self, source: "StoredRun") -> None:
        for part in self:
            with restoring(f"the {title_of(type(part))}", source.path):
                part.load_best_model(source)


# -- registration

_registered: dict[str, type[Part]] = {}


def title_of(kind: type[Part]) -> str:
    return kind.title or f"state of {kind.name}"


def declare(kind: type[Part]) -> None:
    """Have checkpoints checked by the rules of this part."""
    title = title_of(kind)
    title = f"{'an' if title[0] in 'aeiou' else 'a'} {title}"
    rules = PartRules(kind.name, title, kind.schema, kind.required, kind.process_schema, kind.expects_tensors)
    part_rules.declare(rules, RESERVED)


def register(kind: type[Part]) -> type[Part]:
    """Add a part to the runs that start from now on. Can be used as a decorator."""
    from .parts import BUILT_IN  # they are made of this module

    if kind.name in RESERVED_NAMES or any(kind.name == each.name and kind is not each for each in BUILT_IN):
        raise ArgumentError(f"a part cannot be named {kind.name!r}, since a part of oneloop is. Choose another name.")
    declare(kind)
    _registered[kind.name] = kind
    return kind


def unregister(kind: type[Part]) -> None:
    """Leave it out of the runs that start from now on."""
    _registered.pop(kind.name, None)
    part_rules.withdraw(kind.name)


def registered() -> list[type[Part]]:
    """Those that are not oneloop's."""
    return list(_registered.values())
