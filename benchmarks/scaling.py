"""Two processes: oneloop against hand-written DDP and FSDP2 loops and transformers' Trainer, and what each rank holds.

    python benchmarks/scaling.py [--quick] [--processes 2] [--rounds 11] [--steps 40] [--only DDP]

The ways take turns, round by round, in one set of processes, so that a busy moment of the machine hits all of them.
Each is compared, round by round, with the hand-written loop that keeps its state in the same way: the figure is the
median of these ratios. Memory is counted in bytes of live local tensors after a backward pass.
"""

import argparse
import gc
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from common import installed, print_table, silence

BATCH, WIDTH, DEPTH, CLASSES = 16, 256, 8, 8


# -- in every process


def data(count: int) -> list[dict[str, Any]]:
    import torch

    generator = torch.Generator().manual_seed(0)
    return [{"x": torch.randn(WIDTH, generator=generator), "labels": i % CLASSES} for i in range(count)]


def build() -> Any:
    import torch
    from torch import nn

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

        def forward(self, x: Any, labels: Any = None) -> Any:
            for layer in self.layers:
                x = x + torch.tanh(layer(x))
            return {"loss": nn.functional.cross_entropy(x[:, :CLASSES], labels), "logits": x[:, :CLASSES]}

    torch.manual_seed(0)
    return Layers()


