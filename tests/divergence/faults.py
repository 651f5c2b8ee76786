"""Faults that are put into the second run of a pair, and what `oneloop diff` has to name.

A fault is a kind and a place; `draw` takes some at random, with a seed, so that every kind has its share.
"""

import random
from dataclasses import dataclass

import numpy as np

SQUARE = tuple(f"blocks.{i}.attention.{name}" for i in (0, 1) for name in ("query", "key", "value", "out"))
LINEAR = (*SQUARE, *(f"blocks.{i}.mlp.{name}" for i in (0, 1) for name in ("inner", "outer")), "head")
NORMS = ("blocks.0.norm1", "blocks.0.norm2", "blocks.1.norm1", "blocks.1.norm2", "norm")
# Behind another layer: the first ones have no gradient of their input to be wrong.
INNER = tuple(name for name in LINEAR if name != "head") + NORMS[1:]
OPTIMIZER = ("",)
ALL = "(all parameters)"


@dataclass(frozen=True)
class Fault:
    name: str
    place: str

    @property
    def expected(self):
        """The (module, kind) that is to be named."""
        module, kind = (EXPECTED | NOT_DRAWN)[self.name]
        return (self.place if module is None else module), kind


EXPECTED = {
    "missing bias": (None, "activation"),
    "transposed in use": (None, "activation"),
    "other epsilon": (None, "activation"),
    "other gelu": (None, "activation"),
    "unscaled scores": (None, "activation"),
    "scaled residual": (None, "activation"),
    "dropout": (None, "activation"),
    "order of dropout": (None, "activation"),
    "missing slice": (None, "activation"),
    "scaled loss": ("", "activation"),
    "sum as loss": ("(loss)", "activation"),
    "doubled gradient": (None, "gradient"),
    "no gradient": (None, "gradient"),
    "doubled gradient of a weight": (None, "gradient"),
    "transposed weight": (None, "state"),
    "other weight": (None, "state"),
    "stale buffer": (None, "state"),
    "other sample": ("(batch)", "input data"),
    "other order": ("(batch)", "input data"),
    "shuffled labels": ("(batch)", "input data"),
    "other clipping": (ALL, "clipping"),
    "learning rate": (ALL, "update"),
    "optimizer epsilon": (ALL, "update"),
    "weight decay": (ALL, "update"),
    "beta1": (ALL, "state"),
    "beta2": (ALL, "state"),
    "lost micro-batch": (ALL, "accumulation"),
    "missing shard": (ALL, "accumulation"),
    "no sum over processes": (ALL, "accumulation"),
}
# Not drawn by the search, so that its seeds draw what they have always drawn.
NOT_DRAWN = {
    "frozen weight": (None, "gradient"),
    "detached weight": (None, "gradient"),
    "not finite": (None, "activation"),
    "dice": (None, "activation"),
}
PLACES = {
    "missing bias": LINEAR,
    "transposed in use": SQUARE,
    "other epsilon": NORMS,
    "other gelu": ("blocks.0.mlp.act", "blocks.1.mlp.act"),
    "unscaled scores": ("blocks.0.attention", "blocks.1.attention"),
    "scaled residual": ("blocks.0", "blocks.1"),
    "dropout": ("blocks.0.drop", "blocks.1.drop"),
    "order of dropout": ("blocks.0.drop", "blocks.1.drop"),
    "missing slice": ("blocks.0.mlp.outer", "blocks.1.mlp.outer"),
    "doubled gradient": INNER,
    "no gradient": INNER,
    "doubled gradient of a weight": LINEAR,
    "transposed weight": SQUARE,
    "other weight": LINEAR,
    "stale buffer": ("stats",),
}
SEVERAL = ("missing shard", "no sum over processes")  # on several processes
HINTS = {
    "missing bias": "missing in B",
    "other epsilon": "another epsilon",
    "dropout": "dropout draws other random numbers",
    "order of dropout": "dropout draws other random numbers",
    "sum as loss": "the number of samples",
    "frozen weight": "weight has no gradient in B",
    "doubled gradient": "B has 2 times the values of A",
    "no gradient": "nothing flows back from there in B",
    "transposed weight": "transposed",
    "stale buffer": "was not updated in B",
    "other order": "another order",
    "shuffled labels": "labels",
    "other clipping": "max_grad_norm",
    "learning rate": "learning_rate",
    "optimizer epsilon": "eps",
    "beta1": "beta1",
    "beta2": "beta2",
    "missing shard": "is missing from the sum",
    "no sum over processes": "a sum over processes is missing",
}


def draw(count, seed, without=()):
    """Faults at random: every kind in turn, each at a random place."""
    chance, kinds = random.Random(seed), [name for name in EXPECTED if name not in without]
    found = []
    while len(found) < count:
        chance.shuffle(kinds)
        found += [Fault(name, chance.choice(PLACES.get(name, OPTIMIZER))) for name in kinds]
    return found[:count]


