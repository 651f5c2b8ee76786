"""Optimizer steps that a flag on the device leaves out or undoes, so that the host does not wait for it."""

from typing import Any

import torch

from .optimizers import groups, step_optimizer
from .tensors import keep, size

# Up to this many bytes of weights and state are copied before a step and put back after it. Copies of more would take
# longer than the host sync that they save, and memory that a training loop does not need otherwise.
MOST_COPIED = 64 << 20


def step_unless(bad: torch.Tensor, optimizer: Any, exactly: bool) -> bool:
    """Step the optimizer; the device leaves weights and state as they were if the flag is set. False, without a step,
    if the flag has to be read first. `exactly`: the run continues afterwards, so counters on the host matter too."""
    if _has_fused_kernel(optimizer):
        optimizer.grad_scale, optimizer.found_inf = None, bad.float().reshape(())
        try:
            step_optimizer(optimizer)
        finally:
            del optimizer.grad_scale, optimizer.found_inf
        return True
    tensors = _changing(optimizer, bad.device, exactly)
    if tensors is None:
        return False
    with torch.no_grad():
        copies = keep(tensors, [None] * len(tensors))
        step_optimizer(optimizer)
        for tensor, copy in zip(tensors, copies, strict=True):
            torch.where(bad, copy, tensor, out=tensor)
    return True


def _has_fused_kernel(optimizer: Any) -> bool:
    """Whether the optimizer obeys found_inf in this step."""
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return False
    # Groups may have been told otherwise. In its first step, SGD's kernel leaves momentum uninitialised if it is set.
    is_sgd = isinstance(optimizer, torch.optim.SGD)
    return all(group.get("fused", True) for group in groups(optimizer)) and not (is_sgd and _lacks_state(optimizer))


def _lacks_state(optimizer: Any) -> bool:
    """Whether the next step creates state, which cannot be put back then."""
    return any(
        p.grad is not None and p not in optimizer.state
        for group in groups(optimizer)
        for p in group["params"]
        if not (isinstance(optimizer, torch.optim.SGD) and group["momentum"] == 0)
    )


def _changing(optimizer: Any, device: torch.device, exactly: bool) -> list[torch.Tensor] | None:
    """The tensors that a step changes; None if they are not known before it, or too large to be copied."""
    if not isinstance(optimizer, torch.optim.Optimizer) or _lacks_state(optimizer):
        return None
    if optimizer._optimizer_step_post_hooks:  # which would see the weights before they are put back
        return None
    if exactly and not type(optimizer).__module__.startswith("torch.optim."):
        return None  # it may have state elsewhere
    found: list[torch.Tensor] = []
    for p in (p for group in groups(optimizer) for p in group["params"] if p.grad is not None):
        values = [value for value in optimizer.state.get(p, {}).values() if value is not None]
        on_device = [value for value in values if isinstance(value, torch.Tensor) and value.device == device]
        if exactly and len(on_device) < len(values):
            return None
        found += [p, *on_device]
    is_plain = all(tensor.device == device and not hasattr(tensor, "device_mesh") for tensor in found)
    return found if is_plain and sum(map(size, found)) <= MOST_COPIED else None
