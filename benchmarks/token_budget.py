"""Batches by cost on texts of uneven lengths, without packing: useful tokens a second, and how equal the work is.

    python benchmarks/token_budget.py --text train.tsv [--quick] [--turns 8] [--steps 8]

The text is one document a line (of a table, its last column), by default the docstrings of Python's standard library.
A BERT classifier of characters or words is trained by each variant in turn, in one process; what counts is the ratio of
processor time within a turn. All variants have about as many samples in an update. Useful tokens are not padding.

The work of four processes is simulated: their micro-batches are computed one after the other. In an update all wait for
the slowest one, so what counts is its cost, and its processor time, beside the mean of the four.
"""

import argparse
import os
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import numpy as np
import torch
from common import installed, print_table, silence
from data import docstrings

from oneloop import TrainerCallback
from oneloop.data.cost_batches import CostBatches, CostLayout, CostOrder, padded_tokens
from oneloop.data.order import Order
from oneloop.data.rebalanced_batches import RebalancedBatches
from oneloop.data.update_batches import UpdateBatches

WIDTH, ROWS, BUDGET, WORDS, HIDDEN = 512, 32, 4096, 4000, 128


def samples_of(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Characters of languages written without spaces, else words."""
    split = [text.split() if text.isascii() else list(text) for text in texts]
    numbers = [[3 + zlib.crc32(word.encode()) % (WORDS - 3) for word in words[: WIDTH - 2]] for words in split if words]
    return [{"input_ids": [2, *each, 1], "labels": len(each) % 2} for each in numbers]


def padded(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Dynamic padding: to the longest of the batch."""
    rows = [torch.as_tensor(sample["input_ids"]) for sample in samples]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    labels = torch.tensor([sample["labels"] for sample in samples])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


def model() -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    shape = {"hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 4 * HIDDEN}
    return BertForSequenceClassification(BertConfig(vocab_size=WORDS, max_position_embeddings=WIDTH, **shape))


# -- useful tokens a second


class Clock(TrainerCallback):
    """Processor time from the first step to the last one, and the useful tokens meanwhile."""

    def __init__(self) -> None:
        self.tokens, self.samples, self.started, self.seconds = 0, 0, 0.0, 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.started = self.started or time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seconds = time.process_time() - self.started


def train(package: str, data: Any, seed: int, steps: int, folder: str, **given: Any) -> Clock:
    module = __import__(package, fromlist=["Trainer"])
    clock = Clock() if package == "oneloop" else type("Clock", (Clock, module.TrainerCallback), {})()

    class Counted(module.Trainer):  # type: ignore[name-defined, misc]
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            clock.tokens += int(inputs["attention_mask"].sum())
            clock.samples += len(inputs["labels"])
            return super().compute_loss(model, inputs, *args, **kwargs)

    given = {
        "per_device_train_batch_size": ROWS,
        "max_steps": steps,
        "save_strategy": "no",
        "report_to": "none",
    } | given
    args = module.TrainingArguments(output_dir=folder, use_cpu=True, seed=seed, disable_tqdm=True, **given)
    Counted(model=model(), args=args, train_dataset=data, data_collator=padded, callbacks=[clock]).train()
    return clock


BASE = "oneloop, random"
VARIANTS: dict[str, Callable[..., Clock]] = {
    BASE: partial(train, "oneloop"),
    "transformers, random": partial(train, "transformers"),
    "transformers, group_by_length": partial(train, "transformers", train_sampling_strategy="group_by_length"),
    "oneloop, group_by_length": partial(train, "oneloop", train_sampling_strategy="group_by_length"),
    "oneloop, max_tokens_per_batch": partial(train, "oneloop", max_tokens_per_batch=BUDGET),
}


def throughput(data: Any, turns: int, steps: int) -> None:
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in VARIANTS}
    names = [name for name in VARIANTS if name.startswith("oneloop") or installed("accelerate")]
    for turn in range(turns + 1):
        for name in names:
            with silence(), tempfile.TemporaryDirectory() as folder:
                clock = VARIANTS[name](data, turn, steps, folder)
            if turn:  # the first one allocates
                found[name].append((clock.tokens / clock.seconds, clock.samples / steps))
    rows = []
    for name in names:
        ratios = sorted(mine[0] / base[0] for mine, base in zip(found[name], found[BASE]))
        low, high = np.percentile(ratios, [25, 75])
        speed, samples = (statistics.median(each) for each in zip(*found[name]))
        rows.append(
            [name, f"{speed:.0f}", f"{samples:.0f}", f"{statistics.median(ratios):.2f}x", f"{low:.2f} to {high:.2f}"]
        )
    print_table("Useful tokens", ["", "per CPU second", "samples/update", f"to {BASE}", "middle half"], rows)


# -- the work of four processes


def with_attention(samples: int, longest: int) -> float:
    """What a micro-batch of the model above costs: attention needs as much as the layers at 3 times their width."""
    return samples * longest * (1 + longest / (3 * HIDDEN))


def samplers(name: str, cost: Any, lengths: np.ndarray, processes: int, accumulation: int) -> list[Any]:
    order: Any = partial(Order, len(lengths), 1)
    size = ROWS // accumulation
    if name == "max_tokens_per_batch":
        budget = BUDGET // accumulation * (1 if cost is padded_tokens else 1.3)
        layout = CostLayout(lengths, max(budget, cost(1, WIDTH)), processes * accumulation, cost)
        order = partial(CostOrder, layout, 1)
        return [CostBatches(order, 1, processes, r, accumulation=accumulation) for r in range(processes)]
    if name == "transformers' batch_rebalance":
        from transformers.trainer_pt_utils import BatchRebalanceSampler

        make: Any = partial(BatchRebalanceSampler, lengths.tolist(), size * processes * accumulation, processes)
        return [make(accumulation, rank=rank) for rank in range(processes)]
    if name == "batch_rebalance":
        make = partial(RebalancedBatches, lengths=lengths, cost=cost)
        return [make(order, size, processes, r, True, accumulation=accumulation) for r in range(processes)]
    make = partial(UpdateBatches, accumulation=accumulation)
    return [make(order, size, processes, r, True) for r in range(processes)]


def balance(data: Any, updates: int, processes: int = 4) -> None:
    lengths = np.array([len(sample["input_ids"]) for sample in data])
    network, rows = model(), []
    names = [("random", padded_tokens, "")]
    if installed("transformers", "accelerate"):
        names.append(("transformers' batch_rebalance", padded_tokens, ""))
    for name in ("batch_rebalance", "max_tokens_per_batch"):
        names += [(name, padded_tokens, ""), (name, with_attention, ", cost with attention")]

    def seconds(batch: list[int]) -> float:
        inputs = padded([data[i] for i in batch])
        taken = []
        for _ in range(2):  # the quicker one: another process's work is none of this one
            started = time.process_time()
            network(**inputs).loss.backward()
            taken.append(time.process_time() - started)
        return min(taken)

    for accumulation in (1, 4):
        for name, cost, how in names:
            of_all = [list(sampler) for sampler in samplers(name, cost, lengths, processes, accumulation)]
            costs = np.array([[cost(len(b), lengths[b].max()) for b in own] for own in of_all])
            costs = costs.reshape(processes, -1, accumulation).sum(2)
            seconds(of_all[0][0])
            times = np.zeros((processes, updates))
            for update in range(updates):
                for rank, own in enumerate(of_all):
                    batches = own[update * accumulation : (update + 1) * accumulation]
                    times[rank, update] = sum(map(seconds, batches))
            useful = lengths[[i for own in of_all for batch in own for i in batch]].sum()
            tokens = sum(len(b) * lengths[b].max() for own in of_all for b in own)
            rows.append(
                [
                    f"{name}{how}, {accumulation} accumulated",
                    f"{costs.max(0).sum() / costs.mean(0).sum():.3f}",
                    f"{np.percentile(costs.max(0) / costs.mean(0), 95):.3f}",
                    f"{times.max(0).sum() / times.mean(0).sum():.3f}" if updates else "-",
                    f"{useful / tokens:.3f}",
                ]
            )
    header = ["slowest of four processes / mean", "cost, whole epoch", "95 % of updates", f"time, {updates} updates"]
    print_table("Equal work", [*header, "useful / all tokens"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--updates", type=int, default=8, help="whose time is measured; 0: costs only")
    parser.add_argument("--only", nargs="+", default=["throughput", "balance"])
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    if given.quick:
        given.turns, given.steps, given.updates = 1, 2, 1
    torch.set_num_threads(1)
    if given.text is None:
        texts = [" ".join(text.split()) for text in docstrings()]
    else:
        texts = [line.rpartition("\t")[2] for line in given.text.read_text(encoding="utf-8").splitlines()[1:]]
    data = samples_of(texts)
    lengths = [len(sample["input_ids"]) for sample in data]
    print(f"{len(data)} texts of {statistics.mean(lengths):.0f} tokens on average, the longest of {max(lengths)}")
    if "throughput" in given.only:
        throughput(data, given.turns, given.steps)
    if "balance" in given.only:
        balance(data, given.updates)


if __name__ == "__main__":
    main()
