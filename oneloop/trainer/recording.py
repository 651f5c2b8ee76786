"""What a run notes down about itself for its page: where it runs, what happens to it, and figures at logging steps."""

import os
import platform
import signal
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..distributed.preemption import Preempted
from ..errors import OneloopError
from ..integrations.writers.base import public_arguments
from . import meter
from .parts import TrainerParts

# Packages that decide how a run goes, by the name that is imported; those in use are noted with their version.
PACKAGES = {
    "oneloop": ("oneloop",),
    "torch": ("torch",),
    "paddle": ("paddlepaddle", "paddlepaddle-gpu", "paddlepaddle-xpu"),
    "mindspore": ("mindspore",),
    "mindnlp": ("mindnlp",),
    "paddlenlp": ("paddlenlp",),
    "transformers": ("transformers",),
    "tokenizers": ("tokenizers",),
    "datasets": ("datasets",),
    "accelerate": ("accelerate",),
    "peft": ("peft",),
    "deepspeed": ("deepspeed",),
    "numpy": ("numpy",),
    "safetensors": ("safetensors",),
}


class TrainerRecording(TrainerParts):
    """Events go to run.jsonl, figures to the lines of log.jsonl; both are the main process's alone."""

    def record_event(self, event: str, **facts: Any) -> None:
        """Add a line to the run's own record, run.jsonl in output_dir; its page shows it among the events."""
        if self.args.should_save and self.is_world_process_zero():
            step = facts.pop("step", self.state.global_step)
            self._recorder.add(self.args.output_dir, event, self._run_id, step, facts)

    def _record_start(self, checkpoint: Path | None) -> None:
        """Where and with what this part of the run is trained."""
        self._figures_clock = self._tokens
        self._is_recorded = True
        if not self.args.should_save:
            return
        plan, origin = self._plan, {}
        if checkpoint is not None:
            origin = {"from": checkpoint.name, "parent": self._parent_id, "passed_over": self._passed_over}
        self.record_event(
            "started" if checkpoint is None else "resumed",
            **{key: value for key, value in origin.items() if value},
            framework=self.backend.NAME,
            crossed_from=self._crosses_from,
            packages=packages(),
            python=platform.python_version(),
            system=f"{platform.system()} {platform.release()} {platform.machine()}",
            device=str(self.args.device),
            hardware=self._hardware(),
            processes=self.args.world_size,
            model=type(self.backend.models.unwrap(self.model)).__name__,
            parameters=self.get_num_trainable_parameters(),
            samples=plan.samples,
            samples_per_step=plan.samples_per_step,
            max_steps=plan.max_steps,
            arguments=public_arguments(self.args),
        )

    def _hardware(self) -> str:
        """The name of the accelerator where its framework tells it, and the processor with its cores."""
        return ", ".join(filter(None, (self.backend.devices.title(self.args.device), processor())))

    def _record_end(self, error: BaseException | None = None) -> None:
        """How train() was left. The words of others' errors stay out: nobody knows what they quote."""
        if not self._is_recorded:
            return
        self._is_recorded = False
        if error is None:
            stopped = not self._plan.is_over(self.state.global_step)
            self.record_event("ended", **({"stopped": True} if stopped else {}))
        elif isinstance(error, Preempted) or (isinstance(error, KeyboardInterrupt) and self._watch.received):
            received = self._watch.received
            saved = Path(self._last_saved).name if self._last_saved else None
            self.record_event("preempted", signal=signal.Signals(received).name if received else None, saved=saved)
        else:
            words = {"message": str(error).splitlines()[0]} if isinstance(error, OneloopError) and str(error) else {}
            self.record_event("failed", error=type(error).__name__, **words)

    def _figures_of_step(self, seconds: float) -> dict[str, float]:
        """Speed and memory for the log that is written now. They are counted on the host: nothing waits for them."""
        tokens, self._figures_clock = self._tokens - self._figures_clock, self._tokens
        figures: dict[str, float] = {"memory_bytes": meter.resident_bytes()}
        if tokens > 0 and seconds > 0:
            figures["tokens_per_second"] = round(tokens / seconds, 1)
        memory, device = self.backend.memory, self.args.device
        for name, value in (("device_memory", memory.allocated(device)), ("device_peak", memory.peak(device))):
            if value is not None:
                figures[f"{name}_bytes"] = int(value)
        return figures


def packages() -> dict[str, str]:
    """Versions of the packages in use."""
    found: dict[str, str] = {}
    for module, names in PACKAGES.items():
        if module not in sys.modules:
            continue
        for name in names:
            try:
                found[name] = version(name)
                break
            except PackageNotFoundError:
                continue
    return found


def processor() -> str:
    """The processor and how many of its cores there are."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as f:
            name = next((line.partition(":")[2].strip() for line in f if line.startswith("model name")), name)
    except OSError:
        pass
    cores = os.cpu_count()
    return f"{name} ({cores} cores)" if cores else name
