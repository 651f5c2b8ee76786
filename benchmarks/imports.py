"""Time of imports, each in fresh interpreters, and the frameworks that they bring along."""

import argparse
import statistics

from common import fresh, installed, print_table

CODE = """
import json, sys, time
{before}
started, cpu, known = time.perf_counter(), time.process_time(), len(sys.modules)
{statement}
ended = time.perf_counter(), time.process_time()
heavy = [name for name in ("torch", "paddle", "mindspore", "transformers") if name in sys.modules]
new = len(sys.modules) - known
print(json.dumps({{"wall": ended[0] - started, "cpu": ended[1] - cpu, "new": new, "heavy": heavy}}))
"""

# title, what is imported before the clock starts, what is timed, packages needed
CASES = [
    ("import oneloop", "", "import oneloop", ("oneloop",)),
    ("import torch", "", "import torch", ("torch",)),
    ("oneloop: Trainer, TrainingArguments, after torch", "import torch", "from oneloop import {}", ("oneloop",)),
    ("the same without torch", "", "from oneloop import {}", ("oneloop",)),
    ("import transformers", "", "import transformers", ("transformers",)),
    (
        "transformers: Trainer, TrainingArguments, after torch",
        "import torch",
        "from transformers import {}",
        ("transformers", "accelerate"),
    ),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run: each import once")
    parser.add_argument("--repeats", type=int, default=9)
    given = parser.parse_args()
    there = [case for case in CASES if installed(*case[3])]
    runs: dict[str, list[dict]] = {title: [] for title, *_ in there}
    for _ in range(1 if given.quick else given.repeats):
        for title, before, statement, _ in there:
            statement = statement.format("Trainer, TrainingArguments")
            runs[title].append(fresh(CODE.format(before=before, statement=statement)))
    rows = []
    for title, *_ in CASES:
        if title not in runs:
            rows.append([title, "not installed", "", "", "", ""])
            continue
        wall = [run["wall"] for run in runs[title]]
        cpu = statistics.median(run["cpu"] for run in runs[title])
        last = runs[title][-1]
        figures = [f"{statistics.median(wall):.3f}", f"{min(wall):.3f}", f"{cpu:.3f}", str(last["new"])]
        rows.append([title, *figures, ", ".join(last["heavy"]) or "none"])
    print_table("Imports", ["", "seconds, median", "best", "CPU", "new modules", "frameworks in memory after it"], rows)


if __name__ == "__main__":
    main()
