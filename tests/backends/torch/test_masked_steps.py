"""Steps that a flag on the device leaves out or undoes: the optimizer's kernel, or copies of weights and state."""

import pytest
import torch

from oneloop.backends.torch import masked_steps
from oneloop.backends.torch.masked_steps import step_unless

BAD, GOOD = torch.tensor(True), torch.tensor(False)


class Counting(torch.optim.Optimizer):
    """State of a user's optimizer: a tensor for each parameter, and numbers on the host."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            state["sum"] = state["sum"].add_(p.grad) if "sum" in state else p.grad.clone()
            state["count"] = state.get("count", 0) + 1
            p.sub_(state["sum"], alpha=0.1)


OPTIMIZERS = {
    "fused AdamW": lambda ps: torch.optim.AdamW(ps, fused=True),
    "fused SGD": lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9, fused=True),
    "SGD": lambda ps: torch.optim.SGD(ps, 0.1),
    "SGD with momentum": lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9),
    "AdamW": lambda ps: torch.optim.AdamW(ps),
    "a user's": Counting,
}
EXACT = ("fused AdamW", "fused SGD", "SGD", "SGD with momentum")  # the others count steps on the host


def parameters():
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in ((3, 4), (5,))]


def with_gradients(ps, value=None):
    for p in ps:
        p.grad = torch.randn_like(p) if value is None else torch.full_like(p, value)


def values(optimizer, ps):
    state = {(i, key): value for i, p in enumerate(ps) for key, value in optimizer.state.get(p, {}).items()}
    return [p.detach().clone() for p in ps], {k: v.clone() for k, v in state.items() if isinstance(v, torch.Tensor)}


def same(left, right, but=()):
    return all(map(torch.equal, left[0], right[0])) and all(
        torch.equal(left[1][key], right[1][key]) for key in left[1] if key[1] not in but
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_set_flag_leaves_everything_and_a_clear_one_is_a_step(name):
    ps, others = parameters(), parameters()
    optimizer, plain = OPTIMIZERS[name](ps), OPTIMIZERS[name](others)
    for _ in range(2):
        with_gradients(ps)
        for p, q in zip(ps, others, strict=True):
            q.grad = p.grad.clone()
        if not step_unless(GOOD, optimizer, exactly=False):
            optimizer.step()  # in the first step some of them create their state
        plain.step()
    assert same(values(optimizer, ps), values(plain, others))
    before = values(optimizer, ps)
    with_gradients(ps, float("nan"))
    assert step_unless(BAD, optimizer, exactly=False)
    assert same(before, values(optimizer, ps), but=("step",) if name == "AdamW" else ())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_that_goes_on_needs_all_state_on_the_device(name, monkeypatch):
    """On a CPU the counter of AdamW is on the same device, so another device is asked about."""
    ps = parameters()
    optimizer = OPTIMIZERS[name](ps)
    with_gradients(ps)
    optimizer.step()
    if name == "AdamW":
        for p in ps:
            optimizer.state[p]["step"] = 1.0
    assert step_unless(GOOD, optimizer, exactly=True) is (name in EXACT)


@pytest.mark.parametrize("name", ["fused SGD", "SGD with momentum", "AdamW", "a user's"])
def test_state_that_does_not_exist_yet_is_not_put_back(name):
    ps = parameters()
    optimizer = OPTIMIZERS[name](ps)
    before = [p.detach().clone() for p in ps]
    with_gradients(ps, float("nan"))
    assert not step_unless(BAD, optimizer, exactly=False)
    assert all(map(torch.equal, before, ps)), "and there was no step"


def test_large_models_are_not_copied(monkeypatch):
    ps = parameters()
    optimizer = torch.optim.SGD(ps, 0.1)
    with_gradients(ps)
    monkeypatch.setattr(masked_steps, "MOST_COPIED", 17 * 4)
    assert step_unless(GOOD, optimizer, exactly=True)
    monkeypatch.setattr(masked_steps, "MOST_COPIED", 17 * 4 - 1)
    assert not step_unless(GOOD, optimizer, exactly=True)


def test_hooks_never_see_an_update_that_is_undone():
    ps, seen = parameters(), []
    optimizer = torch.optim.SGD(ps, 0.1)
    optimizer.register_step_post_hook(lambda *_: seen.append(ps[0].detach().clone()))
    with_gradients(ps, float("nan"))
    assert not step_unless(BAD, optimizer, exactly=False) and seen == []


def test_an_optimizer_of_no_known_kind():
    assert not step_unless(GOOD, object(), exactly=False)


def test_a_kernel_that_was_switched_off_is_not_trusted():
    """A group that says fused=False takes a path that does not look at found_inf."""
    ps = parameters()
    optimizer = torch.optim.SGD(ps, 0.1, fused=True)
    optimizer.param_groups[0]["fused"] = False
    before = [p.detach().clone() for p in ps]
    with_gradients(ps, float("nan"))
    assert step_unless(BAD, optimizer, exactly=True)
    assert all(map(torch.equal, before, ps))
