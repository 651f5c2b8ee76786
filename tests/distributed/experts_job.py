"""Short runs of MoE models whose experts are divided (expert_parallel_size): `experts_job.py FOLDER CASE ...`.

On one process the model is whole; pairs of processes divide the experts, and the rest of them divide the batch.
"""

import sys
from functools import partial
from pathlib import Path

import torch
from torch import nn
from transformers import MixtralConfig, MixtralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from oneloop import Trainer
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
    batches = world().size // given.get("expert_parallel_size", 1) // given.get("sequence_parallel_size", 1)
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


# The weight of the one expert is the router's probability of it. Mixtral's is always 1: its router would have no
# gradient without the auxiliary loss, and AdamW would take steps of full length along the rounding errors.
ONE_EXPERT = {"num_experts_per_tok": 1, "norm_topk_prob": False, "output_router_logits": False}
RUNS = {
    "qwen3": (qwen3, {}),
    "mixtral": (mixtral, {"gradient_checkpointing": True}),
    "one at a time": (partial(qwen3, **ONE_EXPERT), {"gradient_accumulation_steps": 4}),
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
    found = {}
    for name, (make, given) in RUNS.items():
        model, chosen = watched(make())
        trainer = train(folder, name, model, max_steps=30, **given)
        found[name] = course(trainer) | {"chosen": chosen}
    return found


@case
def halves(folder):
    """Each batch in two parts after one another, as two pairs of processes have it beside one another: the auxiliary
    loss of a batch is not the mean of those of its parts."""
    found = {}
    for name, (make, given) in RUNS.items():
        more = {"gradient_accumulation_steps": 2 * given.get("gradient_accumulation_steps", 1)}
        model, chosen = watched(make())
        found[name] = course(train(folder, f"halves-{name}", model, max_steps=30, **given | more)) | {"chosen": chosen}
    return found


@case
def rounding(folder):
    """A router without a gradient, twice: the second time with one weight of the model changed by its last bit."""
    found = []
    for changed in (False, True):
        model, chosen = watched(mixtral(output_router_logits=False))
        if changed:
            first = model.model.embed_tokens.weight
            with torch.no_grad():
                first[1, 0] = torch.nextafter(first[1, 0], torch.tensor(1.0))
        gradients = []
        router = model.model.layers[0].mlp.gate.weight
        router.register_hook(lambda gradient, seen=gradients: seen.append(float(gradient.norm())))
        trainer = train(folder, f"rounding-{changed}", model, max_steps=30)
        found.append(course(trainer) | {"chosen": chosen, "router": gradients})
    return found


def watched(model):
    """The model, and a list for each of its layers: how many tokens chose each expert in each training forward pass."""
    chosen = {}

    def note(name, number):
        def before(module, given):
            if module.training:
                chosen.setdefault(name, []).append(torch.bincount(given[1].flatten(), minlength=number).tolist())

        return before

    for name, module in model.named_modules():
        if name.endswith("experts"):
            module.register_forward_pre_hook(note(name, module.num_experts))
    return model, chosen


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


# All layouts that a MoE model may have. The auxiliary loss is not divided with sequences, or over several batches.
WHOLE = {"expert_parallel_size": 1}
LAYOUTS = {
    1: {"alone": {}},
    2: {
        "ep2": {},
        "dp2": WHOLE,
        "shard2": WHOLE | {"sharding": "stage3"},
        "sp2": WHOLE | {"sequence_parallel_size": 2},
    },
    4: {"dp2 x ep2": {}},
}


def without_auxiliary_loss():
    return qwen3(output_router_logits=False)


@case
def stored(folder):
    """A checkpoint of every layout."""
    return {
        layout: course(train(folder, f"stored-{layout}", without_auxiliary_loss(), **SAVING | own))
        for layout, own in LAYOUTS[world().size].items()
    }


@case
def spread(folder):
    """On from those of all layouts, in every layout."""
    sources = {path.parent.name.removeprefix("stored-"): path for path in Path(folder).parent.glob("*/stored-*/*-3")}
    return {
        layout: {
            source: course(train(folder, f"{layout} from {source}", without_auxiliary_loss(), resume=str(path), **own))[
                "losses"
            ]
            for source, path in sources.items()
        }
        for layout, own in LAYOUTS[world().size].items()
    }


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


@case
def others(folder):
    """Frozen experts; an optimizer of the undivided model; and a second run of a model that is divided already."""
    frozen = qwen3()
    for p in frozen.model.layers[0].mlp.experts.parameters():
        p.requires_grad_(False)
    first = train(folder, "frozen", frozen)
    given = qwen3()
    optimizer = torch.optim.AdamW(given.parameters(), 0.01, weight_decay=0.1)

    class Given(Trainer):
        def create_optimizer(self, model=None):
            self.optimizer = optimizer
            return optimizer

    averaged = {"optim": "muon", "ema_decay": 0.9, "eval_with_average": True, "learning_rate": 1e-3}
    muon = train(folder, "muon", qwen3(), **averaged)
    return {
        "muon": course(muon) | {"eval": muon.evaluate(texts(9, seed=1))["eval_loss"]},
        "frozen": course(first) | {"trained": [p.requires_grad for p in first.model.parameters()]},
        "given": course(train(folder, "given", given, trainer_class=Given)),
        "second": course(train(folder, "second", first.model, max_steps=3)),
    }


def adapted():
    import peft

    return peft.get_peft_model(qwen3(), peft.LoraConfig(target_modules=["q_proj"], r=2))


REFUSED = {
    "adapter": (adapted, {}),
    "no experts": (lambda: nn.Linear(2, 2), {}),
    "three experts": (lambda: qwen3(num_experts=3), {}),
    "tied experts": (Tied, {}),
    "divided already": (divided_by_transformers, {}),
    "divided by transformers": (divided_by_transformers, {"expert_parallel_size": 1}),
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
