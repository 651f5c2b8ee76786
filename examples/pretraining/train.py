"""Pretrains a small GPT from scratch on a mixture of two sources, packed, and draws a picture of the run.

python train.py                              Python's standard library and Chinese reviews, about three minutes
python train.py --max_steps 2000             a longer run
python train.py --framework paddle           with PaddlePaddle (or mindspore) instead of PyTorch

A run that was interrupted goes on from its last checkpoint when the command is given again; --resume_from_checkpoint
false starts over. Every training argument of oneloop is an option too.
"""

import math
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import data
import numpy as np
from tokenizer import FILE, START, BytePairs

from oneloop import ArgumentParser, EvalPrediction, Mixture, Trainer, TrainingArguments, set_seed, write_report

PROMPTS = {"python": "import os\nimport sys\n\n\ndef ", "reviews": "这本书"}


@dataclass
class JobArguments:
    """What this job adds to the training arguments."""

    framework: Literal["torch", "paddle", "mindspore"] = field(
        default="torch", metadata={"help": "The framework to train with."}
    )
    vocabulary: int = field(default=2048, metadata={"help": "Tokens in the vocabulary."})
    width: int = field(default=128, metadata={"help": "The width of the model."})
    layers: int = field(default=2, metadata={"help": "The number of its layers."})
    reviews: float = field(default=0.25, metadata={"help": "The share of the tokens that are from the reviews."})
    bytes: int | None = field(default=None, metadata={"help": "Bytes of training text of each source; all by default."})
    baselines: bool = field(default=True, metadata={"help": "Also compute the n-gram model and the compressor."})


@dataclass
class Pretraining(TrainingArguments):
    """Training arguments with the defaults of this job."""

    output_dir: str = "outputs/pretraining"
    resume_from_checkpoint: str | None = "true"
    max_steps: int = 1000
    per_device_train_batch_size: int = 16
    per_device_eval_batch_size: int = 16
    learning_rate: float = 3e-3
    lr_scheduler_type: str = "warmup_stable_decay"
    lr_scheduler_kwargs: dict | str | None = field(default_factory=lambda: {"num_decay_steps": 500})
    warmup_steps: float = 30
    weight_decay: float = 0.05
    adam_beta2: float = 0.95
    logging_steps: float = 10
    eval_strategy: str = "steps"
    eval_steps: float = 200
    save_steps: float = 50
    save_total_limit: int = 2
    report_to: str = "none"


