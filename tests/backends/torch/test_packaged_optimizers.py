"""Optimizers of other packages, which keep their state in ways of their own: a checkpoint has all of it.

The real ones are tried where they are installed: bash scripts/optimizers.
"""

import json
from importlib.util import find_spec

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from oneloop import Trainer, TrainerCallback
from oneloop.backends.torch import quantized_state, weights
from oneloop.errors import CheckpointError
from tests.backends.kits.torch_kit import Kit
from tests.backends.support import rows, same_bytes

KIT = Kit()
RUN = {
    "max_steps": 6,
    "per_device_train_batch_size": 4,
    "learning_rate": 0.01,
    "save_strategy": "steps",
    "save_steps": 3,
}
PACKAGES = {
    # paged_ademamix_32bit is not among them: bitsandbytes 0.50 fails in its first step on a CPU.
    **dict.fromkeys(("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit"), "bitsandbytes"),
    **dict.fromkeys(("lion_8bit", "lion_32bit", "paged_lion_8bit", "paged_lion_32bit"), "bitsandbytes"),
    **dict.fromkeys(("ademamix", "ademamix_8bit", "paged_ademamix_8bit"), "bitsandbytes"),
    **dict.fromkeys(("rmsprop_bnb", "rmsprop_bnb_8bit", "rmsprop_bnb_32bit"), "bitsandbytes"),
    **dict.fromkeys(("adamw_torch_8bit", "adamw_torch_4bit"), "torchao"),
    "grokadamw": "grokadamw",
    "stable_adamw": "optimi",
}


class Wide(nn.Module):
    """Has a weight that is large enough to be quantized."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = nn.Linear(8, 1024), nn.Linear(1024, 4)

    def forward(self, x, labels=None):
        logits = self.second(torch.tanh(self.first(torch.nn.functional.pad(x, (0, 8 - x.shape[-1])))))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_run_resumes_to_the_same_bits(arguments, tmp_path, name):
    if find_spec(PACKAGES[name]) is None:
        pytest.skip(f"needs {PACKAGES[name]}: bash scripts/optimizers")
    whole = Trainer(Wide(), arguments(optim=name, **RUN), train_dataset=rows(24))
    before = KIT.weights(whole.model)
    whole.train()
    assert not same_bytes(before, KIT.weights(whole.model))
    again = Trainer(Wide(seed=3), arguments(optim=name, **RUN), train_dataset=rows(24))
    again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-3"))
    assert same_bytes(KIT.weights(whole.model), KIT.weights(again.model))


# -- what they do, without them


class Halved:
    """A state as torchao has it: a tensor in a form of its own."""

    tensor_attrs = ["codes"]

    def __init__(self, codes, shape, dtype):
        assert codes.dtype is torch.int32
        self.codes, self.shape, self.dtype = codes, torch.Size(shape), dtype

    def __tensor_flatten__(self):
        return self.tensor_attrs, [self.shape, self.dtype]

    @classmethod
    def __tensor_unflatten__(cls, parts, context):
        return cls(parts["codes"], *context)


class Own(torch.optim.Optimizer):
    """SGD with momentum that keeps integers in an object, a count in each group, and the moments in a dict of it."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr, "sign": lambda: 1, "scale": torch.tensor(2.0, dtype=torch.float64)})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["step"] = group.get("step", torch.tensor(0, dtype=torch.int16)) + 1
            group.setdefault("hook", lambda: 1)
            moments = group.setdefault("state", {})
            for p in (p for p in group["params"] if p.grad is not None):
                of_p = moments.setdefault(p, {"moment": torch.zeros_like(p), "updates": 0})
                of_p["moment"].mul_(0.9).add_(p.grad)
                of_p["updates"] += 1
                seen = self.state[p].get("seen")
                codes = torch.zeros_like(p, dtype=torch.int32) if seen is None else seen.codes
                self.state[p]["seen"] = Halved(codes + (p.grad > 0), p.shape, p.dtype)
                rate = group["lr"] / (group["step"] + of_p["updates"])
                p.sub_(rate * (of_p["moment"] + 0.01 * self.state[p]["seen"].codes))


@pytest.fixture
def known(monkeypatch):
    monkeypatch.setitem(quantized_state._CLASSES, __name__, "Halved")


