"""Steps of optimizers whose parameters are on different meshes.

torch's fused and foreach kernels take the parameters of a group together, and cannot mix DTensors of several meshes
with plain tensors. For a step, each group is split into groups of one mesh; outside of it they are as they were made.
"""

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from ...errors import UnsupportedError


def step_by_mesh(optimizer: Any) -> None:
    """Have an optimizer step the parameters of each mesh by themselves."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UnsupportedError(
            f"{type(optimizer).__name__} is not a torch.optim.Optimizer, and may not be able to step parameters that "
            "are divided in different ways (tensor_parallel_size). Use one that is, such as optim='adamw_torch'."
        )
    if not getattr(optimizer, "_steps_by_mesh", False):
        optimizer._steps_by_mesh = True
        whole: list[Any] = []
        optimizer.register_step_pre_hook(lambda opt, args, kwargs: _split(opt, whole))
        optimizer.register_step_post_hook(lambda opt, args, kwargs: _join(opt, whole))


def _mesh_of(p: torch.Tensor) -> Any:
    return p.device_mesh if isinstance(p, DTensor) else None


def _split(optimizer: Any, whole: list[Any]) -> None:
    whole[:] = [(group, []) for group in optimizer.param_groups]
    for group, parts in whole:
        by_mesh: dict[Any, list[torch.Tensor]] = {}
        for p in group["params"]:
            by_mesh.setdefault(_mesh_of(p), []).append(p)
        parts += [{**group, "params": params} for params in by_mesh.values()] or [group]
    optimizer.param_groups = [part for _, parts in whole for part in parts]


def _join(optimizer: Any, whole: list[Any]) -> None:
    """An option that the step has changed, such as a count, is the same in all parts of a group."""
    for group, (first, *_) in whole:
        group.update({key: value for key, value in first.items() if key != "params"})
    optimizer.param_groups = [group for group, _ in whole]
    whole.clear()
