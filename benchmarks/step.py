"""Time of a training step: a hand-written loop, oneloop, transformers' Trainer and Lightning, side by side.

All of them train in one process, each in a thread of its own, and take turns: a block of steps of one, then a block of
the next, in a new order every round. Only one runs at a time. The clock is read at the entry of the model's forward,
which is the same code for all, so a block is a whole number of steps and nothing of the set-up is in it.
"""

import argparse
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import torch
from common import installed, print_table, silence
from models import MODELS, Case

RATE = 1e-4


class Turns:
    """Lets one thread run for a block of steps at a time, and keeps the time of every step."""

    def __init__(self, block: int, warmup: int) -> None:
        self.block = block
        self.left = warmup
        self.go = threading.Semaphore(0)
        self.back = threading.Semaphore(0)
        self.clock: list[float] = []
        self.blocks: list[list[float]] = []
        self.cpu = 0.0
        self.error: BaseException | None = None
        self.over = False
        self._cpu_at_start: float | None = None

    def tick(self) -> None:
        """Called by the model at the start of every forward."""
        self.clock.append(time.perf_counter())
        if self.left:
            self.left -= 1
            return
        if self._cpu_at_start is not None:
            self.cpu += time.thread_time() - self._cpu_at_start
            self.blocks.append([end - start for start, end in zip(self.clock, self.clock[1:])])
        self.back.release()
        self.go.acquire()
        self.left = self.block - 1
        self._cpu_at_start = time.thread_time()
        self.clock = [time.perf_counter()]

    def run(self, train: Callable[[], None]) -> None:
        self.go.acquire()
        torch.set_num_threads(1)  # a property of the thread
        try:
            train()
        except BaseException as error:
            self.error = error
        self.over = True
        self.back.release()

    def give(self, name: str) -> None:
        """One turn; returns when it is over."""
        self.go.release()
        self.back.acquire()
        if self.error is not None:
            raise SystemExit(f"{name} failed: {self.error!r}") from self.error


def hand_written(case: Case, model: torch.nn.Module, steps: int, folder: str) -> None:
    """The loop as one writes it for oneself: nothing is logged and nobody is called."""
    loader = torch.utils.data.DataLoader(case.samples, batch_size=case.batch, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))
    model.train()

    def batches() -> Iterator[dict[str, Any]]:
        while True:
            yield from loader

    for _, batch in zip(range(steps), batches()):
        loss = model(**batch)["loss"]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def with_trainer(package: str) -> Callable[[Case, torch.nn.Module, int, str], None]:
    """oneloop and transformers: the same script with another import."""

    def train(case: Case, model: torch.nn.Module, steps: int, folder: str) -> None:
        module = __import__(package, fromlist=["Trainer"])
        args = module.TrainingArguments(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=case.batch,
            learning_rate=RATE,
            max_grad_norm=1.0,
            lr_scheduler_type="linear",
            save_strategy="no",
            report_to="none",
            use_cpu=True,
        )
        module.Trainer(model=model, args=args, train_dataset=case.samples).train()

    return train


def with_lightning(case: Case, model: torch.nn.Module, steps: int, folder: str) -> None:
    """Without its progress bar, and the module logs nothing itself."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: dict[str, Any], index: int) -> torch.Tensor:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=RATE, weight_decay=0.0, fused=True)
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    trainer = lightning.Trainer(
        max_steps=steps,
        max_epochs=-1,
        accelerator="cpu",
        devices=1,
        gradient_clip_val=1.0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(case.samples, batch_size=case.batch, shuffle=True))


VARIANTS: dict[str, tuple[Callable[[Case, torch.nn.Module, int, str], None], tuple[str, ...]]] = {
    "hand-written": (hand_written, ()),
    "oneloop": (with_trainer("oneloop"), ("oneloop",)),
    "transformers": (with_trainer("transformers"), ("transformers", "accelerate")),
    "lightning": (with_lightning, ("lightning",)),
}


def measure(case: Case, names: list[str], rounds: int, block: int, warmup: int) -> dict[str, Turns]:
    """Blocks of every variant, in turns."""
    steps = warmup + rounds * block + 1
    turns = {name: Turns(block, warmup) for name in names}
    with tempfile.TemporaryDirectory() as folder, silence():
        for name, turn in turns.items():
            torch.manual_seed(0)
            model = case.make(turn.tick)
            train = VARIANTS[name][0]
            home = os.path.join(folder, name)
            arguments = (case, model, steps, home)
            threading.Thread(
                target=turn.run, args=(lambda train=train, arguments=arguments: train(*arguments),), daemon=True
            ).start()
            turn.give(name)  # set-up and the first steps
        for _ in range(rounds):
            for name in random.sample(names, len(names)):
                turns[name].give(name)
        for name, turn in turns.items():  # to the end of train()
            while not turn.over:
                turn.give(name)
    return turns


def report(case: Case, turns: dict[str, Turns], missing: list[str]) -> None:
    """Medians of steps are proof against a busy machine; the CPU time holds everything, also logs and epochs."""
    base = turns["hand-written"]
    rows = []
    for name, turn in turns.items():
        pairs = zip(turn.blocks, base.blocks)
        ratios = sorted(statistics.median(ours) / statistics.median(theirs) for ours, theirs in pairs)
        quarter = len(ratios) // 4
        typical = statistics.median(step for block in turn.blocks for step in block)
        rows.append(
            [
                name,
                f"{typical * 1e6:.0f}",
                f"{statistics.median(ratios):.3f}x",
                f"{ratios[quarter]:.3f} to {ratios[-1 - quarter]:.3f}",
                f"{turn.cpu / base.cpu:.3f}x",
            ]
        )
    rows += [[name, "not installed", "", "", ""] for name in missing]
    print_table(
        f"{case.title}: {len(base.blocks)} rounds of {base.block} steps each",
        ["", "µs a step", "to hand-written", "middle half", "CPU time, all"],
        rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smoke run: few steps, figures mean nothing")
    parser.add_argument("--model", choices=[*MODELS, "all"], default="all")
    parser.add_argument("--rounds", type=int, help="blocks of each variant (default: 100; 40 for bert)")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS)[1:], help="default: all that are installed")
    given = parser.parse_args()
    asked = ["hand-written", *(given.variants or list(VARIANTS)[1:])]
    names = [name for name in asked if installed(*VARIANTS[name][1])]
    for key in MODELS if given.model == "all" else [given.model]:
        case = MODELS[key]()
        rounds = given.rounds or (2 if given.quick else case.rounds)
        block, warmup = (10, 5) if given.quick else (case.block, 2 * case.block)
        report(case, measure(case, names, rounds, block, warmup), [name for name in asked if name not in names])


if __name__ == "__main__":
    main()
