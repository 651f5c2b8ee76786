"""A fuzzer for resumes: libFuzzer, through atheris, chooses bytes, and mutations.py makes a changed checkpoint of them.

    scripts/fuzz [torch|paddle|mindspore] [seconds]

A changed checkpoint, whose checksums are right, has to be a CheckpointError or a run that goes on to its end. Anything
else ends the fuzzer: another exception, a crash of the process, or more than 30 seconds. What it found is then a file
in the folder that it prints; copy it into tests/checkpoint/fuzz_seeds, where test_fuzz_seeds.py tries it from then on.
"""

import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["oneloop"]):
    import oneloop.checkpoint.resume
    import oneloop.formats.structure  # noqa: F401

from oneloop.checkpoint import store
from tests.backends.support import kit_module
from tests.checkpoint import mutations

SEEDS = Path(__file__).with_name("fuzz_seeds")
FOUND = Path(__file__).parents[2] / ".work" / "fuzz"
LONGEST = 30  # seconds of one resume


class Target:
    """One fresh copy of a checkpoint for each input."""

    def __init__(self, framework):
        self.folder = Path(tempfile.mkdtemp())
        self.kit = kit_module(framework).Kit()
        self.source = mutations.save(self.kit, self.folder / "source")
        self.counts, self.started = Counter(), time.monotonic()
        os.fsync = lambda descriptor: None  # the disk has no part in what is tested

    def __call__(self, data):
        if sum(self.counts.values()) % 500 == 499:  # libFuzzer ends the process without a last word
            self.report()
        run = self.folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        checkpoint = shutil.copytree(self.source, run / self.source.name)
        mutations.mutate(checkpoint, data)
        if store.problems(checkpoint):  # a resume would only repeat this
            self.counts["refused before loading"] += 1
            return
        self.counts[mutations.outcome(self.kit, checkpoint, run)] += 1

    def report(self):
        total, seconds = sum(self.counts.values()), time.monotonic() - self.started
        parts = ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()))
        print(f"{total} changed checkpoints in {seconds:.0f} s: {parts}", flush=True)


def main(framework="torch", seconds="600"):
    found, corpus = FOUND / framework, tempfile.mkdtemp()
    found.mkdir(parents=True, exist_ok=True)
    print(f"what it finds is written to {found}", flush=True)
    target = Target(framework)
    options = [
        f"-max_total_time={seconds}",
        f"-timeout={LONGEST}",
        "-max_len=64",
        "-len_control=0",
        f"-artifact_prefix={found}/",
    ]
    atheris.Setup([sys.argv[0], *options, "-rss_limit_mb=8192", "-print_final_stats=1", corpus, str(SEEDS)], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
