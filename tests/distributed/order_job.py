"""Runs in transformers' order, by both libraries in the same processes: `order_job.py FOLDER CASE [CASE ...]`,
under torchrun.

Writes {case: {library: losses, weights and samples}} for each process to rankN.json.
"""

import json
import sys
from pathlib import Path

import torch
import transformers

import oneloop
from oneloop.distributed.world import world
from tests.backends.order_runs import Run, Seen, mlp, texts
from tests.backends.support import rows
from tests.backends.tiny_bert import classifier as bert


class Stream(torch.utils.data.IterableDataset):
    indices = ()

    def __iter__(self):
        return iter(rows(21))  # of the last 5, one process has 3 and the other 2 and the first of all


CASES = {
    "filled": (lambda: mlp(0.3), rows(43), {}),
    "fewer than a batch of all": (mlp, rows(5), {"max_steps": 3}),
    "dropped": (lambda: mlp(0.3), rows(43), {"dataloader_drop_last": True, "gradient_accumulation_steps": 2}),
    "lengths": (bert, texts(43, 14), {"train_sampling_strategy": "group_by_length"}),
    # After the first epoch transformers' processes draw different orders, as dropout has drawn different numbers.
    "lengths, dropout": (
        lambda: bert(0.1),
        texts(43, 14),
        {"train_sampling_strategy": "group_by_length", "max_steps": 6},
    ),
    "stream": (lambda: mlp(0.3), Stream(), {"max_steps": 8}),
    "evaluated": (lambda: mlp(0.3), rows(43), {"eval_strategy": "steps", "eval_steps": 4}),
}


def told(run, data, name=""):
    weights = {name: array.tobytes().hex() for name, array in run.weights.items()}
    samples = data.indices[-24:] if "lengths" in name else data.indices  # without those that were measured
    return {"losses": run.losses, "weights": weights, "samples": samples}


def compare(name, folder):
    """The same run by both libraries."""
    make, samples, given = CASES[name]
    found = {}
    for library in (oneloop, transformers):
        data = Seen(samples) if isinstance(samples, list) else samples
        run = Run(library, folder / f"{name}-{library.__name__}", make, data, **{"max_steps": 20} | given)
        found[library.__name__] = told(run, data, name)
    return found


def resume(folder):
    """Both from a checkpoint of transformers in the middle of an epoch; oneloop from its own as well."""
    make, samples = (lambda: mlp(0.3)), rows(43)
    given = {"max_steps": 14, "save_strategy": "steps", "save_steps": 9}
    for writer in (oneloop, transformers):
        Run(writer, folder / f"of-{writer.__name__}", make, samples, **given)
    given["save_strategy"] = "no"
    found = {}
    for name, writer, reader in (
        ("transformers", transformers, transformers),
        ("oneloop", transformers, oneloop),
        ("own", oneloop, oneloop),
    ):
        data, path = Seen(samples), str(folder / f"of-{writer.__name__}" / "checkpoint-9")
        found[name] = told(Run(reader, folder / "resumed", make, data, resume=path, **given), data)
    return found


def main(folder, *names):
    results = {name: resume(folder) if name == "resumed" else compare(name, folder) for name in names}
    (folder / f"rank{world().rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
