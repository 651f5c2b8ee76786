"""Every documented argument in every layout, beside one process: equal, or refused by name. As a program:

    OMP_NUM_THREADS=1 python -m tests.distributed.matrix [--layouts tp2 sp2 ...] [--arguments NAME ...] [--write]

It prints what is different, and ends with status 1 if anything is. `--write` writes docs/internals/layout-matrix.md.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.distributed.launch import ROOT, outcome
from tests.distributed.matrix_job import (
    ALONE,
    BY_BATCHES,
    DIVIDED,
    ELSEWHERE,
    ENTRIES,
    HALF,
    LAYOUTS,
    OF_SEVERAL,
    TWO_BATCHES,
)
from tests.distributed.matrix_job import __file__ as JOB

PAGE = ROOT / "docs" / "internals" / "layout-matrix.md"
NEAR = 1e-5
AT_ONCE = 100  # runs of the same processes, which end after ten minutes


def run_all(folder, layout, numbers):
    """What became of each entry: by number, what matrix_job wrote. Those in which processes died are failed."""
    found, left = {}, list(numbers)
    path = Path(folder) / f"{layout}.jsonl"
    while left:
        statuses, said = outcome(LAYOUTS[layout][0], folder, layout, *left[:AT_ONCE], script=JOB)
        lines = path.read_text().splitlines() if path.exists() else []
        found |= {each.pop("number"): each for each in map(json.loads, lines)}
        undone = [number for number in left[:AT_ONCE] if number not in found]
        if any(statuses) and undone:  # they died in the first of these
            found[undone[0]] = {"failed": f"exit statuses {statuses}: {said[-1500:]}"}
        left = [number for number in left if number not in found]
    return found


def verdict(entry, layout, here, alone, single):
    """The cell of the table: equal, refused, or what is wrong. `single`: the run of one process in float32. Losses in
    half precision may be as far from those of one process as these are from it."""
    if "trained" not in here and alone is not None and "trained" not in alone:
        return "also on one process"
    if "refused" in here:
        names = (entry[0], str(entry[1]), *entry[2], "_parallel_size")
        return "refused" if any(name in here["refused"] for name in names) else f"NAMELESS {here['refused']}"
    if "failed" in here:
        return f"FAILED {here['failed'][:300]}"
    if alone is None or "trained" not in alone:
        return f"TRAINS, but not on one process: {alone}"
    here, alone = here["trained"], alone["trained"]
    near = NEAR
    if entry[0] in HALF and single is not None:
        alone = alone | {"norms": [], "weights": [], "eval_loss": here["eval_loss"]}
        near = max(near, *(abs(a - b) for a, b in zip(alone["losses"], single["losses"])))
    if here["steps"] != alone["steps"] or len(here["losses"]) != len(alone["losses"]):
        return f"DIFFERENT steps: {here['steps']} and {alone['steps']}, {len(here['losses'])} logs"
    for name in ("losses", "norms", "weights"):
        for mine, other in zip(here[name], alone[name]):
            scale = max(1.0, abs(other))
            # AdamW takes steps of full length along gradients that are rounding: sums of weights may differ by some.
            allowed = near * (100 if name == "weights" else 1)
            if not (mine == other or abs(mine - other) <= allowed * scale):
                return f"DIFFERENT {name}: {mine!r} and {other!r}"
    if here["eval_loss"] != alone["eval_loss"] and not (
        abs(here["eval_loss"] - alone["eval_loss"]) <= near * max(1.0, alone["eval_loss"])
    ):
        return f"DIFFERENT evaluation: {here['eval_loss']} and {alone['eval_loss']}"
    return "equal"


PLAIN = next(n for n, (argument, value, _) in enumerate(ENTRIES) if (argument, value) == ("run_name", "two"))


def reference(layout, number):
    """What an entry is compared with in a layout: the layout, and the number of the entry there."""
    argument = ENTRIES[number][0]
    if argument in OF_SEVERAL:
        return ALONE.get(layout, "alone"), PLAIN
    if argument in BY_BATCHES and LAYOUTS[layout][1] > 1:
        return TWO_BATCHES, number
    return ALONE.get(layout, "alone"), number


def compare(folder, names, numbers):
    """By layout and number, the verdict; and what was said."""
    every = {layout: run_all(folder, layout, numbers) for layout in names}
    wanted = {ALONE.get(layout, "alone"): {PLAIN} for layout in names}
    for layout in names:
        for n in numbers:
            # What is refused because of an axis need not be tried without it.
            if "_parallel_size" not in every[layout][n].get("refused", ""):
                other, number = reference(layout, n)
                wanted.setdefault(other, set()).add(number)
    every |= {layout: run_all(folder, layout, sorted(needed)) for layout, needed in wanted.items()}
    verdicts = {}
    for layout in names:
        single = every[ALONE.get(layout, "alone")][PLAIN].get("trained")
        for n in numbers:
            other, number = reference(layout, n)
            verdicts[layout, n] = verdict(ENTRIES[n], layout, every[layout][n], every[other].get(number), single)
    return verdicts, every


def reason(said):
    """The sentence of a refusal, on one line of a table."""
    return said.partition(": ")[2].split(". ")[0].replace("|", "/").replace("\n", " ")[:240]


GOOD = ("equal", "refused", "also on one process")


def label(number):
    """The cells of an entry's row that say which it is."""
    argument, value, _ = ENTRIES[number]
    shown = repr(value).replace("|", "/")
    return f"`{argument}`", f"`{shown if len(shown) <= 60 else shown[:57] + '...'}`"