def trained(arguments, model, resume=None):
    args = arguments(**RUN, lr_scheduler_type="constant")
    trainer = Trainer(model, args, train_dataset=rows(24), optimizers=(Own(model.parameters()), None))
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def test_state_in_groups_and_in_objects_is_stored(arguments, tmp_path, known):
    whole = trained(arguments, KIT.classifier(dropout=0.2))
    checkpoint = tmp_path / "out" / "checkpoint-3"
    again = trained(arguments, KIT.classifier(dropout=0.2, seed=3), str(checkpoint))
    assert same_bytes(KIT.weights(whole.model), KIT.weights(again.model))
    (group,) = again.optimizer.param_groups
    assert group["step"].dtype == torch.int16 and int(group["step"]) == 6
    state = again.optimizer.state[group["params"][0]]["seen"]
    assert type(state) is Halved and state.shape == group["params"][0].shape and state.dtype == torch.float32
    assert [each["updates"] for each in group["state"].values()] == [6] * len(group["params"])


def check_loaded(model, tensors, data):
    """What cannot be stored is added anew, the dtype of a tensor is that which the optimizer has, and nothing is shared
    with the file."""
    fresh, before = Own(model.parameters()), {name: tensor.clone() for name, tensor in tensors.items()}
    data = json.loads(json.dumps(data))
    del data["groups"][0]["scale"]["dtype"]  # of an earlier release
    weights.load_optimizer(fresh, model, dict(tensors), data, "x")
    (group,) = fresh.param_groups
    assert "hook" not in group and group["sign"]() == 1
    assert group["scale"].dtype == torch.float64 and float(group["scale"]) == 2.0
    for state in fresh.state.values():
        state["seen"].codes.fill_(7)
    assert all(torch.equal(tensors[name], before[name]) for name in before)


def test_the_first_rate_of_a_group_is_stored_where_it_is_its_own():
    model = KIT.classifier()
    first, *rest = model.parameters()
    optimizer = torch.optim.SGD([{"params": rest}, {"params": [first], "lr": 0.5}], lr=0.1)
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    _, data = weights.optimizer_state(optimizer, model)
    assert [group.get("initial_lr") for group in data["groups"]] == [None, 0.5]


class Finds(TrainerCallback):
    """The last state that a checkpoint would have."""

    def on_step_end(self, args, state, control, optimizer=None, model=None, **kwargs):
        self.stored = weights.optimizer_state(optimizer, model)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            lambda data, name: data["values"][name]["seen"]["quantized"].update(module="os"),
            "quantized tensor that cannot",
        ),
        (lambda data, name: data["values"][name]["seen"]["quantized"].update(parts={}), "quantized tensor that cannot"),
        (lambda data, name: data["values"][name]["seen"]["quantized"].update(options={"list": []}), "quantized tensor"),
        (lambda data, name: data["values"][name]["seen"].update(quantized=[1]), "quantized tensor that cannot"),
        (lambda data, name: data["groups"][0]["step"].update(tensor={"a": 1}), "a tensor that cannot be read"),
        (lambda data, name: data["groups"][0]["step"].update(dtype="int99"), "which torch lacks"),
    ],
)
def test_what_a_checkpoint_may_say_of_them(arguments, known, wrong, words):
    model, finds = KIT.classifier(), Finds()
    args = arguments(**RUN | {"save_strategy": "no", "max_steps": 1})
    Trainer(model, args, train_dataset=rows(24), optimizers=(Own(model.parameters()), None), callbacks=[finds]).train()
    tensors, data = finds.stored
    data = json.loads(json.dumps(data))
    check_loaded(model, tensors, data)
    wrong(data, next(iter(data["values"])))
    with pytest.raises(CheckpointError, match=words):
        weights.load_optimizer(Own(model.parameters()), model, dict(tensors), data, "x")


def test_a_quantized_tensor_of_another_shape_is_refused(arguments, known):
    model, finds = KIT.classifier(), Finds()
    args = arguments(**RUN | {"save_strategy": "no", "max_steps": 1})
    Trainer(model, args, train_dataset=rows(24), optimizers=(Own(model.parameters()), None), callbacks=[finds]).train()
    tensors, data = finds.stored
    name = next(iter(data["values"]))
    data["values"][name]["seen"]["quantized"]["options"]["list"][0] = {"tuple": [1, 2, 3]}
    with pytest.raises(CheckpointError, match=r"of shape \(1, 2, 3\), expected"):
        weights.load_optimizer(Own(model.parameters()), model, tensors, data, "x")
