"""Faults at random in pairs of runs, and pairs without any: what does `oneloop diff` name?

`python -m tests.divergence.search [--faults 120] [--clean 200] [--seed 0] [--pairs torch-paddle ...]` prints each fault
that is not named, each alarm without a fault, and the totals.
"""

import argparse
import collections
import contextlib
import io
import shutil
import subprocess
import tempfile
from pathlib import Path

from oneloop.divergence import compare_runs
from tests.distributed.launch import command, environment
from tests.divergence import faults, pairs

PAIRS = {  # the second run of each: framework, layout, processes
    "torch-paddle": ("paddle", "alone", 1),
    "torch-mindspore": ("mindspore", "alone", 1),
    "versions": ("torch", "alone", 1),
    "accumulated": ("torch", "accumulated", 1),
    "float32-bf16": ("torch", "bf16", 1),
    "dp2": ("torch", "dp2", 2),
    "shard2": ("torch", "shard2", 2),
    "tp2": ("torch", "tp2", 2),
    "sp2": ("torch", "sp2", 2),
}
# What rounding to bfloat16 hides: it is coarser than these.
HIDDEN_BY_BF16 = ("other epsilon", "other weight", "other gelu", "scaled residual", "optimizer epsilon", "weight decay")


def without(pair):
    """Faults that a pair cannot have, or cannot show."""
    framework, layout, processes = PAIRS[pair]
    found = set(faults.SEVERAL) if layout != "dp2" else set()
    if not pairs.has_stats(framework, layout):
        found.add("stale buffer")
    if layout == "bf16":
        found.update(HIDDEN_BY_BF16)
    if processes > 1:
        found.add("lost micro-batch")
    return found


def run(folder, framework, layout, processes, seed, chosen):
    """Train with each fault; on several processes in one launch."""
    if processes == 1:
        with contextlib.redirect_stdout(io.StringIO()):
            for number, fault in enumerate(chosen):
                pairs.train(folder / str(number), framework, layout, seed, fault)
        return
    words = [f"{fault.name}@{fault.place}" for fault in chosen]
    script = Path(pairs.__file__)
    argv = command(processes, script, folder, framework, layout, seed, *words)
    subprocess.run(argv, env=environment(), check=True, capture_output=True, timeout=3600)


def search(pair, count, clean, seed, folder):
    """(faults named, faults, alarms, clean pairs, what was named wrongly)."""
    framework, layout, processes = PAIRS[pair]
    chosen = faults.draw(count, seed, without(pair))
    run(folder / "b", framework, layout, processes, seed, chosen)
    wrong, named = [], 0
    with contextlib.redirect_stdout(io.StringIO()):
        reference = {
            kind: pairs.train(folder / kind, "torch", kind, seed, with_stats=_stats(pair) and kind == "alone")
            for kind in ("alone", "accumulated")
        }
    for number, fault in enumerate(chosen):
        kind = "accumulated" if fault.name == "lost micro-batch" else "alone"
        found = compare_runs(reference[kind], folder / "b" / str(number)).first
        got = None if found is None else (found.module, found.kind)
        named += got == fault.expected
        if got != fault.expected:
            wrong.append(f"{pair}: {fault.name} at {fault.place or '-'}: {got}")
    alarms = 0
    for number in range(clean):
        own = folder / "clean"
        run(own / "b", framework, layout, processes, seed + 1 + number, [pairs.CLEAN])
        with contextlib.redirect_stdout(io.StringIO()):
            a = pairs.train(own / "a", "torch", "alone", seed + 1 + number, with_stats=_stats(pair))
        found = compare_runs(a, own / "b" / "0").first
        if found is not None:
            alarms += 1
            wrong.append(f"{pair}: clean, seed {seed + 1 + number}: {found.module}, {found.kind}, {found.what}")
        shutil.rmtree(own)
    return named, len(chosen), alarms, clean, wrong


def _stats(pair):
    return pairs.has_stats(*PAIRS[pair][:2])


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=120)
    parser.add_argument("--clean", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pairs", nargs="+", default=[name for name in PAIRS if name != "sp2"])
    options = parser.parse_args(argv)
    totals = collections.Counter()
    for number, pair in enumerate(options.pairs):
        share = [
            total // len(options.pairs) + (number < total % len(options.pairs))
            for total in (options.faults, options.clean)
        ]
        with tempfile.TemporaryDirectory() as folder:
            named, count, alarms, clean, wrong = search(pair, *share, options.seed + 1000 * number, Path(folder))
        for line in wrong:
            print(line)
        print(f"{pair}: {named} of {count} faults named, {alarms} alarms in {clean} clean pairs", flush=True)
        totals.update(named=named, faults=count, alarms=alarms, clean=clean)
    print(f"{totals['named']} of {totals['faults']} faults named; {totals['alarms']} alarms in {totals['clean']} pairs")


if __name__ == "__main__":
    main()
