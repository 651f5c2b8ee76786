"""Processes that are killed at random, again and again, until the run gets through. As a program:

    OMP_NUM_THREADS=1 python -m tests.distributed.kills [--seeds 12] [--kills 18] [--processes 2] [--sharding stage2]
        [--adapter] [--layout tp2] [--set snapshot_steps=7]

After every kill the others have to leave by themselves and the newest checkpoint has to be whole; at its end a run has
to have the bytes and the log of one that was never killed. It prints how many kills there were, and ends with status 1
at the first difference.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.checkpoint.children import damage_of_latest, differences, log_lines, result
from tests.distributed.forking import Forked


def load():
    """Import once what all processes that are forked from here use, also what torch imports on its way."""
    import torch._dynamo
    import torch._inductor.config  # noqa: F401

    import oneloop.backends.torch.sharding  # noqa: F401
    import tests.distributed.running  # noqa: F401


# Of models that are divided: the number of processes, the model, and the arguments.
LAYOUTS = {
    "tp2": (2, "llama", {"tensor_parallel_size": 2}),
    "sp2": (2, "llama", {"sequence_parallel_size": 2}),
    "ep2": (2, "moe", {"expert_parallel_size": 2}),
    "tp2 x dp2": (4, "llama", {"tensor_parallel_size": 2}),
    "tp2 x shard2": (4, "llama", {"tensor_parallel_size": 2, "sharding": "stage3"}),
    "sp2 x shard2": (4, "llama", {"sequence_parallel_size": 2, "sharding": "stage3"}),
}


def options(steps, sharding="", adapter=False, layout=""):
    given = ["--set", f'sharding="{sharding}"'] if sharding else []
    if layout:
        _, model, arguments = LAYOUTS[layout]
        given = ["--model", model]
        for name, value in arguments.items():
            given += ["--set", f"{name}={json.dumps(value)}"]
    return ["--no-sync", "--steps", str(steps), *given, *["--adapter"] * adapter]


def unbroken_run(output, processes, argv):
    with Forked(processes, output, *argv) as run:
        assert run.end() == 0, run.said
    return output


def kill_one(run, moments):
    """SIGKILL to any process: mostly while it trains or saves, else while it still starts. Whether it came in time."""
    victim = run.pids[moments.randrange(len(run.pids))]
    if moments.random() < 0.8:
        with contextlib.suppress(AssertionError):  # a run that was nearly through may end before
            run.wait_for(r"rank \d step \d+\n")
    time.sleep(moments.random() * 0.8)
    if run.poll() or victim in run.statuses:
        return False
    os.kill(victim, signal.SIGKILL)
    return True


def killed_run(seed, output, unbroken, kills, processes, argv):
    """How often it was killed before it got through; an AssertionError says what is wrong."""
    moments, done = random.Random(seed), 0
    for _ in range(kills + 20):
        with Forked(processes, output, "--pause", 0.03, "--resume", *argv) as run:
            done += done < kills and kill_one(run, moments)
            status, said = run.end(), run.said
        damage = damage_of_latest(output)
        assert damage == [], f"seed {seed}, kill {done}: {damage}"
        if status == 0:
            break
    assert status == 0, said
    wrong = differences(result(output), result(unbroken))
    assert wrong == [], f"seed {seed}: {wrong}"
    assert log_lines(output) == log_lines(unbroken), f"seed {seed}: the logs differ"
    return done


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--kills", type=int, default=18, help="at most, in each run")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--sharding", default="")
    parser.add_argument("--adapter", action="store_true", help="train LoRA")
    parser.add_argument("--layout", default="", choices=("", *LAYOUTS), help="divide the model")
    parser.add_argument("--set", action="append", default=[], help="NAME=JSON for TrainingArguments")
    asked = parser.parse_args()
    load()
    if asked.layout:
        import tests.distributed.experts_job  # noqa: F401

        asked.processes = LAYOUTS[asked.layout][0]
    if asked.adapter:
        import peft  # noqa: F401
    argv, total = options(asked.steps, asked.sharding, asked.adapter, asked.layout), 0
    argv += [word for given in asked.set for word in ("--set", given)]
    with tempfile.TemporaryDirectory() as folder:
        unbroken = unbroken_run(Path(folder) / "unbroken", asked.processes, argv)
        for seed in range(asked.first, asked.first + asked.seeds):
            try:
                done = killed_run(seed, Path(folder) / f"run{seed}", unbroken, asked.kills, asked.processes, argv)
            except AssertionError as error:
                sys.exit(f"{total} kills before, then: {error}")
            total += done
            print(f"seed {seed}: {done} kills, the same bytes; {total} in all", flush=True)


if __name__ == "__main__":
    main()
