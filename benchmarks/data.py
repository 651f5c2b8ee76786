"""Useful tokens a second on text of uneven lengths: packing, padding and grouping by length; and what the loaders cost.

    python benchmarks/data.py [--quick] [--text FILE] [--rounds 30] [--block 8] [--only throughput loaders]

The text is one document a line, by default the docstrings of Python's standard library. Documents longer than a row are
cut beforehand, so that all variants have the same ones. TRL's packing is that of its functions (pack_dataset and its
collator) under transformers' Trainer, without what its SFTTrainer logs besides. Variants take turns in one process, as
in step.py. Useful tokens are those that are not padding.
"""

import argparse
import ast
import os
import random
import re
import statistics
import sysconfig
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import numpy as np
import torch
from common import installed, print_table, silence
from models import MODELS
from step import InThread

WIDTH, ROWS, WORDS, PAD, END = 256, 8, 4000, 0, 1
Documents = list[dict[str, Any]]


# -- the text


def docstrings() -> list[str]:
    """Those of the modules, classes and functions of Python's standard library."""
    found = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        found += [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds)]
    return [text for text in found if text]


def documents_of(texts: list[str]) -> Documents:
    """Token ids: words, or characters where a language is written without spaces; each ends with END."""
    words = [re.findall(r"[A-Za-z_]+|\d|\S", text) for text in texts]
    known = Counter(word for each in words for word in each).most_common(WORDS - 3)
    ids = {word: number for number, (word, _) in enumerate(known, 3)}
    whole = [[ids.get(word, 2) for word in each] + [END] for each in words if each]
    pieces = [each[start : start + WIDTH] for each in whole for start in range(0, len(each), WIDTH)]
    random.Random(0).shuffle(pieces)
    return [{"input_ids": piece} for piece in pieces if len(piece) > 1]


# -- the variants


def model_with(tick: Callable[[int], None]) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    class Timed(LlamaForCausalLM):
        def forward(self, input_ids=None, labels=None, attention_mask=None, position_ids=None, **kwargs) -> Any:
            tick(int((input_ids != PAD).sum()))
            return super().forward(
                input_ids=input_ids, labels=labels, attention_mask=attention_mask, position_ids=position_ids, **kwargs
            )

    torch.manual_seed(0)
    shape = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 384}
    return Timed(LlamaConfig(vocab_size=WORDS, max_position_embeddings=WIDTH * ROWS, pad_token_id=PAD, **shape))


def padded(samples: Documents) -> dict[str, torch.Tensor]:
    """Dynamic padding: to the longest of the batch."""
    rows = [torch.as_tensor(sample["input_ids"]) for sample in samples]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    mask = ids != PAD
    return {"input_ids": ids, "attention_mask": mask.long(), "labels": ids.masked_fill(~mask, -100)}


def trained(package: str, model: Any, data: Any, steps: int, folder: str, collate: Any = None, **given: Any) -> None:
    module = __import__(package, fromlist=["Trainer"])
    args = module.TrainingArguments(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=ROWS,
        learning_rate=1e-4,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        **given,
    )
    module.Trainer(model=model, args=args, train_dataset=data, data_collator=collate).train()


def by_trl(strategy: str) -> Callable[..., None]:
    def train(model: Any, documents: Documents, steps: int, folder: str) -> None:
        from datasets import Dataset
        from trl import pack_dataset
        from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

        data = pack_dataset(Dataset.from_list(documents), WIDTH, strategy)
        collate = DataCollatorForLanguageModeling(pad_token_id=PAD, padding_free=strategy != "wrapped")
        trained("transformers", model, data, steps, folder, collate, remove_unused_columns=False)

    return train


def padding(package: str, **given: Any) -> Callable[..., None]:
    return lambda model, documents, steps, folder: trained(package, model, documents, steps, folder, padded, **given)


def packing(how: str) -> Callable[..., None]:
    given = {"packing": how, "max_length": WIDTH}
    return lambda model, documents, steps, folder: trained("oneloop", model, documents, steps, folder, **given)


