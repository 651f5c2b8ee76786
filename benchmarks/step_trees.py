"""Time of a training step under oneloop in several source trees, such as two commits, side by side on PyTorch.

    git worktree add ../before COMMIT
    python benchmarks/step_trees.py before=../before --model norms --nonfinite skip

Each tree runs in a process of its own, and they take turns (see turns.py). The first one named is the base of the
ratios; this tree is always there, as "now".
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

from common import HERE
from turns import measure_children, report, run_child

MODELS = ("mlp", "norms")  # those that need oneloop and torch alone


def train(model: str, nonfinite: str) -> Callable[[Callable[[], None], int, str], None]:
    import torch
    from models import MODELS
    from step import with_trainer

    def run(tick: Callable[[], None], steps: int, folder: str) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        case = MODELS[model]()
        with_trainer("oneloop", nonfinite=nonfinite)(case, case.make(tick), steps, folder)

    return run


def named_tree(text: str) -> tuple[str, Path]:
    name, _, folder = text.partition("=")
    if not (Path(folder) / "oneloop").is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FOLDER of a source tree")
    return name, Path(folder).resolve()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trees", nargs="*", type=named_tree, metavar="NAME=FOLDER")
    parser.add_argument("--model", choices=[*MODELS, "all"], default="all")
    parser.add_argument("--nonfinite", choices=["stop", "skip", "ignore"], default="stop")
    parser.add_argument("--quick", action="store_true", help="a smoke run: few steps, figures mean nothing")
    parser.add_argument("--rounds", type=int, help="blocks of each tree (default: 60)")
    parser.add_argument("--block", type=int, help="steps of a block (default: 100)")
    for name in ("child", "warmup", "steps"):
        parser.add_argument(f"--{name}", type=str if name == "child" else int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        run_child(given, train(given.model, given.nonfinite))
        return
    trees = dict(given.trees) | {"now": HERE.parent}
    rounds, block = given.rounds or (2 if given.quick else 60), given.block or (10 if given.quick else 100)
    for model in MODELS if given.model == "all" else [given.model]:
        turns = measure_children(
            "step_trees.py",
            model,
            dict.fromkeys(trees, sys.executable),
            rounds,
            block,
            2 * block,
            trees=trees,
            options=[f"--nonfinite={given.nonfinite}"],
        )
        report(f"{model}, nonfinite={given.nonfinite!r}", turns, [], base=next(iter(trees)))


if __name__ == "__main__":
    main()