@dataclass
class WithMuon(Pretraining):
    """PyTorch has Muon, which learns far more from as much text than AdamW."""

    optim: str = "muon"
    optim_args: str | None = "muon_lr=0.04,adjust_lr_fn=original"
    learning_rate: float = 1e-2
    weight_decay: float = 0.01


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Trains, evaluates and reports; returns the bits per byte of each source."""
    argv = list(sys.argv[1:] if argv is None else argv)
    other = any(name in argv or f"--framework={name}" in argv for name in ("paddle", "mindspore"))
    parser = ArgumentParser((JobArguments, Pretraining if other else WithMuon), description=__doc__.splitlines()[0])
    parser.set_defaults(packing="best_fit", max_length=128)
    job, args = parser.parse_args_into_dataclasses(argv)
    try:
        models = import_module(f"model_{job.framework}")
    except ImportError as error:
        raise SystemExit(
            f"--framework {job.framework} needs its package: pip install 'oneloop[{job.framework}]'"
        ) from error

    sources = data.load(job.bytes)
    tokenizer = find_tokenizer(sources, job.vocabulary, Path(args.output_dir))
    documents = {name: tokenizer.encode(source.train) for name, source in sources.items()}
    print(describe(sources, documents))
    set_seed(args.seed)
    trainer = Trainer(
        model=models.GPT(len(tokenizer), job.width, job.layers, heads=job.width // 32),
        args=args,
        train_dataset=Mixture(
            {name: rows(each) for name, each in documents.items()},
            weights={"python": 1 - job.reviews, "reviews": job.reviews},
        ),
        eval_dataset={
            name: windows(tokenizer.encode(source.held_out), args.max_length) for name, source in sources.items()
        },
        processing_class=tokenizer,
        compute_metrics=BitsPerByte(tokenizer),
        preprocess_logits_for_metrics=models.token_losses,
    )
    started = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - started
    trainer.save_model()

    results = final_results(trainer, sources)
    trainer.save_metrics("all", {f"{name}_bits_per_byte": value for name, value in results.items()})
    trainer.save_state()
    for name, prompt in PROMPTS.items():
        print(f"-- {name}, a sample\n{sample(models, trainer.model, tokenizer, prompt, args.max_length)}")
    print(table(sources, results, job.baselines))
    print(f"trained in {seconds:.0f} s")
    picture, page = write_report(args.output_dir, title="Pretraining")
    print(f"picture of the run: {picture}")
    print(f"page of the run, for any browser: {page}")
    return results


def final_results(trainer: Trainer, sources: Iterable[str]) -> dict[str, float]:
    """Bits per byte of the trained model, from the evaluation at the last step if there was one."""
    metrics: dict[str, Any] = {}
    for entry in trainer.state.log_history:
        if entry["step"] == trainer.state.global_step:
            metrics |= entry
    names = {name: f"eval_{name}_bits_per_byte" for name in sources}
    if not metrics.keys() >= set(names.values()):
        metrics = trainer.evaluate()
    return {name: metrics[key] for name, key in names.items()}


def find_tokenizer(sources: dict[str, data.Source], size: int, folder: Path) -> BytePairs:
    """The tokenizer that an interrupted run has trained, or a new one; half of its text is from each source."""
    if (folder / FILE).is_file():
        tokenizer = BytePairs.from_pretrained(folder)
        if len(tokenizer) != size:
            raise SystemExit(
                f"{folder} has a tokenizer of {len(tokenizer)} tokens, not {size}; use another --output_dir"
            )
        return tokenizer
    texts = [text for source in sources.values() for text in data.first_bytes(source.train, 1_500_000)]
    tokenizer = BytePairs.train(texts, size)
    if len(tokenizer) != size:
        raise SystemExit(f"the text is too short for --vocabulary {size}; it makes {len(tokenizer)} tokens")
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    return tokenizer


def describe(sources: dict[str, data.Source], documents: dict[str, list[np.ndarray]]) -> str:
    return "\n".join(
        f"{name}: {len(each):,} documents, {size(sources[name].train):,} bytes, {sum(map(len, each)):,} tokens; "
        f"held out: {len(sources[name].held_out):,} documents, {size(sources[name].held_out):,} bytes"
        for name, each in documents.items()
    )


def size(documents: Sequence[str]) -> int:
    return sum(len(document.encode()) for document in documents)


def rows(documents: Sequence[np.ndarray]) -> list[dict[str, np.ndarray]]:
    return [{"input_ids": ids} for ids in documents]


def windows(documents: Sequence[np.ndarray], length: int) -> list[dict[str, np.ndarray]]:
    """Held-out documents in windows that overlap by one token, so that every token but the first is predicted once."""
    return rows([ids[begin : begin + length] for ids in documents for begin in range(0, len(ids) - 1, length - 1)])


class BitsPerByte:
    """The metric: the loss of all tokens, in bits, over the bytes that they stand for."""

    def __init__(self, tokenizer: BytePairs):
        self.byte_lengths = tokenizer.byte_lengths()

    def __call__(self, prediction: EvalPrediction) -> dict[str, float]:
        losses, labels = prediction
        wanted = labels[:, 1:]
        known = wanted != -100
        nats = losses[:, : wanted.shape[1]][known].sum(dtype=np.float64)
        return {"bits_per_byte": float(nats / math.log(2) / self.byte_lengths[wanted[known]].sum())}


def sample(models: Any, model: Any, tokenizer: BytePairs, prompt: str, context: int, count: int = 80) -> str:
    """Text that the model writes after the prompt, each token drawn from its distribution."""
    ids = tokenizer.encode([prompt])[0].tolist()
    chance = np.random.default_rng(0)
    for _ in range(count):
        logits = models.next_token_logits(model, ids[-context:]).astype(np.float64) / 0.7
        probability = np.exp(logits - logits.max())
        ids.append(int(chance.choice(len(probability), p=probability / probability.sum())))
        if ids[-1] == START:
            break
    return tokenizer.decode(ids)


def table(sources: dict[str, data.Source], results: dict[str, float], baselines: bool) -> str:
    """Bits per byte of held-out text, beside what simpler methods need."""
    lines = {"oneloop": results}
    if baselines:
        from baselines import ORDER, ngram_bits_per_byte, xz_bits_per_byte

        for label, method in (
            (f"{ORDER}-gram model", ngram_bits_per_byte),
            ("xz after training text", xz_bits_per_byte),
        ):
            lines[label] = {name: method(source.train, source.held_out) for name, source in sources.items()}
    head = f"{'bits per byte':24}" + "".join(f"{name:>10}" for name in sources)
    return "\n".join(
        [head, *(f"{label:24}" + "".join(f"{of[name]:10.3f}" for name in sources) for label, of in lines.items())]
    )


if __name__ == "__main__":
    main()
