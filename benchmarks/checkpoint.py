"""What a checkpoint costs the training: the stall of a save, the steps while it is written, and the way back in.

Saves: a stack of linear layers with AdamW, 100 million parameters and 1.2 GB a checkpoint. Each variant runs in an
interpreter of its own, with one thread to compute with, and they take turns. A save is asked for some steps after the
one before it is whole. The stall is the time from the end of the step that saves to the beginning of the next, less
what lies there without a save; it is told apart for the first save of a run, which has memory to find. A step begins
with its forward pass. What the step after a save takes longer is in a column of its own.

Resuming: a tiny model on an epoch of ten million samples, which are computed from their index. The clock runs from the
call of train() to the end of the first step. Both trainers really train to the place where each checkpoint is taken.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import fresh, installed, print_table, silence

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "oneloop": ("oneloop", {}),
    "oneloop, save_async=False": ("oneloop", {"save_async": False}),
    "transformers": ("transformers", {}),
}
NEEDS = {"oneloop": ("oneloop",), "transformers": ("transformers", "accelerate")}
CODE = "import sys, checkpoint; getattr(checkpoint, sys.argv[1])(*sys.argv[2:])"
PLACES = ("start", "middle", "end")


def arguments(package: str, folder: str, **more: Any) -> tuple[Any, Any]:
    """The package, and its arguments: all that is not asked for is off."""
    module = __import__(package, fromlist=["Trainer"])
    quiet = {"save_strategy": "no", "logging_strategy": "no", "report_to": "none", "disable_tqdm": True}
    return module, module.TrainingArguments(output_dir=folder, use_cpu=True, learning_rate=1e-5, **(quiet | more))


# -- saves


def save_clock(module: Any, saves: int, pause: int) -> Any:
    """A callback that asks for a save, waits until it is whole, lets `pause` steps pass, and asks again."""

    class Clock(module.TrainerCallback):
        def __init__(self) -> None:
            self.cycles: list[dict[str, Any]] = []
            self.idle: list[tuple[float, float]] = []  # steps, wall and CPU time, with nothing being written
            self.during: list[tuple[float, float]] = []
            self.gaps: list[float] = []
            self.writing = False
            self.asked = False
            self.ended: tuple[float, float] | None = None
            self.began = (0.0, 0.0)

        def begin(self, *_: Any) -> None:
            self.began = now()
            if self.ended is None:
                return
            gap = since(self.ended, self.began)
            if self.asked:
                self.cycles[-1]["stall"] = gap
                self.asked = False
            else:
                self.gaps.append(gap[0])

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.ended = now()
            if state.global_step > 2:  # the first steps find their memory
                (self.during if self.writing else self.idle).append(since(self.began, self.ended))
            if self.writing or len(self.idle) < pause:
                return
            if self.cycles:
                self.cycles[-1] |= {"idle": self.cycles[-1]["idle"] + self.idle}
            if len(self.cycles) == saves:
                control.should_training_stop = True
                return
            self.cycles.append({"idle": self.idle, "during": [], "asked": self.ended[0]})
            self.idle = []
            control.should_save = self.writing = self.asked = True

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """Whole on the disk; the write ended in the last step, which is therefore left out."""
            whole = time.perf_counter() - self.cycles[-1]["asked"]
            self.cycles[-1] |= {"whole": whole, "during": self.during[:-1]}
            self.during, self.writing = [], False

    return Clock()


def now() -> tuple[float, float]:
    return time.perf_counter(), time.thread_time()


def since(start: tuple[float, float], end: tuple[float, float]) -> tuple[float, float]:
    return end[0] - start[0], end[1] - start[1]


def layers(width: int, depth: int) -> Any:
    import torch

    class Stack(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(depth))

        def forward(self, x: Any, labels: Any = None) -> dict[str, Any]:
            for layer in self.layers:
                x = x + torch.relu(layer(x))
            return {"loss": x.square().mean()}

    return Stack()


def saving_run(name: str, folder: str, width: str, depth: str, saves: str, pause: str) -> None:
    """In the new interpreter: one run of a variant, and what its clock has seen."""
    import torch

    torch.set_num_threads(1)
    package, options = VARIANTS[name]
    with silence():
        data = [{"x": row, "labels": 0} for row in torch.randn(64, int(width)) / 100]
        planned = {"save_strategy": "steps", "save_steps": 10**6, "max_steps": 10**6}  # the clock asks for them sooner
        module, args = arguments(
            package, folder, per_device_train_batch_size=32, save_total_limit=1, **planned, **options
        )
        clock = save_clock(module, int(saves), int(pause))
        model = layers(int(width), int(depth))
        model.register_forward_pre_hook(clock.begin)
        module.Trainer(model=model, args=args, train_dataset=data, callbacks=[clock]).train()
    print(json.dumps({"cycles": clock.cycles, "gap": statistics.median(clock.gaps)}))


def measure_saves(names: list[str], rounds: int, size: tuple[int, int], saves: int, pause: int) -> dict[str, list[Any]]:
    runs: dict[str, list[Any]] = {name: [] for name in names}
    for done in range(rounds):
        for name in names if done % 2 == 0 else names[::-1]:
            with tempfile.TemporaryDirectory() as folder:
                numbers = map(str, (*size, saves, pause))
                runs[name].append(fresh(CODE, "saving_run", name, folder, *numbers, threads=1))
            os.sync()  # what one leaves for the system to write is not to be felt by the next
    return runs


def middle(values: list[float]) -> float:
    return statistics.median(values) if values else float("nan")


def report_saves(runs: dict[str, list[Any]], size: tuple[int, int]) -> None:
    million = size[1] * (size[0] ** 2 + size[0]) / 1e6
    stalls: dict[str, list[float]] = {}
    rows = []
    for name, of_variant in runs.items():
        first = [run["cycles"][0]["stall"][0] - run["gap"] for run in of_variant]
        later = [cycle for run in of_variant for cycle in run["cycles"][1:]]
        stalls[name] = [cycle["stall"][0] - run["gap"] for run in of_variant for cycle in run["cycles"][1:]]
        cpu = middle([cycle["stall"][1] for cycle in later])
        whole = middle([cycle["whole"] for cycle in later])
        after = middle([c["during"][0][0] - middle([s[0] for s in c["idle"]]) for c in later if c["during"]])
        seconds = (middle(first), middle(stalls[name]), min(stalls[name]), after, cpu, whole)
        rows.append([name, *(f"{s:.3f}" for s in seconds)])
    base = stalls.get("oneloop, save_async=False", [])
    for row in rows:
        row.insert(4, f"{middle(stalls[row[0]]) / middle(base):.1%}" if base else "")
    print_table(
        f"Stall of a save, {million:.0f} million parameters with AdamW: seconds, medians of "
        f"{len(stalls[rows[0][0]])} saves (first: of {len(runs[rows[0][0]])})",
        ["", "first save", "later saves", "best", "to synchronous", "longer next step", "CPU time", "whole after"],
        rows,
    )
    print("transformers does not flush its files to the disk; oneloop does, and takes their checksums.")
    report_steps(runs)


def report_steps(runs: dict[str, list[Any]]) -> None:
    """Steps while a save is written against those before and after it, save by save."""
    rows = []
    for name, of_variant in runs.items():
        cycles = [cycle for run in of_variant for cycle in run["cycles"]]
        idle = [step[0] for cycle in cycles for step in cycle["idle"]]
        written = [cycle for cycle in cycles if cycle["during"]]
        if not written:
            rows.append([name, f"{middle(idle):.3f}", "", "", "", ""])
            continue
        ratios = [
            [middle([s[i] for s in cycle["during"]]) / middle([s[i] for s in cycle["idle"]]) for cycle in written]
            for i in (0, 1)
        ]
        steps = [step[0] for cycle in written for step in cycle["during"]]
        slower = [f"{middle(ratio):.2f}x" for ratio in ratios]
        rows.append([name, f"{middle(idle):.3f}", f"{middle(steps):.3f}", *slower, str(len(steps))])
    print_table(
        "Steps while a save is written in the background: seconds",
        ["", "a step", "while writing", "slower", "CPU time", "steps seen"],
        rows,
    )


# -- resuming


class Computed:
    """Samples that are computed from their index, a batch at a time; nothing is stored."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return [{"x": [i % 97 / 97, i % 89 / 89], "labels": [i % 2]} for i in indices]


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    import torch

    return {key: torch.tensor([sample[key] for sample in samples], dtype=torch.float32) for key in ("x", "labels")}