BASE = "transformers, padding"
HF, TRL = ("transformers", "accelerate"), ("transformers", "accelerate", "trl", "datasets")
VARIANTS: dict[str, tuple[Callable[..., None], tuple[str, ...]]] = {
    BASE: (padding("transformers"), HF),
    "transformers, group_by_length": (padding("transformers", train_sampling_strategy="group_by_length"), HF),
    "TRL, wrapped (mixes documents)": (by_trl("wrapped"), TRL),
    "TRL, bfd": (by_trl("bfd"), TRL),
    "oneloop, padding": (padding("oneloop"), ("transformers",)),
    "oneloop, group_by_length": (padding("oneloop", train_sampling_strategy="group_by_length"), ("transformers",)),
    "oneloop, end_to_end": (packing("end_to_end"), ("transformers",)),
    "oneloop, best_fit": (packing("best_fit"), ("transformers",)),
    "oneloop, wrapped (mixes documents)": (packing("wrapped"), ("transformers",)),
}


class Counting(InThread):
    """Also counts the useful tokens of each block of steps."""

    def __init__(self, block: int, warmup: int) -> None:
        super().__init__(block, warmup)
        self.counts: list[int] = []
        self.useful: list[int] = []

    def step(self, tokens: int) -> None:
        ended = len(self.blocks)
        self.counts.append(tokens)
        last = self.counts[-1 - self.block : -1]
        super().tick()
        if len(self.blocks) > ended:
            self.useful.append(sum(last))

    def rates(self) -> list[float]:
        return [tokens / sum(block) for tokens, block in zip(self.useful, self.blocks)]


def throughput(documents: Documents, asked: list[str], rounds: int, block: int, warmup: int) -> None:
    names = [name for name in asked if installed(*VARIANTS[name][1])]
    steps = warmup + rounds * block + 1
    turns = {name: Counting(block, warmup) for name in names}
    with tempfile.TemporaryDirectory() as folder, silence():
        for number, (name, turn) in enumerate(turns.items()):
            given = (model_with(turn.step), documents, steps, os.path.join(folder, str(number)))
            train = VARIANTS[name][0]
            threading.Thread(target=turn.run, args=(lambda t=train, g=given: t(*g),), daemon=True).start()
            turn.give(name)
        for _ in range(rounds):
            for name in random.sample(names, len(names)):
                turns[name].give(name)
    base = turns[BASE]
    rows = []
    for name, turn in turns.items():
        ratios = sorted(ours / theirs for ours, theirs in zip(turn.rates(), base.rates()))
        quarter = len(ratios) // 4
        per_cpu = (sum(turn.useful) / turn.cpu) / (sum(base.useful) / base.cpu)
        rows.append(
            [
                name,
                f"{statistics.median(turn.rates()):.0f}",
                f"{statistics.median(ratios):.2f}x",
                f"{ratios[quarter]:.2f} to {ratios[-1 - quarter]:.2f}",
                f"{per_cpu:.2f}x",
            ]
        )
    rows += [[name, "not installed", "", "", ""] for name in asked if name not in names]
    lengths = [len(document["input_ids"]) for document in documents]
    print_table(
        f"Llama, 2 layers of 128, {ROWS} rows of up to {WIDTH} tokens, {len(documents)} documents of "
        f"{statistics.mean(lengths):.0f} tokens on average, {statistics.median(lengths):.0f} in the middle: "
        f"{rounds} rounds of {block} steps",
        ["", "useful tokens/s", f"to {BASE}", "middle half", "by CPU time"],
        rows,
    )


# -- what the loaders cost


