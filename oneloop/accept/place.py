"""Where a check runs: framework, device and an empty folder; and how it trains there."""

import contextlib
import importlib.util
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import public
from . import kits
from .outcome import Failed, NotRun, require

RATE = 1e-2


@dataclass(frozen=True)
class Place:
    folder: Path
    framework: str
    device: str
    count: int = 1  # devices of that kind

    @property
    def processes(self) -> int:
        """That checks of several processes start: one for each device, at most four; two share a CPU."""
        return 2 if self.device == "cpu" else min(self.count, 4)

    def require_framework(self, name: str) -> None:
        if self.framework != name:
            raise NotRun(f"this check exists for {name} only")

    def require_packages(self, *names: str) -> None:
        if missing := [name for name in names if importlib.util.find_spec(name) is None]:
            raise NotRun(f"not installed: {', '.join(missing)} (pip install {' '.join(missing)})")

    def arguments(self, name: str, **given: Any) -> public.TrainingArguments:
        """Of a short run in a folder of this name."""
        options: dict[str, Any] = {
            "max_steps": 30,
            "per_device_train_batch_size": 16,
            "learning_rate": RATE,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "use_cpu": self.device == "cpu",
        }
        return public.TrainingArguments(str(self.folder / name), **options | given)

    def trainer(self, name: str, width: int = 64, callbacks: Any = None, **given: Any) -> public.Trainer:
        made = kits.model(self.framework, width)
        data = kits.rows(given.pop("samples", 256))
        trainer = public.Trainer(made, self.arguments(name, **given), train_dataset=data, callbacks=callbacks)
        kind = str(trainer.args.device).lower().replace("place(", "")
        if self.device != "cpu" and "cpu" in kind:
            raise Failed(f"the Trainer chose {trainer.args.device}, but this machine has {self.device}")
        return trainer

    def losses(self, name: str, **given: Any) -> list[float]:
        """The loss of each step of a run."""
        trainer = self.trainer(name, **given)
        with contextlib.redirect_stdout(io.StringIO()):
            trainer.train()
        return losses_of(trainer)

    def script(self, module: str, options: dict[str, Any], launcher: tuple[str, ...] = (), check: bool = True) -> Any:
        """Run a module of this package as a program; what it printed as its result, or its status without `check`."""
        done = self._run(*launcher, "-m", f"oneloop.accept.{module}", json.dumps(options))
        if not check:
            return done.returncode
        self._raise_for(done)
        found = [line for line in done.stdout.splitlines() if "RESULT {" in line]
        require(bool(found), "a process has printed no result")
        return json.loads(found[-1].partition("RESULT ")[2])

    def program(self, *words: str) -> None:
        """Run a command of oneloop."""
        self._raise_for(self._run("-m", "oneloop", *words))

    def _run(self, *words: str) -> Any:
        environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2")}
        command = [sys.executable, *words]
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=self.folder)

    def _raise_for(self, done: Any) -> None:
        if done.returncode:
            lines = [line for line in done.stderr.strip().splitlines() if "Error" in line] or [""]
            raise Failed(f"a process ended with status {done.returncode}: {lines[-1].strip()}")

    def as_options(self) -> dict[str, Any]:
        return {"folder": str(self.folder), "framework": self.framework, "device": self.device, "count": self.count}


def losses_of(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
