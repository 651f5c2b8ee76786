"""Short runs of MoE models whose experts are divided (expert_parallel_size): `experts_job.py FOLDER CASE ...`.

On one process the model is whole; pairs of processes divide the experts, and the rest of them divide the batch.
"""

import sys
from functools import partial
from pathlib import Path

import torch
from torch import nn
from transformers import MixtralConfig, MixtralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from oneloop.distributed.world import world
from tests.distributed.cases import main
from tests.distributed.cases import train as train_with
from tests.distributed.layouts_job import SIZES, texts
from tests.distributed.sharding_job import course

GLOBAL_BATCH = 8
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def qwen3(**given):
    torch.manual_seed(3 + world().rank)  # the weights are those of the main process
    more = {"num_key_value_heads": 2, "head_dim": 8, "moe_intermediate_size": 12, "num_experts": 4}
    more |= {"num_experts_per_tok": 2, "output_router_logits": True, "router_aux_loss_coef": 0.1}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES | more | given))


def mixtral(**given):
    torch.manual_seed(3 + world().rank)
    more = {"num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 1}
    more |= {"output_router_logits": True, "router_aux_loss_coef": 0.1}
    return MixtralForCausalLM(MixtralConfig(**SIZES | more | given))


def train(folder, name, model, **given):
    own = {} if world().size == 1 else {"expert_parallel_size": 2}
    given = own | given
    batches = world().size // given.get("expert_parallel_size", 1)
    options = {
        "per_device_train_batch_size": GLOBAL_BATCH // batches // given.get("gradient_accumulation_steps", 1),
        "optim": "adamw_torch",
        "learning_rate": 0.01,
        "lr_scheduler_type": "linear",
        "max_steps": 6,
        "max_grad_norm": 0.5,
        "weight_decay": 0.1,
    }
    return train_with(folder, name, model, texts(), **options | given)


RUNS = {
    "qwen3": (qwen3, {}),
    "mixtral": (mixtral, {"gradient_checkpointing": True}),
    "one at a time": (partial(mixtral, output_router_logits=False), {"gradient_accumulation_steps": 4}),
    "batched": (partial(qwen3, experts_implementation="batched_mm"), {"label_smoothing_factor": 0.1}),
}


@case
def equal(folder):
    found = {}
    for name, (make, given) in RUNS.items():
        trainer = train(folder, name, make(), **given)
        found[name] = course(trainer) | {"held": held(trainer), "eval": trainer.evaluate(texts(9, seed=1))["eval_loss"]}
    return found


def held(trainer):
    """The experts of the first layer that this process has."""
    experts = next(module for name, module in trainer.model.named_modules() if name.endswith("experts"))
    return [int(getattr(p, "_local_tensor", p).shape[0]) for p in experts.parameters()]


@case
def thirty(folder):
    return {name: course(train(folder, name, make(), max_steps=30, **given)) for name, (make, given) in RUNS.items()}


SAVING = {"save_strategy": "steps", "save_steps": 3}


@case
def saved(folder):
    trainer = train(folder, "saved", qwen3(), **SAVING)
    found = course(trainer)
    trainer.save_model(str(Path(folder) / "final"))
    again = train(folder, "again", qwen3(), resume=str(Path(folder) / "saved" / "checkpoint-3"), **SAVING)
    return {"whole": found, "again": course(again)}


@case
def crossed(folder):
    """On from the checkpoints of every number of processes."""
    found = {}
    for path in sorted(Path(folder).parent.glob("*/saved/checkpoint-3")):
        name = path.parents[1].name
        found[name] = course(train(folder, f"from_{name}", qwen3(), resume=str(path)))["losses"]
    return found


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = qwen3()
        first, second = (layer.mlp.experts for layer in self.inner.model.layers)
        second.down_proj = first.down_proj

    def forward(self, input_ids, labels=None):
        return self.inner(input_ids=input_ids, labels=labels)


def divided_by_transformers():
    model = qwen3()
    for layer in model.model.layers:
        layer.mlp.experts._is_expert_parallel = True
    return model


REFUSED = {
    "no experts": (lambda: nn.Linear(2, 2), {}),
    "three experts": (lambda: qwen3(num_experts=3), {}),
    "tied experts": (Tied, {}),
    "divided already": (divided_by_transformers, {}),
    "divided by transformers": (divided_by_transformers, {"expert_parallel_size": 1}),
    "ema": (qwen3, {"ema_decay": 0.9}),
    "muon": (qwen3, {"optim": "muon"}),
    "compiled": (qwen3, {"torch_compile": True}),
    "adafactor": (qwen3, {"optim": "adafactor"}),
}


@case
def refused(folder):
    found = {}
    for name, (make, given) in REFUSED.items():
        try:
            train(folder, f"refused {name}", make(), **given)
            found[name] = "trained"
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


if __name__ == "__main__":
    main(*sys.argv[1:], cases=CASES)