def loaders(documents: Documents, rounds: int, batches: int) -> None:
    """CPU time of making a batch, beside that of a training step of two models."""
    from oneloop import Mixture, Trainer, TrainingArguments

    half = len(documents) // 2
    mixture = Mixture({"a": documents[:half], "b": documents[half:]}, [0.7, 0.3], stop=10**6)
    bert = MODELS["bert"]()
    parts = bert.samples[:2000], bert.samples[2000:]
    packed = {"packing": True, "max_length": WIDTH}
    cases: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "Llama, padding": (documents, padded, {}),
        "Llama, end_to_end": (documents, None, packed),
        "Llama, best_fit": (documents, None, packed | {"packing": "best_fit"}),
        "Llama, end_to_end, mixture": (mixture, None, packed),
        "BERT": (bert.samples, None, {}),
        "BERT, mixture": (Mixture(parts, [0.7, 0.3], stop=10**6), None, {}),
        # Rows as long as BERT's, for a model that can be packed, beside a step of BERT.
        "BERT's rows, end_to_end, mixture": (mixture, None, packed | {"max_length": 64}),
    }
    times: dict[str, list[float]] = {name: [] for name in cases}
    with tempfile.TemporaryDirectory() as folder, silence():
        trainers, made = {}, {}
        for name, (data, collate, given) in cases.items():
            model = bert.make(lambda: None) if data is bert.samples or name == "BERT, mixture" else model_with(int)
            args = TrainingArguments(
                folder, per_device_train_batch_size=ROWS, max_steps=10**6, report_to="none", use_cpu=True, **given
            )
            trainers[name] = Trainer(model, args, train_dataset=data, data_collator=collate)
            made[name] = iter(())
        for _ in range(rounds):
            for name in random.sample(list(cases), len(cases)):
                times[name].append(_time_of_batches(trainers[name], made, name, batches))
        steps = {name: [_time_of_step(trainers[name]) for _ in range(rounds)] for name in ("Llama, end_to_end", "BERT")}
    rows = []
    for name, each in times.items():
        step = statistics.median(steps["BERT" if name.startswith("BERT") else "Llama, end_to_end"])
        cost = statistics.median(each)
        rows.append([name, f"{cost * 1e6:.0f}", f"{step * 1e6:.0f}", f"{100 * cost / step:.2f} %"])
    print_table(
        f"Making a batch of {ROWS} rows, and a training step, in CPU time: {rounds} rounds of {batches} batches",
        ["", "µs a batch", "µs a step", "share"],
        rows,
    )


def _time_of_batches(trainer: Any, made: dict[str, Any], name: str, batches: int) -> float:
    started = time.thread_time()
    for _ in range(batches):
        if next(made[name], None) is None:
            made[name] = iter(trainer.get_train_dataloader())
            started = time.thread_time()  # a new epoch: what is done once is left out
            next(made[name])
            started = time.thread_time()
    return (time.thread_time() - started) / batches


def _time_of_step(trainer: Any) -> float:
    """Forward, backward and AdamW of one batch."""
    batch = next(iter(trainer.get_train_dataloader()))
    optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=1e-4, fused=True)
    trainer.model.train()
    times = []
    for _ in range(3):
        started = time.thread_time()
        trainer.model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.thread_time() - started)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smoke run: few steps, figures mean nothing")
    parser.add_argument("--text", type=Path, help="a file with one document a line (default: docstrings of Python)")
    parser.add_argument("--rounds", type=int, default=30, help="blocks of each variant")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS)[1:], help="default: all that are installed")
    parser.add_argument("--block", type=int, default=8, help="steps in a block")
    parser.add_argument("--only", nargs="+", choices=["throughput", "loaders"], default=["throughput", "loaders"])
    given = parser.parse_args()
    torch.set_num_threads(1)
    np.random.seed(0)
    texts = docstrings() if given.text is None else given.text.read_text(encoding="utf-8").splitlines()
    documents = documents_of(texts)
    if given.quick:
        documents = documents[:400]
    if "throughput" in given.only:
        asked = [name for name in VARIANTS if name == BASE or not given.variants or name in given.variants]
        throughput(documents, asked, *((2, 2, 1) if given.quick else (given.rounds, given.block, given.block)))
    if "loaders" in given.only:
        loaders(documents, *((2, 3) if given.quick else (given.rounds, 50)))


if __name__ == "__main__":
    main()
