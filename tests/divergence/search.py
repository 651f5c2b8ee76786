"""Faults at random in pairs of runs, and pairs without any: what does `oneloop diff` name?

`python -m tests.divergence.search [--faults 120] [--clean 200] [--seed 0] [--pairs torch-paddle ...]` prints each fault
that is not named, each alarm without a fault, and the totals.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import functools
import io
import logging
import multiprocessing
import subprocess
import tempfile
from pathlib import Path

from oneloop.divergence import compare_runs
from tests.distributed.launch import command, environment
from tests.divergence import faults, pairs

PAIRS = {  # the second run of each: framework, layout, processes
    "torch-paddle": ("paddle", "alone", 1),
    "torch-mindspore": ("mindspore", "alone", 1),
    "versions": ("rewritten", "alone", 1),
    "accumulated": ("torch", "accumulated", 1),
    "float32-bf16": ("torch", "bf16", 1),
    "dp2": ("torch", "dp2", 2),
    "shard2": ("torch", "shard2", 2),
    "tp2": ("torch", "tp2", 2),
    "sp2": ("sequence", "sp2", 2),
}


def without(pair):
    """Faults that a pair cannot have, or cannot show."""
    framework, layout, processes = PAIRS[pair]
    found = set(faults.SEVERAL) if layout not in ("dp2", "sp2") else set()
    if not pairs.has_stats(framework, layout):
        found.add("stale buffer")
    if processes > 1:
        found.add("lost micro-batch")
    if pair != "versions":
        found.add("order of dropout")
    if pair != "tp2":
        found.add("missing slice")
    return found


def run(folder, framework, layout, processes, chosen):
    """Train with each (fault, seed); on several processes in one launch."""
    if processes == 1:
        with contextlib.redirect_stdout(io.StringIO()):
            for number, (fault, seed) in enumerate(chosen):
                pairs.train(folder / str(number), framework, layout, seed, fault)
        return
    words = [f"{fault.name}@{fault.place}@{seed}" for fault, seed in chosen]
    argv = command(processes, Path(pairs.__file__), folder, framework, layout, *words)
    done = subprocess.run(argv, env=environment(), capture_output=True, timeout=3600)
    assert done.returncode == 0, done.stderr.decode()[-3000:]


def search(pair, count, clean, seed, folder):
    """(faults named, faults, alarms, clean pairs, what was named wrongly, largest ratio without a fault)."""
    framework, layout, processes = PAIRS[pair]
    drawn = faults.draw(count, seed, without(pair))
    cleans = [((pairs.CLEAN, pairs.SMALL)[number % 2], seed + 1 + number) for number in range(clean)]
    run(folder / "b", framework, layout, processes, [(fault, seed) for fault in drawn])
    run(folder / "clean", framework, layout, processes, cleans)
    reference = functools.cache(functools.partial(_reference, pair, folder))
    wrong, named, alarms, largest = [], 0, 0, 0.0
    for number, fault in enumerate(drawn):
        kind = {"lost micro-batch": "accumulated", "order of dropout": "dropout"}.get(fault.name, "alone")
        found = compare_runs(reference(kind, seed), folder / "b" / str(number)).first
        got = None if found is None else (found.module.removeprefix("encoder."), found.kind)
        named += got == fault.expected
        if got != fault.expected:
            wrong.append(f"{pair}: {fault.name} at {fault.place or '-'}: {got} {'' if found is None else found.what}")
    for number, (kind, each) in enumerate(cleans):
        comparison = compare_runs(reference("alone", each, kind), folder / "clean" / str(number))
        found, largest = comparison.first, max(largest, comparison.largest)
        if found is not None:
            alarms += 1
            wrong.append(f"{pair}: clean {kind.place}, seed {each}: {found.module}, {found.kind}, {found.what}")
    return named, len(drawn), alarms, clean, wrong, largest


def _reference(pair, folder, layout, seed, clean=pairs.CLEAN):
    """The first run of a pair: one process."""
    framework = "sequence" if pair == "sp2" else "torch"
    with_stats = pairs.has_stats(*PAIRS[pair][:2]) and layout != "accumulated"
    with contextlib.redirect_stdout(io.StringIO()):
        return pairs.train(folder / f"{layout}-{seed}{clean.place}", framework, layout, seed, clean, with_stats)


def _own_process():
    """Not all frameworks can be loaded into one."""
    return concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_quiet)


def _quiet():
    logging.getLogger("oneloop").setLevel(logging.ERROR)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=120)
    parser.add_argument("--clean", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pairs", nargs="+", default=list(PAIRS))
    parser.add_argument("--part", default="1/1", help="which part of the pairs, such as 1/2, to run parts side by side")
    options = parser.parse_args(argv)
    part, parts = map(int, options.part.split("/"))
    totals = collections.Counter()
    for number, pair in list(enumerate(options.pairs))[part - 1 :: parts]:
        share = [
            total // len(options.pairs) + (number < total % len(options.pairs))
            for total in (options.faults, options.clean)
        ]
        with tempfile.TemporaryDirectory() as folder, _own_process() as pool:
            task = pool.submit(search, pair, *share, options.seed + 1000 * number, Path(folder))
            named, count, alarms, clean, wrong, largest = task.result()
        for line in wrong:
            print(line)
        print(
            f"{pair}: {named} of {count} faults named, {alarms} alarms in {clean} clean pairs, which are up to "
            f"{largest:.2g} times as far apart as rounding explains",
            flush=True,
        )
        totals.update(named=named, faults=count, alarms=alarms, clean=clean)
    print(f"{totals['named']} of {totals['faults']} faults named; {totals['alarms']} alarms in {totals['clean']} pairs")


if __name__ == "__main__":
    main()
