"""Runs with and without whole logits on several processes: `chunked_loss_job.py FOLDER`. Writes how far they differ."""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

from oneloop import Trainer, TrainingArguments
from oneloop.backends._common import chunked_loss as common
from tests.internals import full_tensors

WORDS = 96
LAYOUTS = {
    "DDP": {},
    "stage 2": {"sharding": "stage2"},
    "stage 3": {"sharding": "stage3"},
    "tensor": {"tensor_parallel_size": 2},
    "tensor, smoothed": {"tensor_parallel_size": 2, "label_smoothing_factor": 0.1},
}


def samples():
    random = np.random.default_rng(0)
    rows = []
    for _ in range(32):
        ids = random.integers(1, WORDS, 20)
        rows.append({"input_ids": ids, "labels": np.where(np.arange(20) < random.integers(2, 20), ids, -100)})
    return rows


def run(folder, chunked, tied, **given):
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=WORDS, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=tied,
        )
    )  # fmt: skip
    args = TrainingArguments(
        str(folder), per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=3, learning_rate=0.1,
        optim="sgd", save_strategy="no", report_to="none", disable_tqdm=True, chunked_loss=chunked,
        prediction_loss_only=True, **given,
    )  # fmt: skip
    trainer = Trainer(model, args, train_dataset=samples(), eval_dataset=samples()[:10])
    result = trainer.train()
    weights = {name: np.array(value.detach()) for name, value in full_tensors(trainer).items()}
    return weights, [result.metrics["train_loss"], trainer.evaluate()["eval_loss"]]


def main(folder):
    common.FEWEST_ROWS, common.CHUNK_BYTES = 8, 1000
    found = {}
    for tied in (False, True):
        for name, given in LAYOUTS.items():
            (plain, losses), (chunked, others) = (run(folder, each, tied, **given) for each in (False, True))
            differences = [float(abs(plain[key] - chunked[key]).max()) for key in plain]
            differences += [abs(one - other) / one for one, other in zip(losses, others)]
            found[f"{name}{', tied' * tied}"] = max(differences)
    Path(folder, f"found-{torch.distributed.get_rank()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
