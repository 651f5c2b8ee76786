"""Time of a training step: a hand-written loop, oneloop, transformers' Trainer and Lightning, side by side.

All of them train in one process, each in a thread of its own, and take turns (see turns.py), in a new order every
round. Only one runs at a time.
"""

import argparse
import os
import random
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import torch
from common import installed, silence
from models import MODELS, Case
from turns import Turns, report

RATE = 1e-4


class InThread(Turns):
    """Lets one thread run for a block of steps at a time."""

    def __init__(self, block: int, warmup: int) -> None:
        super().__init__(block, warmup)
        self.go = threading.Semaphore(0)
        self.back = threading.Semaphore(0)
        self.error: BaseException | None = None
        self.over = False

    def wait(self) -> None:
        self.back.release()
        self.go.acquire()

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


def with_trainer(package: str, **more: Any) -> Callable[[Case, torch.nn.Module, int, str], None]:
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
            **more,
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


def measure(case: Case, names: list[str], rounds: int, block: int, warmup: int) -> dict[str, InThread]:
    """Blocks of every variant, in turns."""
    steps = warmup + rounds * block + 1
    turns = {name: InThread(block, warmup) for name in names}
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
        report(case.title, measure(case, names, rounds, block, warmup), [name for name in asked if name not in names])


if __name__ == "__main__":
    main()