def options_of(fault):
    """Arguments of the run with the fault."""
    return {
        "other clipping": {"max_grad_norm": 0.05},
        "learning rate": {"learning_rate": 1.1e-3},
        "optimizer epsilon": {"adam_epsilon": 1e-4},
        "weight decay": {"weight_decay": 0.1},
        "beta1": {"adam_beta1": 0.8},
        "beta2": {"adam_beta2": 0.99},
        "other order": {"data_seed": 4321},
        "sum as loss": {"replay_overrides": ["compute_loss"]},
    }.get(fault.name, {})


def spoil_data(fault, data):
    data = [dict(row) for row in data]
    if fault.name == "other sample":
        for row in data:
            row["input_ids"] = np.where(row["input_ids"] == 3, 4, row["input_ids"])
    elif fault.name == "shuffled labels":
        labels = [row["labels"] for row in data]
        for i, row in enumerate(data):
            row["labels"] = labels[(i + 1) % len(labels)]
    return data


def spoil_model(fault, model, framework):
    """Change a model, whose weights are set. `framework`: the module with its model."""
    layers = framework.named_layers(model)
    layer = layers.get(fault.place)
    _MODEL.get(fault.name, lambda *given: None)(layer, model, framework)


def _forward(layer):
    return layer.construct if hasattr(layer, "construct") else layer.forward


def _without_bias(layer, model, framework):
    before = _forward(layer)
    framework.replace_forward(layer, lambda x: before(x) - layer.bias)


def _transposed_in_use(layer, model, framework):
    framework.replace_forward(layer, lambda x: framework.linear(x, framework.transposed(layer.weight), layer.bias))


def _doubled_gradient(layer, model, framework):
    before = _forward(layer)
    framework.replace_forward(layer, lambda x: before(2 * x - framework.stop(x)))


def _no_gradient(layer, model, framework):
    before = _forward(layer)
    framework.replace_forward(layer, lambda x: before(framework.stop(x)))


def _doubled_weight_gradient(layer, model, framework):
    def forward(x):
        weight = 2 * layer.weight - framework.stop(layer.weight)
        return framework.linear(x, weight, layer.bias)

    framework.replace_forward(layer, forward)


def _detached_weight(layer, model, framework):
    framework.replace_forward(layer, lambda x: framework.linear(x, framework.stop(layer.weight), layer.bias))


def _not_finite(layer, model, framework):
    before = _forward(layer)
    framework.replace_forward(layer, lambda x: before(x) * float("nan"))


def _draws_own_numbers(layer, model, framework):
    before, dice = _forward(layer), random.SystemRandom()
    framework.replace_forward(layer, lambda x: before(x) * (0.5 + dice.random()))


def _transposed_weight(layer, model, framework):
    framework.assign(layer.weight, np.ascontiguousarray(_array(layer.weight).T))


def _other_weight(layer, model, framework):
    array = _array(layer.weight).copy()
    array.reshape(-1)[3] += 1e-3
    framework.assign(layer.weight, array)


def _array(parameter):
    if hasattr(parameter, "asnumpy"):
        return np.array(parameter.asnumpy())
    return np.array(parameter.detach().numpy())


def _draws_before(layer, model, framework):
    import torch

    framework.set_dropout(layer, 0.1)
    layer.register_forward_pre_hook(lambda *given: torch.rand(1) and None)


def _without_slice(layer, model, framework):
    import torch.distributed as dist

    before = _forward(layer)
    framework.replace_forward(layer, lambda x: before(x * float(dist.get_rank() == 0)))


def _set(name, value):
    def spoil(layer, model, framework):
        setattr(layer, name, value)

    return spoil


_MODEL = {
    "missing bias": _without_bias,
    "order of dropout": _draws_before,
    "missing slice": _without_slice,
    "transposed in use": _transposed_in_use,
    "other epsilon": lambda layer, model, framework: framework.set_epsilon(layer, 1e-3),
    "other gelu": lambda layer, model, framework: framework.replace_forward(layer, framework.tanh_gelu),
    "unscaled scores": _set("scale", 1.0),
    "scaled residual": _set("residual", 0.99),
    "dropout": lambda layer, model, framework: framework.set_dropout(layer, 0.1),
    "scaled loss": lambda layer, model, framework: setattr(model, "loss_factor", 2.0),
    "doubled gradient": _doubled_gradient,
    "no gradient": _no_gradient,
    "doubled gradient of a weight": _doubled_weight_gradient,
    "frozen weight": lambda layer, model, framework: framework.freeze(layer.weight),
    "detached weight": _detached_weight,
    "not finite": _not_finite,
    "dice": _draws_own_numbers,
    "transposed weight": _transposed_weight,
    "other weight": _other_weight,
    "stale buffer": lambda layer, model, framework: framework.set_momentum(layer, 0.0),
}