def tiny_trainer(package: str, folder: str, samples: int, batch: int, callback: Any) -> Any:
    import torch

    class Tiny(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            return {"loss": (self.layer(x) - labels).square().mean()}

    module, args = arguments(package, folder, num_train_epochs=1, per_device_train_batch_size=batch)

    class Called(module.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            callback(state.global_step, control)

    data = Computed(samples)
    return module.Trainer(model=Tiny(), args=args, train_dataset=data, data_collator=collate, callbacks=[Called()])


def training_run(package: str, folder: str, samples: str, batch: str) -> None:
    """In a new interpreter: train through the epoch, with a checkpoint at each place, in a directory of its own."""
    import torch

    torch.set_num_threads(1)
    last = int(samples) // int(batch)
    steps = dict(zip(PLACES, (1, last // 2, last - 2)))

    def save_there(step: int, control: Any) -> None:
        if step in steps.values():
            control.should_save = True
        elif step > steps["end"]:
            control.should_training_stop = True

    with silence():
        tiny_trainer(package, folder, int(samples), int(batch), save_there).train()
    for place, step in steps.items():
        target = Path(folder) / place / f"checkpoint-{step}"
        target.parent.mkdir()
        (Path(folder) / target.name).rename(target)
    print(json.dumps({place: str(Path(folder) / place / f"checkpoint-{step}") for place, step in steps.items()}))


def first_step(package: str, folder: str, samples: int, batch: int, checkpoint: str | None) -> float:
    """Seconds from the call of train() to the end of its first step."""
    ended = []

    def stop(step: int, control: Any) -> None:
        ended.append(time.perf_counter())
        control.should_training_stop = True

    with silence():
        trainer = tiny_trainer(package, folder, samples, batch, stop)
        started = time.perf_counter()
        trainer.train(resume_from_checkpoint=checkpoint)
    return ended[0] - started


def measure_resumes(packages: list[str], samples: int, batch: int, repeats: int) -> None:
    times: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        made: dict[str, dict[str, str | None]] = {}
        for package in packages:
            home = Path(folder) / package
            home.mkdir()
            paths = fresh(CODE, "training_run", package, str(home), str(samples), str(batch), threads=1)
            made[package] = {"no resume": None, **paths}
        for repeat in range(repeats + 1):
            for package, paths in made.items():
                for place, path in paths.items():
                    home = str(Path(path or Path(folder) / package / "none" / "x").parent)
                    seconds = first_step(package, home, samples, batch, path)
                    if repeat:  # the first time finds its code
                        times.setdefault((package, place), []).append(seconds)
    rows = [
        [package, *(f"{middle(times[package, place]):.3f}" for place in ("no resume", *PLACES))]
        + [f"{middle(times[package, 'end']) / middle(times[package, 'start']):.2f}x"]
        for package in packages
    ]
    print_table(
        f"From train() to the end of the first step, an epoch of {samples:,} samples in batches of {batch}: seconds, "
        f"medians of {repeats}",
        ["", "no resume", *(f"at the {place}" for place in PLACES), "end to start"],
        rows,
    )


def say_load(when: str) -> None:
    busy = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    print(f"{when}: load of the machine {busy} (1, 5, 15 minutes) on {os.cpu_count()} cores", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smoke run: small model, figures mean nothing")
    parser.add_argument("--only", choices=["saves", "resume"], help="default: both")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each variant (default: 3)")
    parser.add_argument("--saves", type=int, default=4, help="saves in a run (default: 4)")
    parser.add_argument("--repeats", type=int, default=7, help="resumes at each place (default: 7)")
    given = parser.parse_args()
    names = [name for name, (package, _) in VARIANTS.items() if installed(*NEEDS[package])]
    say_load("before")
    if given.only != "resume":
        size, pause = ((256, 4), 2) if given.quick else ((2048, 24), 5)
        rounds, saves = (1, 2) if given.quick else (given.rounds, given.saves)
        report_saves(measure_saves(names, rounds, size, saves, pause), size)
    if given.only != "saves":
        import torch

        torch.set_num_threads(1)
        packages = list(dict.fromkeys(VARIANTS[name][0] for name in names))
        samples, repeats = (100_000, 1) if given.quick else (10_000_000, given.repeats)
        measure_resumes(packages, samples, 1000, repeats)
    for package in sorted({package for package, _ in VARIANTS.values()} - {VARIANTS[name][0] for name in names}):
        print(f"{package} is not installed and was left out", file=sys.stderr)
    say_load("after")


if __name__ == "__main__":
    main()
