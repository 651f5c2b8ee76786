"""Time and memory of an evaluation that gathers much: hundreds of megabytes of logits.

Every run has an interpreter of its own, and the variants take turns. The model costs nearly nothing, so what is seen is
the gathering: oneloop against a loop that appends every batch to a list, the same with one np.concatenate at the end,
and transformers' Trainer.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

from common import fresh, growth, installed, print_table, silence

BATCH, LENGTH, CLASSES = 8, 128, 1024  # 4 MiB of float32 a batch
MIB = 2**20


def model_and_data(megabytes: int) -> tuple[Any, list[dict[str, Any]]]:
    """A model whose logits are the product of its inputs with a row of weights."""
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(CLASSES))

        def forward(self, x: Any, labels: Any = None) -> dict[str, Any]:
            logits = x[:, :, None] * self.weight
            return {"loss": x.mean(), "logits": logits}

    torch.manual_seed(0)
    count = megabytes * MIB // (4 * LENGTH * CLASSES)
    return Model(), [{"x": row, "labels": i % 2} for i, row in enumerate(torch.randn(count, LENGTH))]


def by_hand(model: Any, data: list[Any], folder: str, whole: bool) -> Callable[[], Any]:
    import numpy as np
    import torch

    def run() -> Any:
        loader = torch.utils.data.DataLoader(data, batch_size=BATCH)
        logits, labels = [], []
        model.eval()
        with torch.no_grad():
            for batch in loader:
                logits.append(model(**batch)["logits"].numpy())
                labels.append(batch["labels"].numpy())
        return (np.concatenate(logits), np.concatenate(labels)) if whole else (logits, labels)

    return run


def by_trainer(package: str, model: Any, data: list[Any], folder: str, evaluate: bool) -> Callable[[], Any]:
    module = __import__(package, fromlist=["Trainer"])
    args = module.TrainingArguments(
        output_dir=folder, per_device_eval_batch_size=BATCH, report_to="none", use_cpu=True, disable_tqdm=True
    )
    seen = []

    def metrics(prediction: Any) -> dict[str, float]:
        seen.append(prediction.predictions.shape)
        return {"rows": float(len(prediction.predictions))}

    trainer = module.Trainer(model=model, args=args, eval_dataset=data, compute_metrics=metrics)
    return trainer.evaluate if evaluate else lambda: trainer.predict(data)


VARIANTS: dict[str, tuple[Callable[..., Callable[[], Any]], tuple[str, ...]]] = {
    "append to a list": (lambda *a: by_hand(*a, whole=False), ()),
    "and concatenate once": (lambda *a: by_hand(*a, whole=True), ()),
    "oneloop predict": (lambda *a: by_trainer("oneloop", *a, evaluate=False), ("oneloop",)),
    "oneloop evaluate": (lambda *a: by_trainer("oneloop", *a, evaluate=True), ("oneloop",)),
    "transformers predict": (
        lambda *a: by_trainer("transformers", *a, evaluate=False),
        ("transformers", "accelerate"),
    ),
}


def one_run(name: str, megabytes: int) -> None:
    """In the new interpreter: warm up on a small set, then measure."""
    with tempfile.TemporaryDirectory() as folder, silence():
        model, data = model_and_data(megabytes)
        make = VARIANTS[name][0]
        make(model, data[: 2 * BATCH], folder)()
        run = make(model, data, folder)
        started = time.perf_counter(), time.process_time()
        result, peak = growth(run)
        del result  # within the time: evaluate() has let go of its logits by then, and the others should have too
        ended = time.perf_counter(), time.process_time()
    print(json.dumps({"seconds": ended[0] - started[0], "cpu": ended[1] - started[1], "peak": peak}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smoke run: 16 MB once, figures mean nothing")
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 256, 512], help="MB of logits")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    given = parser.parse_args()
    sizes, repeats = ([16], 1) if given.quick else (given.sizes, given.repeats)
    code = "import sys, evaluation; evaluation.one_run(sys.argv[1], int(sys.argv[2]))"
    there = [name for name, (_, needs) in VARIANTS.items() if name in given.variants and installed(*needs)]
    for size in sizes:
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in there}
        for _ in range(repeats):
            for name in there:
                runs[name].append(fresh(code, name, str(size), threads=1))
        rows = [figures(name, runs[name], runs[there[0]], size) for name in there]
        rows += [[name, "not installed", "", "", "", ""] for name in given.variants if name not in there]
        header = ["", "seconds", "to the list", "CPU seconds", "to the list", "peak to logits"]
        print_table(f"{size} MB of logits, best of {repeats}", header, rows)


def figures(name: str, runs: list[dict[str, float]], base: list[dict[str, float]], size: int) -> list[str]:
    """The best of its runs stands for each variant: a busy machine only ever adds time."""
    row = [name]
    for clock in ("seconds", "cpu"):
        best = min(run[clock] for run in runs)
        row += [f"{best:.3f}", f"{best / min(run[clock] for run in base):.2f}x"]
    return [*row, f"{statistics.median(run['peak'] for run in runs) / (size * MIB):.2f}x"]


if __name__ == "__main__":
    main()