def page(verdicts, every, names, numbers):
    lines = [
        "# Arguments in every layout",
        "",
        "Made by `python -m tests.distributed.matrix --write`: a tiny model is trained for three steps with each",
        "argument, in every layout and on one process, and evaluated. *Equal*: losses, gradient norms and the",
        "evaluation are within 1e-5 (in half precision: losses no further from one process than that is from float32).",
        "*Refused*: an error before the first step, with the sentence below the table. *Also on one process*: the tiny",
        "run is refused, or fails, there too. `tp2`: `tensor_parallel_size=2`; `sp2`: `sequence_parallel_size=2`;",
        '`ep2`: `expert_parallel_size=2`; `tp2 x shard2`: four processes, with `sharding="stage3"`.',
        "",
        "| argument | value | " + " | ".join(names) + " |",
        "|---|---|" + "---|" * len(names),
    ]
    refusals = {}
    for n in numbers:
        cells = []
        for layout in names:
            cell = verdicts[layout, n]
            if cell == "refused":
                refusals.setdefault((ENTRIES[n][0], reason(every[layout][n]["refused"])), {})[layout] = None
            cells.append(cell if cell in GOOD else "**different**")
        lines.append("| " + " | ".join((*label(n), *cells)) + " |")
    lines += ["", "## What is refused", "", "| argument | layouts | why |", "|---|---|---|"]
    lines += [f"| `{argument}` | {', '.join(where)} | {why} |" for (argument, why), where in refusals.items()]
    lines += ["", "## What depends on the batches", ""]
    lines += ["With two batches at a time these are compared with data parallelism over two processes.", ""]
    lines += ["| argument | why |", "|---|---|"]
    lines += [f"| `{argument}` | {why} |" for argument, why in BY_BATCHES.items()]
    lines += ["", "## Not in the table", "", "| argument | why |", "|---|---|"]
    lines += [f"| `{argument}` | {why} |" for argument, why in ELSEWHERE.items()]
    return "\n".join(lines) + "\n"


def cells(text):
    """The cells of the first table of a page, by the label of the row."""
    rows = [line.strip("| ").split(" | ") for line in text.partition("## ")[0].splitlines() if line.startswith("| `")]
    return {(argument, value): found for argument, value, *found in rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", nargs="+", choices=DIVIDED, default=DIVIDED)
    parser.add_argument("--arguments", nargs="+", default=[])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--times", action="store_true", help="show what took how long")
    asked = parser.parse_args()
    numbers = [n for n, entry in enumerate(ENTRIES) if not asked.arguments or entry[0] in asked.arguments]
    with tempfile.TemporaryDirectory() as folder:
        verdicts, every = compare(folder, asked.layouts, numbers)
    wrong = 0
    for (layout, n), said in verdicts.items():
        if said[:1].isupper():
            wrong += 1
            print(f"{layout}: {ENTRIES[n][0]}={ENTRIES[n][1]!r}: {said}", flush=True)
    kinds = {}
    for said in verdicts.values():
        kinds[said.partition(" ")[0]] = kinds.get(said.partition(" ")[0], 0) + 1
    print(kinds)
    if asked.times:
        for layout, found in every.items():
            slowest = sorted(found, key=lambda n: -found[n].get("seconds", 0))[:10]
            print(
                layout,
                sum(each.get("seconds", 0) for each in found.values()),
                "s;",
                *(f"{ENTRIES[n][0]} {found[n].get('seconds')}" for n in slowest),
            )
    if asked.write:
        PAGE.write_text(page(verdicts, every, asked.layouts, numbers))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
