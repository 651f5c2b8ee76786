"""The events that a run records for its report page: where it runs, what happened, and its metrics at logging steps."""

import os
import platform
import signal
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import libraries, secrets
from ..backends import registry
from ..distributed.preemption import Preempted
from ..errors import OneloopError
from .event_log import Record
from .part import RestartRequested

if TYPE_CHECKING:
    from .run import Run


# Packages that affect a run, beside those in libraries.py; the versions of those in use are recorded.
_RECORDED = ("deepspeed", "numpy", "safetensors")


class RunEvents:
    """The record of one run. Events go to run.jsonl; only the main process writes them."""

    def __init__(self, run: "Run") -> None:
        self.run, self.core, self.trainer = run, run.core, run.core.trainer
        self.parent_id: str | None = None  # the run from which this one was branched
        self.skipped_checkpoints: list[str] = []  # checkpoints that were incomplete or corrupt when the run was resumed
        self._log = Record()
        self._kept: dict[str, tuple[Any, Any]] = {}  # arguments whose stored values are used, and what was given
        self._is_open = False  # the start of this train() has been recorded, but not its end
        self._reported: set[Any] = set()

    def is_first_report(self, *what: Any) -> bool:
        """Whether this has not been reported yet, so that evaluations do not repeat a warning."""
        new = what not in self._reported
        self._reported.add(what)
        return new

    def add(self, event: str, **facts: Any) -> None:
        """Append an event to the record of the run, run.jsonl in output_dir; the report page shows it."""
        trainer = self.trainer
        if trainer.args.should_save and trainer.is_world_process_zero():
            step = facts.pop("step", trainer.state.global_step)
            self._log.add(self.run.output_dir, event, self.run.id, step, facts)

    def set_skipped_checkpoints(self, passed_over: list[str]) -> None:
        self.skipped_checkpoints = passed_over

    def branched_off(self, parent_id: str | None) -> None:
        self.parent_id = parent_id

    def keep_arguments(self, kept: dict[str, tuple[Any, Any]]) -> None:
        """The checkpoint's values of these arguments are used; each with the value that was given."""
        self._kept = kept

    @property
    def kept_arguments(self) -> dict[str, Any]:
        return {name: used for name, (used, _) in self._kept.items()}

    def start(self, checkpoint: Path | None) -> None:
        """Record the machine, the packages and the devices of this part of the run."""
        self._is_open = True
        run, core = self.run, self.core
        trainer = core.trainer
        if not trainer.args.should_save:
            return
        plan, origin = run.plan, dict[str, Any]()
        if checkpoint is not None:
            origin = {"from": checkpoint.name, "parent": self.parent_id, "passed_over": self.skipped_checkpoints}
            given = {name: given for name, (_, given) in self._kept.items()}
            origin["not_used"] = secrets.public(given)
        self.add(
            "started" if checkpoint is None else "resumed",
            **{key: value for key, value in origin.items() if value},
            framework=core.backend.NAME,
            crossed_from=run.epochs.resume.crosses_from,
            packages=packages(),
            python=platform.python_version(),
            system=f"{platform.system()} {platform.release()} {platform.machine()}",
            device=str(trainer.args.device),
            hardware=self._hardware(),
            processes=trainer.args.world_size,
            model=type(core.backend.models.unwrap(trainer.model)).__name__,
            parameters=trainer.get_num_trainable_parameters(),
            samples=plan.samples,
            samples_per_step=plan.samples_per_step,
            max_steps=plan.max_steps,
            arguments=secrets.public(trainer.args.to_dict() | self.kept_arguments),
            **({"hyperparameters": secrets.public(dict(params))} if (params := trainer.state.trial_params) else {}),
        )

    def output_lost(self, stream: str) -> None:
        """stdout or stderr cannot be written any more; the run continues without it."""
        self.add("output_lost", stream=stream)

    def _hardware(self) -> str:
        """The name of the accelerator, if its framework reports one, and the CPU with its cores."""
        core = self.core
        return ", ".join(filter(None, (core.backend.devices.title(core.trainer.args.device), processor())))

    def end(self, error: BaseException | None = None) -> None:
        """Record how train() ended. The messages of foreign errors are not recorded, since they may quote private
        data."""
        if not self._is_open:
            return
        self._is_open = False
        run = self.run
        received = run.sync.signals.received if run.sync.signals is not None else None
        if error is None:
            stopped = not run.plan.is_over(self.trainer.state.global_step)
            failed = run.checkpointer.failed_step
            facts: dict[str, Any] = {"stopped": True} if stopped else {}
            self.add("ended", **facts, **({} if failed is None else {"unsaved": failed}))
        elif isinstance(error, RestartRequested):
            self.add(error.event, **error.facts)
        elif isinstance(error, Preempted) or (isinstance(error, KeyboardInterrupt) and received):
            last = run.checkpointer.last_saved
            saved = Path(last).name if last else None
            self.add("preempted", signal=signal.Signals(received).name if received else None, saved=saved)
        else:
            words = {"message": str(error).splitlines()[0]} if isinstance(error, OneloopError) and str(error) else {}
            self.add("failed", error=type(error).__name__, **words)


def packages() -> dict[str, str]:
    """Versions of the packages in use."""
    found: dict[str, str] = {}
    known = {"oneloop": ("oneloop",)} | registry.distributions()
    known |= {name: (name,) for name in (*libraries.RECORDED, *_RECORDED)}
    for module, names in known.items():
        if module not in sys.modules:
            continue
        for name in names:
            number = _installed_version(name)
            if number is not None:
                found[name] = number
                break
    return found


@cache  # reading the metadata of ten packages takes longer than anything else when a run starts
def _installed_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@cache
def processor() -> str:
    """The CPU and the number of its cores."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as f:
            name = next((line.partition(":")[2].strip() for line in f if line.startswith("model name")), name)
    except OSError:
        pass
    cores = os.cpu_count()
    return f"{name} ({cores} cores)" if cores else name
