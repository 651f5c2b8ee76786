"""Short runs of models that are divided, as a program under torchrun: `layouts_job.py FOLDER CASE[:LAYOUT] ...`.

A case runs in every layout for this number of processes, on one process in none.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from oneloop.distributed.world import world
from tests.distributed.cases import train as train_whole
from tests.distributed.job import main
from tests.distributed.sharding_job import course

CASES = {}
GLOBAL_BATCH = 8
TENSOR = {"tensor_parallel_size": 2}
LAYOUTS = {
    1: {"alone": {}},
    2: {"tp2": TENSOR, "dp2": {}, "shard2 stage1": {"sharding": "stage1"}, "shard2": {"sharding": "stage3"}},
    4: {
        "dp2 x tp2": TENSOR,
        "shard2 x tp2": TENSOR | {"sharding": "stage3"},
        "shard2 stage2 x tp2": TENSOR | {"sharding": "stage2"},
    },
}
WORDS = 48


def case(function):
    CASES[function.__name__] = function
    return function


def layouts(divided=True):
    """Those that divide the model along the tensor axis, or the others."""
    own = LAYOUTS[world().size]
    return {name: own[name] for name in own if ("tp" in name) == divided or world().size == 1}


# -- models


SIZES = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}


def llama(**given):
    torch.manual_seed(3)
    return LlamaForCausalLM(LlamaConfig(**SIZES | {"num_key_value_heads": 4, "tie_word_embeddings": False} | given))


def qwen3(**given):
    """Norms of each head, biases, tied embeddings."""
    torch.manual_seed(3)
    more = {"num_key_value_heads": 2, "head_dim": 8, "tie_word_embeddings": True, "attention_bias": True}
    return Qwen3ForCausalLM(Qwen3Config(**SIZES | more | given))


def bert(**given):
    torch.manual_seed(3)
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertForMaskedLM(BertConfig(**SIZES | still | given))


BERT_PLAN = {
    "bert.encoder.layer.*.attention.self.query": "colwise",
    "bert.encoder.layer.*.attention.self.key": "colwise",
    "bert.encoder.layer.*.attention.self.value": "colwise",
    "bert.encoder.layer.*.attention.output.dense": "rowwise",
    "bert.encoder.layer.*.intermediate.dense": "colwise",
    "bert.encoder.layer.*.output.dense": "rowwise",
}


class Layer(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 24), nn.Linear(24, width)
        self.inside, self.outside = nn.Dropout(dropout), nn.Dropout(dropout)

    def forward(self, x):
        return x + self.outside(self.down(self.inside(torch.tanh(self.up(self.norm(x))))))


class Plain(nn.Module):
    """A module that no library knows, with a running count and a number as a parameter."""

    def __init__(self, inside=0.0, outside=0.0):
        super().__init__()
        torch.manual_seed(4)
        self.embed = nn.Embedding(WORDS, 16)
        self.layers = nn.ModuleList(Layer(16, 0.0) for _ in range(2))
        for layer in self.layers:
            layer.inside.p, layer.outside.p = inside, outside
        self.head = nn.Linear(16, WORDS)
        self.warmth = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, input_ids, labels=None, attention_mask=None):
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        if self.training:
            self.seen += 1
        logits = self.head(x) * self.warmth
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


PLAIN_PLAN = {"layers.*.up": "colwise", "layers.*.down": "rowwise", "head": "colwise_gather_output"}
MODELS = {
    "llama": (llama, {}),
    "qwen3": (qwen3, {}),
    "bert": (bert, {"tensor_parallel_plan": BERT_PLAN}),
    "plain": (Plain, {"tensor_parallel_plan": PLAIN_PLAN}),
}


def texts(count=40, length=9, seed=0):
    generator = np.random.default_rng(seed)
    found = []
    for number in range(count):
        ids = generator.integers(0, WORDS, length)
        labels = np.where(generator.random(length) < 0.2, -100, ids)
        if number % 11 == 5:
            labels[:] = -100
        found.append({"input_ids": ids, "labels": labels})
    return found


def train(folder, name, model, data=None, **given):
    """A run of the global batch, whatever divides it."""
    batches = world().size // given.get("tensor_parallel_size", 1)
    accumulation = given.get("gradient_accumulation_steps", 1)
    options = {
        "per_device_train_batch_size": GLOBAL_BATCH // batches // accumulation,
        "optim": "adamw_torch",
        "learning_rate": 0.01,
        "max_steps": 6,
        "max_grad_norm": 0.5,
        "weight_decay": 0.1,
    }
    return train_whole(folder, name, model, texts() if data is None else data, **options | given)


def with_each(folder, name, **given):
    make, plan = MODELS[name]
    return {
        layout: course(train(folder, f"{name}-{layout}", make(), **plan | own | given))
        for layout, own in layouts().items()
    }


ACCUMULATED = {"gradient_accumulation_steps": 2, "label_smoothing_factor": 0.1}


@case
def equal(folder):
    """A few steps of each model; on four processes of one."""
    names = MODELS if world().size < 4 else ["qwen3"]
    return {name: with_each(folder, name, **ACCUMULATED if name == "qwen3" else {}) for name in names}


@case
def thirty(folder):
    """At a usual rate: AdamW makes steps of the rate's size of gradients that are rounding errors alone."""
    return {name: with_each(folder, name, max_steps=30, learning_rate=1e-3) for name in MODELS}


# -- checkpoints

SAVING = {"save_strategy": "steps", "save_steps": 3, "max_steps": 6, "lr_scheduler_type": "linear"}


def saving_run(folder, name, given, resume=None):
    return train(folder, name, qwen3(), **SAVING | given, resume=resume)


@case
def saved(folder, divided=True):
    """Six steps with a checkpoint after three, from which the same layout goes on to the same bits."""
    found = {}
    for layout, own in layouts(divided).items():
        whole = saving_run(folder, f"saved-{layout}", own)
        checkpoint = Path(folder) / f"saved-{layout}" / "checkpoint-3"
        again = saving_run(folder, f"again-{layout}", own, str(checkpoint))
        whole.save_model(str(Path(folder) / f"model-{layout}"))
        found[layout] = {"whole": course(whole), "again": course(again)}
        found[layout]["files"] = sorted(path.name for path in checkpoint.iterdir())
    return found


@case
def saved_whole(folder):
    return saved(folder, divided=False)


@case
def crossed(folder, divided=True):
    """On from the checkpoints of every layout that has left one."""
    stored = {path.parent.name.removeprefix("saved-"): path for path in Path(folder).parent.glob("*/saved-*/*-3")}
    return {
        layout: {
            source: course(saving_run(folder, f"{layout} from {source}", own, str(path)))["losses"]
            for source, path in stored.items()
        }
        for layout, own in layouts(divided).items()
    }


@case
def crossed_whole(folder):
    return crossed(folder, divided=False)


if __name__ == "__main__":
    main(*sys.argv[1:], cases=CASES)
