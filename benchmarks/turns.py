"""Variants that take turns, a block of steps of one and then a block of the next, and the table of what they took.

The clock is read at the entry of the model's forward, which is the same code for all, so a block is a whole number of
steps and nothing of the set-up is in it.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from common import HERE, print_table


class Turns:
    """Counts the steps of one variant and keeps the time of every one. A subclass says how it waits for its turn."""

    def __init__(self, block: int, warmup: int) -> None:
        self.block = block
        self.left = warmup
        self.clock: list[float] = []
        self.blocks: list[list[float]] = []
        self.cpu = 0.0
        self._cpu_at_start: float | None = None

    def cpu_time(self) -> float:
        return time.thread_time()

    def wait(self) -> None:
        """Let the others run until it is this one's turn again."""
        raise NotImplementedError

    def tick(self) -> None:
        """Called by the model at the start of every forward."""
        self.clock.append(time.perf_counter())
        if self.left:
            self.left -= 1
            return
        if self._cpu_at_start is not None:
            self.cpu += self.cpu_time() - self._cpu_at_start
            self.blocks.append([end - start for start, end in zip(self.clock, self.clock[1:])])
        self.wait()
        self.left = self.block - 1
        self._cpu_at_start = self.cpu_time()
        self.clock = [time.perf_counter()]


def report(title: str, turns: dict[str, Any], missing: list[str], base: str = "hand-written") -> None:
    """Medians of steps are proof against a busy machine; the CPU time holds everything, also logs and epochs."""
    first = turns[base]
    rows = []
    for name, turn in turns.items():
        pairs = zip(turn.blocks, first.blocks)
        ratios = sorted(statistics.median(ours) / statistics.median(theirs) for ours, theirs in pairs)
        quarter = len(ratios) // 4
        typical = statistics.median(step for block in turn.blocks for step in block)
        rows.append(
            [
                name,
                f"{typical * 1e6:.0f}",
                f"{statistics.median(ratios):.3f}x",
                f"{ratios[quarter]:.3f} to {ratios[-1 - quarter]:.3f}",
                f"{turn.cpu / first.cpu:.3f}x",
            ]
        )
    rows += [[name, "not installed", "", "", ""] for name in missing]
    print_table(
        f"{title}: {len(first.blocks)} rounds of {first.block} steps each",
        ["", "µs a step", f"to {base}", "middle half", "CPU time, all"],
        rows,
    )


# -- variants in processes of their own, for environments that cannot be one


class InChild(Turns):
    """In the child: a block's times go to the parent, and a line from it is the next turn."""

    def __init__(self, block: int, warmup: int) -> None:
        super().__init__(block, warmup)
        self.channel = os.fdopen(os.dup(1), "w")  # what the trainers print goes elsewhere
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)

    def cpu_time(self) -> float:
        return time.process_time()

    def wait(self) -> None:
        times = self.blocks.pop() if self.blocks else []
        print(json.dumps({"steps": times, "cpu": self.cpu}), file=self.channel, flush=True)
        if not sys.stdin.readline():  # the parent is gone, or has seen enough
            os._exit(0)


class Child:
    """In the parent: one variant, in the interpreter of its environment."""

    def __init__(
        self,
        name: str,
        python: str,
        script: str,
        case: str,
        block: int,
        warmup: int,
        steps: int,
        tree: Path = HERE.parent,
        options: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.block = block
        self.blocks: list[list[float]] = []
        self.cpu = 0.0
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        paths = os.pathsep.join([str(tree), str(HERE), os.environ.get("PYTHONPATH", "")])
        given = [f"--child={name}", f"--model={case}", f"--block={block}", f"--warmup={warmup}", f"--steps={steps}"]
        self.process = subprocess.Popen(
            [python, str(HERE / script), *given, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )
        self._receive()

    def _receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.errors.seek(0)
            raise SystemExit(f"{self.name} failed:\n{self.errors.read()[-3000:]}")
        return json.loads(line)

    def give(self) -> None:
        """One turn; returns when it is over."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        found = self._receive()
        self.blocks.append(found["steps"])
        self.cpu = found["cpu"]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self.errors.close()


def measure_children(
    script: str,
    case: str,
    pythons: dict[str, str],
    rounds: int,
    block: int,
    warmup: int,
    trees: dict[str, Path] | None = None,
    options: Sequence[str] = (),
) -> dict[str, Child]:
    """Blocks of every variant, in a new order every round.

    pythons: variant -> interpreter; trees: variant -> where it has oneloop from, where that is not this tree.
    """
    steps = warmup + (rounds + 2) * block
    children: dict[str, Child] = {}
    try:
        for name, python in pythons.items():
            tree = (trees or {}).get(name, HERE.parent)
            children[name] = Child(name, python, script, case, block, warmup, steps, tree, options)
        for _ in range(rounds):
            for name in random.sample(list(children), len(children)):
                children[name].give()
    finally:
        for child in children.values():
            child.close()
    return children


def run_child(given: Any, train: Callable[[Any, int, str], None]) -> None:
    """The child's side: train(turns.tick, steps, folder) until the parent has seen enough."""
    turns = InChild(given.block, given.warmup)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # some trainers write into the current directory
        train(turns.tick, given.steps, folder)


def environment(folder: str) -> str | None:
    """The interpreter of an environment that setup has made; None when it has not."""
    path = HERE / folder / "bin" / "python"
    return str(path) if path.is_file() else None


def parser(description: str, models: dict[str, Any]) -> Any:
    """The options that these benchmarks have in common."""
    import argparse

    made = argparse.ArgumentParser(description=description)
    made.add_argument("--quick", action="store_true", help="a smoke run: few steps, figures mean nothing")
    made.add_argument("--model", choices=[*models, "all"], default="all")
    made.add_argument("--rounds", type=int, help="blocks of each variant")
    made.add_argument("--variants", nargs="+", help="default: all that are installed")
    for name in ("child", "block", "warmup", "steps"):
        made.add_argument(f"--{name}", type=str if name == "child" else int, help=argparse.SUPPRESS)
    return made
