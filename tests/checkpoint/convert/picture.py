"""Draws docs/crossing.png: one run on each framework, and runs that begin on one and go on on another.

OMP_NUM_THREADS=1 python -m tests.checkpoint.convert.picture
"""

import itertools
import tempfile
from pathlib import Path

import numpy as np

from tests.backends.support import names
from tests.checkpoint.convert.test_between_frameworks import losses, run

PICTURE = Path(__file__).resolve().parents[3] / "docs" / "crossing.png"
TITLES = {"torch": "PyTorch", "paddle": "PaddlePaddle", "mindspore": "MindSpore"}
COLOURS = {"torch": "#c2410c", "paddle": "#1d4ed8", "mindspore": "#15803d"}
HALF = 50


def main():
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pairs = list(itertools.permutations(names(), 2))
    figure, axes = pyplot.subplots(2, len(pairs) // 2, figsize=(13, 6), sharex=True, sharey=True, layout="constrained")
    steps = np.arange(1, 2 * HALF + 1)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        whole = {name: losses(run(name, folder / name, folder)) for name in names()}
        for axis, (first, second) in zip(axes.flat, pairs):
            middle = folder / first / f"checkpoint-{HALF}"
            joined = losses(run(second, folder / f"{first}-{second}", folder, resume=str(middle)))
            away = np.abs(joined - whole[first]).max()
            axis.plot(steps, whole[first], color="#d4d4d4", linewidth=5, label=f"{TITLES[first]}, unbroken")
            axis.plot(steps[:HALF], joined[:HALF], color=COLOURS[first], label=f"first half: {TITLES[first]}")
            axis.plot(steps[HALF:], joined[HALF:], color=COLOURS[second], label=f"second half: {TITLES[second]}")
            axis.set_title(f"largest difference {away:.1e}", fontsize=10)
            axis.legend(fontsize=8, frameon=False, loc="upper right")
            print(f"{first} to {second}: largest difference to the unbroken run {away:.2e}")
    figure.supxlabel("step")
    figure.supylabel("loss")
    figure.savefig(PICTURE, dpi=110)


if __name__ == "__main__":
    main()
