"""Peak memory of training a model of 40 million parameters: oneloop, transformers and the loop of step.py.

Every run has an interpreter of its own. What counts is how far the peak lies above what was held with the model and the
data made and the packages imported, so it holds gradients, the optimizer's state, activations and the trainer's own.
"""

import argparse
import json
import statistics
import tempfile

from common import fresh, growth, installed, print_table, silence

SIZES = (1024, 4096, 4096, 4096, 512)
VARIANTS = ("hand-written", "oneloop", "transformers", "lightning")


def one_run(name: str, steps: int, quick: bool) -> None:
    """In the new interpreter: a few steps of a tiny model, so that everything is imported, then the measurement."""
    import step
    import torch
    from models import Case, Mlp

    def case(sizes: tuple[int, ...]) -> Case:
        samples = [{"x": row, "labels": i % 2} for i, row in enumerate(torch.randn(64, sizes[0]))]
        return Case("", lambda tick: Mlp(tick, sizes), samples, batch=8, rounds=0, block=0)

    def nothing() -> None:
        pass

    train = step.VARIANTS[name][0]
    with tempfile.TemporaryDirectory() as folder, silence():
        small = case((32, 64, 2))
        train(small, small.make(nothing), 3, folder)
        large = case((64, 128, 32) if quick else SIZES)
        model = large.make(nothing)
        weights = 4 * sum(p.numel() for p in model.parameters())
        _, peak = growth(lambda: train(large, model, steps, folder))
    print(json.dumps({"peak": peak, "weights": weights}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smoke run on a tiny model, figures mean nothing")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    given = parser.parse_args()
    needs = {"hand-written": (), "transformers": ("transformers", "accelerate")}
    there = [name for name in VARIANTS if installed(*needs.get(name, (name,)))]
    code = "import sys, memory; memory.one_run(sys.argv[1], int(sys.argv[2]), sys.argv[3] == 'quick')"
    runs: dict[str, list[dict]] = {name: [] for name in there}
    for _ in range(1 if given.quick else given.repeats):
        for name in there:
            runs[name].append(fresh(code, name, str(given.steps), "quick" if given.quick else "full", threads=1))
    peaks = {name: statistics.median(run["peak"] for run in runs[name]) for name in there}
    weights = runs[there[0]][0]["weights"]
    rows = []
    for name in there:
        ratio = f"{peaks[name] / peaks['hand-written']:.3f}x"
        rows.append([name, f"{peaks[name] / 2**20:.0f}", ratio, f"{peaks[name] / weights:.2f}x"])
    rows += [[name, "not installed", "", ""] for name in VARIANTS if name not in there]
    title = f"Training {weights / 4e6:.0f} million parameters ({weights / 2**20:.0f} MiB of weights) with AdamW"
    print_table(title, ["", "peak, MiB", "to hand-written", "to the weights"], rows)


if __name__ == "__main__":
    main()
