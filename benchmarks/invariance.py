"""What world_invariant=True costs: time of a step, and bytes that a process sends.

    python benchmarks/invariance.py [--quick] [--processes 2] [--rounds 15] [--steps 40] [--accumulation 1]

Runs with and without it take turns, round by round, in one set of processes; the figure is the median of the ratios of
neighbours. Time is that from the first step to the last.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import print_table, silence

WAYS: dict[str, dict[str, Any]] = {
    "DDP": {},
    "DDP, world_invariant": {"world_invariant": True},
    "stage1": {"sharding": "stage1"},
    "stage1, world_invariant": {"sharding": "stage1", "world_invariant": True},
}


def train(case: Any, steps: int, folder: str, given: dict[str, Any]) -> float:
    """Steps per second."""
    from scaling import Clock

    import oneloop

    clock = Clock(oneloop.TrainerCallback)
    args = oneloop.TrainingArguments(
        folder,
        max_steps=steps,
        per_device_train_batch_size=case.batch,
        learning_rate=1e-4,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        device="cpu",
        ddp_find_unused_parameters=False,
        **given,
    )
    with silence():
        trainer = oneloop.Trainer(case.make(lambda: None), args, train_dataset=case.samples, callbacks=[clock.callback])
        trainer.train()
    return clock.rate()


def sent(case: Any, folder: str, given: dict[str, Any]) -> int:
    """Bytes of gradients that this process sends to others in a step of world_invariant."""
    import torch.distributed as dist

    from oneloop.backends.torch import parallel

    size, found = dist.get_world_size(), [0]
    exchange, gather = dist.all_to_all_single, parallel._all_gather

    def exchanged(output: Any, given: Any, *rest: Any, **options: Any) -> Any:
        found[0] += given.nbytes * (size - 1) // size
        return exchange(output, given, *rest, **options)

    def gathered(output: Any, given: Any, **options: Any) -> Any:
        found[0] += given.nbytes * (size - 1) if given.numel() > 64 else 0
        return gather(output, given, **options)

    dist.all_to_all_single, parallel._all_gather = exchanged, gathered
    try:
        train(case, 1, folder, given)
    finally:
        dist.all_to_all_single, parallel._all_gather = exchange, gather
    return found[0]


def work(out: Path, rounds: int, steps: int, accumulation: int) -> None:
    """What torchrun starts."""
    import torch
    from models import bert

    torch.set_num_threads(1)
    case, folder = bert(), str(out / f"run{os.environ['RANK']}")
    common = {"gradient_accumulation_steps": accumulation}
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    for turn in range(rounds + 1):
        for name, given in list(WAYS.items())[:: 1 if turn % 2 else -1]:
            rate = train(case, steps, folder, given | common)
            if turn:  # the first round warms up
                rates[name].append(rate)
    size = int(os.environ["WORLD_SIZE"])
    gradients = sum(p.numel() * 4 for p in case.make(lambda: None).parameters())
    volume = {
        "gradients": gradients,
        "ring": 2 * (size - 1) * gradients // size,
        "sent": sent(case, folder, common | WAYS["DDP, world_invariant"]),
    }
    (out / f"rank{os.environ['RANK']}.json").write_text(json.dumps({"rates": rates, "bytes": volume}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke test: figures mean nothing")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.quick:
        asked.rounds, asked.steps = 1, 3
    if asked.work:
        work(Path(asked.work), asked.rounds, asked.steps, asked.accumulation)
        return
    with tempfile.TemporaryDirectory() as folder, socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
        s.close()
        options = [f"--nproc-per-node={asked.processes}", f"--master-port={port}"]
        own = [f"--{name}={getattr(asked, name)}" for name in ("rounds", "steps", "accumulation")]
        command = [sys.executable, "-m", "torch.distributed.run", *options, __file__, "--work", folder, *own]
        done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        found = json.loads((Path(folder) / "rank0.json").read_text())
    rows = []
    for name, rates in found["rates"].items():
        base = name.partition(",")[0]
        ratios = sorted(plain / own for plain, own in zip(found["rates"][base], rates))
        middle = f"{ratios[len(ratios) // 4]:.3f} to {ratios[-1 - len(ratios) // 4]:.3f}"
        step = f"{1e3 / statistics.median(rates):.1f}"
        rows.append([name, step, f"{statistics.median(ratios):.3f}x", "" if name == base else middle])
    title = f"BERT, {asked.processes} processes of one thread, accumulation {asked.accumulation}"
    print_table(title, ["", "ms a step", "to the same without it", "middle half"], rows)
    print_table("Bytes of a step", list(found["bytes"]), [[f"{value:,}" for value in found["bytes"].values()]])


if __name__ == "__main__":
    main()
