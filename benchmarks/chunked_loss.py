"""The loss without whole logits (chunked_loss) beside whole logits, and beside torch's F.linear_cross_entropy.

Time: variants take turns in one process, and what counts is the ratio of processor time within a turn. Memory: every
variant has an interpreter of its own, and what counts is how far the peak of a few steps of the Trainer lies above what
was held before, beside what `oneloop plan` says.
"""

import argparse
import gc
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

from common import fresh, growth, print_table, silence

# Rows, tokens, words, width: of a head alone, and of a language model.
HEADS = ((1, 1024, 32000, 512), (1, 2048, 64000, 256))
LABELLED = (1.0, 0.15)


def timed(variants: dict[str, Callable[[], Any]], turns: int) -> dict[str, float]:
    """The median of each variant's share of the first one's time in its turn."""
    shares: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(turns + 1):
        taken = {}
        for name, run in variants.items():
            started = time.process_time()
            run()
            taken[name] = time.process_time() - started
        if turn:  # the first one allocates
            first = taken[next(iter(taken))]
            for name in taken:
                shares[name].append(taken[name] / first)
    return {name: statistics.median(values) for name, values in shares.items()}


def head_variants(layer: Any, hidden: Any, labels: Any) -> dict[str, Callable[[], Any]]:
    import torch
    from torch.nn import functional as F

    from oneloop.backends._common.chunked_loss import Between, chunk_sizes
    from oneloop.backends.torch.cross_entropy import Heads, mean_loss

    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=chunk_sizes(len(labels), layer.out_features)[0])

    def chunked() -> None:
        index = (labels != -100).nonzero().squeeze(1)
        head = Heads(layer, layer.forward, Between())
        mean_loss(head, hidden.index_select(0, index), labels[index], 0.0)[0].backward()

    def of_torch() -> None:
        F.linear_cross_entropy(hidden, layer.weight, labels, ignore_index=-100, options=options).backward()

    def whole() -> None:
        F.cross_entropy(layer(hidden), labels).backward()

    return {"whole logits": whole, "chunked": chunked, "torch": of_torch}


def heads(turns: int, quick: bool) -> None:
    import torch

    rows = []
    for _, tokens, words, width in ((1, 64, 100, 8),) if quick else HEADS:
        for share in LABELLED:
            torch.manual_seed(0)
            labels = torch.randint(words, (tokens,)).masked_fill(torch.rand(tokens) >= share, -100)
            layer, hidden = torch.nn.Linear(width, words, bias=False), torch.randn(tokens, width, requires_grad=True)
            found = timed(head_variants(layer, hidden, labels), turns)
            rows.append([f"{tokens} x {words}, {share:.0%} labelled", *(f"{found[n]:.3f}x" for n in found)])
    print_table(
        "Forward and backward pass of a head", ["", "whole logits", "chunked_loss", "F.linear_cross_entropy"], rows
    )


def model_of(quick: bool) -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    words, width = (500, 32) if quick else (50000, 256)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=words, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=1024, tie_word_embeddings=True,
        )
    )  # fmt: skip


def data_of(model: Any, share: float, count: int, tokens: int) -> list[dict[str, Any]]:
    import numpy as np

    random = np.random.default_rng(0)
    ids = random.integers(3, model.config.vocab_size, (count, tokens))
    labels = np.where(random.random(ids.shape) < share, ids, -100)
    return [{"input_ids": i, "labels": own} for i, own in zip(ids, labels)]


def trainer_of(model: Any, chunked: bool | None, share: float, folder: str, steps: int, quick: bool) -> Any:
    from oneloop import Trainer, TrainingArguments

    args = TrainingArguments(
        folder, overwrite_output_dir=True, per_device_train_batch_size=4, max_steps=steps, optim="sgd",
        learning_rate=0.01, save_strategy="no", report_to="none", disable_tqdm=True, chunked_loss=chunked,
    )  # fmt: skip
    return Trainer(model, args, train_dataset=data_of(model, share, 4 * steps, 64 if quick else 512))


def steps(turns: int, quick: bool) -> None:
    """A whole step of the Trainer: each turn of a variant is a run of three steps."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for share in LABELLED:
            with silence():
                both = [trainer_of(model_of(quick), chunked, share, folder, 3, quick) for chunked in (False, True)]
                found = timed(dict(zip(("whole logits", "chunked"), (trainer.train for trainer in both))), turns)
            rows.append([f"{share:.0%} of the tokens labelled", *(f"{found[name]:.3f}x" for name in found)])
    print_table("Steps of the Trainer, with all that begins and ends a run", ["", "whole logits", "chunked_loss"], rows)


def one_peak(chunked: bool, quick: bool) -> None:
    """In a new interpreter: a tiny run, so that everything is imported, then the measurement and the plan."""
    from oneloop.plan.building import build_plan

    with tempfile.TemporaryDirectory() as folder, silence():
        trainer_of(model_of(True), chunked, 1.0, folder, 2, True).train()
        trainer = trainer_of(model_of(quick), chunked, 1.0, folder, 3, quick)
        planned = build_plan(trainer, largest=False).strategies[0]
        weights = sum(p.numel() * 4 for p in trainer.model.parameters())
        gc.collect()
        _, peak = growth(trainer.train)
    print(json.dumps({"peak": peak + weights, "planned": planned.peak}))


def peaks(quick: bool) -> None:
    os.environ |= {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
    code = "import sys, chunked_loss; chunked_loss.one_peak(sys.argv[1] == 'True', sys.argv[2] == 'quick')"
    rows = []
    for chunked in (False, True):
        found = fresh(code, str(chunked), "quick" if quick else "full", threads=1)
        off = f"{found['planned'] / found['peak'] - 1:+.1%}"
        rows.append([
            "chunked_loss" if chunked else "whole logits",
            *(f"{found[name] / 2**20:.0f}" for name in ("peak", "planned")),
            off,
        ])  # fmt: skip
    print_table("Peak of a step, MiB, with the weights", ["", "measured", "oneloop plan", "off by"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smoke run, figures mean nothing")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", choices=("heads", "steps", "peaks"))
    given = parser.parse_args()
    turns = 1 if given.quick else given.turns
    if given.only in (None, "heads"):
        heads(turns, given.quick)
    if given.only in (None, "steps"):
        steps(turns, given.quick)
    if given.only in (None, "peaks"):
        peaks(given.quick)


if __name__ == "__main__":
    main()
