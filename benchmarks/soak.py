"""A long run: memory, open files, threads, and the time of a step and of a save, by its age.

Times are CPU time of the thread that trains, so that other work on the machine does not count. A save is what it adds
to the step after which it is requested; the files are written by another thread.
"""

import argparse
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import torch
from common import print_table, silence, status_bytes
from torch import nn

from oneloop import Trainer, TrainerCallback, TrainingArguments


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2))

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.layers(x)
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Ages(TrainerCallback):
    """What the run costs, in as many parts of it as there are rows."""

    def __init__(self, steps: int, rows: int, folder: str) -> None:
        self.part, self.folder = steps // rows, Path(folder)
        self.began = 0.0
        self.steps: list[float] = []
        self.saves: list[float] = []
        self.rows: list[list[str]] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        now = time.thread_time()
        if self.began:  # from the start of a step to that of the next: with logs, and with the save of the step
            saved = state.global_step % args.save_steps == 0
            (self.saves if saved else self.steps).append(now - self.began)
        if state.global_step and state.global_step % self.part == 0:
            self._end_of_part(state)
            now = time.thread_time()
        self.began = now

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end_of_part(state)

    def _end_of_part(self, state: Any) -> None:
        if not self.steps:
            return
        step = statistics.median(self.steps)
        stored = [path.stat().st_size for path in self.folder.glob("checkpoint-*/trainer_state.json")]
        self.rows.append(
            [
                f"{state.global_step:,}",
                f"{status_bytes('VmRSS') / 2**20:.1f}",
                str(len(os.listdir("/proc/self/fd"))),
                str(threading.active_count()),
                f"{step * 1e6:.0f}",
                f"{(statistics.median(self.saves) - step) * 1e3:.2f}" if self.saves else "",
                f"{max(stored, default=0) / 1000:.0f}",
                f"{len(state.log_history):,}",
            ]
        )
        self.steps, self.saves = [], []


HEADER = ("step", "memory, MB", "open files", "threads", "µs a step", "ms a save", "state, kB", "log entries")


def soak(steps: int, rows: int, save_steps: int) -> list[list[str]]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    samples = [{"x": row, "labels": i % 2} for i, row in enumerate(torch.randn(4096, 32))]
    with tempfile.TemporaryDirectory() as folder, silence():
        args = TrainingArguments(
            folder,
            max_steps=steps,
            per_device_train_batch_size=8,
            logging_steps=5,
            save_steps=save_steps,
            save_total_limit=2,
            eval_strategy="steps",
            eval_steps=max(1, steps // rows // 2),
            nonfinite="skip",
            report_to="none",
            device="cpu",
        )
        ages = Ages(steps, rows, folder)
        Trainer(Model(), args, train_dataset=samples, eval_dataset=samples[:64], callbacks=[ages]).train()
    return ages.rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smoke run, figures mean nothing")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=10)
    given = parser.parse_args()
    steps, rows, save_steps = (200, 2, 20) if given.quick else (given.steps, given.rows, 200)
    print_table(f"{steps:,} steps, a save every {save_steps}", HEADER, soak(steps, rows, save_steps))


if __name__ == "__main__":
    main()