def by_hand(samples: list[Any], steps: int, sharding: str) -> float:
    """A loop as people write it: sampler, backward, clipping, AdamW, schedule."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.utils.data import DataLoader, DistributedSampler

    model = build()
    if sharding in ("stage2", "stage3"):
        again = sharding == "stage3"
        for layer in model.layers:
            fully_shard(layer, reshard_after_forward=again)
        fully_shard(model, reshard_after_forward=None if again else False)
        called = model
    else:
        called = torch.nn.parallel.DistributedDataParallel(model)
    loader = DataLoader(samples, BATCH, sampler=DistributedSampler(samples, seed=0))
    options = {"lr": 1e-4, "fused": True}
    if sharding == "stage1":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **options)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), **options)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    dist.barrier()
    start, done = time.perf_counter(), 0
    while done < steps:
        for batch in loader:
            called(**batch)["loss"].backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            done += 1
            if done == steps:
                break
    dist.barrier()
    return steps / (time.perf_counter() - start)


ARGUMENTS = {
    "per_device_train_batch_size": BATCH,
    "learning_rate": 1e-4,
    "logging_strategy": "no",
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "ddp_find_unused_parameters": False,
}


class Clock:
    """Seconds between the first step and the last: what a Trainer does around them is not the loop."""

    def __init__(self, callback: Any) -> None:
        class Timed(callback):  # type: ignore[misc]
            times: list[float] = []

            def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                type(self).times = [time.perf_counter()]

            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                type(self).times.append(time.perf_counter())

        self.callback = Timed

    def rate(self) -> float:
        times = self.callback.times
        return (len(times) - 1) / (times[-1] - times[0])


def by_oneloop(samples: list[Any], steps: int, folder: str, sharding: str) -> float:
    import oneloop

    clock = Clock(oneloop.TrainerCallback)
    args = oneloop.TrainingArguments(folder, max_steps=steps, sharding=sharding, device="cpu", **ARGUMENTS)
    with silence():
        oneloop.Trainer(build(), args, train_dataset=samples, callbacks=[clock.callback]).train()
    return clock.rate()


def by_transformers(samples: list[Any], steps: int, folder: str) -> float:
    import transformers

    clock = Clock(transformers.TrainerCallback)
    args = transformers.TrainingArguments(folder, max_steps=steps, use_cpu=True, **ARGUMENTS)
    with silence():
        transformers.Trainer(build(), args, train_dataset=samples, callbacks=[clock.callback]).train()
    return clock.rate()


def held(folder: str, sharding: str) -> dict[str, int]:
    """Bytes of live local tensors of this process, after the backward pass of the second update."""
    import oneloop

    found: dict[str, int] = {}

    class Weigh(oneloop.TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            model, optimizer = kwargs["model"], kwargs["optimizer"]
            parameters = list(model.parameters())
            states = getattr(optimizer, "optim", optimizer).state.values()
            found["optimizer state"] = size([v for state in states for v in state.values() if v.dim()])
            found["gradients"] = size([p.grad for p in parameters if p.grad is not None])
            found["parameters"] = size(parameters)

    args = oneloop.TrainingArguments(folder, max_steps=2, sharding=sharding, device="cpu", **ARGUMENTS)
    with silence():
        oneloop.Trainer(build(), args, train_dataset=data(4 * BATCH), callbacks=[Weigh]).train()
    gc.collect()
    return found


def size(tensors: list[Any]) -> int:
    from torch.distributed.tensor import DTensor

    storages = [(t.to_local() if isinstance(t, DTensor) else t).untyped_storage() for t in tensors]
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())


STRATEGIES = {"DDP": "", "stage1": "stage1", "stage2": "stage2", "stage3": "stage3"}


def work(out: Path, rounds: int, steps: int, only: list[str]) -> None:
    """What torchrun starts."""
    import torch

    from oneloop import TrainingArguments

    torch.set_num_threads(1)
    folder = str(out / f"run{os.environ['RANK']}")
    _ = TrainingArguments(folder, device="cpu").processes  # the group, for the hand-written loops too
    samples = data(64 * BATCH)
    ways: dict[str, Callable[[], float]] = {}
    for name in only:
        sharding = STRATEGIES[name]
        ways[f"hand-written {name}"] = partial(by_hand, samples, steps, sharding)
        ways[f"oneloop {name}"] = partial(by_oneloop, samples, steps, folder, sharding)
    if "DDP" in only and installed("transformers", "accelerate"):
        ways["transformers DDP"] = lambda: by_transformers(samples, steps, folder)
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        order = list(ways.items())
        for name, way in order if turn % 2 else reversed(order):
            rate = way()
            if turn:  # the first round warms up
                rates[name].append(rate)
    memory = {name: held(folder, sharding) for name, sharding in STRATEGIES.items()}
    (out / f"rank{os.environ['RANK']}.json").write_text(json.dumps({"rates": rates, "memory": memory}))


# -- the one that prints


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke test: figures mean nothing")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--only", nargs="+", choices=list(STRATEGIES), default=list(STRATEGIES), metavar="STRATEGY")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.quick:
        asked.rounds, asked.steps = 1, 4
    if asked.work:
        work(Path(asked.work), asked.rounds, asked.steps, asked.only)
        return
    with tempfile.TemporaryDirectory() as folder:
        every = [json.loads(path.read_text()) for path in launch(asked, Path(folder))]
    print_rates(every[0]["rates"], asked.processes)
    print_memory([each["memory"] for each in every])


def launch(asked: argparse.Namespace, folder: Path) -> list[Path]:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    options = [f"--nproc-per-node={asked.processes}", f"--master-port={port}"]
    own = ["--work", str(folder), "--rounds", str(asked.rounds), "--steps", str(asked.steps), "--only", *asked.only]
    command = [sys.executable, "-m", "torch.distributed.run", *options, __file__, *own]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return sorted(folder.glob("rank*.json"))


def print_rates(rates: dict[str, list[float]], processes: int) -> None:
    rows = []
    for name, values in rates.items():
        twin = "hand-written " + name.split(" ", 1)[1]
        ratios = sorted(by_hand / own for by_hand, own in zip(rates[twin], values))
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        middle = f"{statistics.median(ratios):.3f}x", f"{low:.3f} to {high:.3f}"
        rows.append([name, f"{statistics.median(values):.1f}", *(middle if name != twin else ("1.000x", ""))])
    title = f"Updates a second, {processes} processes of one thread, {DEPTH} layers of {WIDTH} x {WIDTH}"
    print_table(title, ["way", "updates/s", "step to hand-written", "middle half"], rows)


def print_memory(memory: list[dict[str, dict[str, int]]]) -> None:
    kinds = ("optimizer state", "gradients", "parameters")
    rows = []
    for name in STRATEGIES:
        most = {kind: max(of_rank[name][kind] for of_rank in memory) for kind in kinds}
        shares = [most[kind] / max(of_rank["DDP"][kind] for of_rank in memory) for kind in kinds]
        rows.append([name, *(f"{most[kind]:,} ({share:.2f})" for kind, share in zip(kinds, shares))])
    print_table("Bytes on a rank after a backward pass, the largest of all (share of DDP's)", ["", *kinds], rows)


if __name__ == "__main__":
    main()
