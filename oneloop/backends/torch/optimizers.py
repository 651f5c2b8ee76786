"""Optimizers by name, parameter groups, and their learning rates."""

import inspect
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NoReturn

import torch
from torch import nn

from ...errors import ArgumentError, MissingPackageError, UnsupportedError
from ...optim import catalog
from .._common.helpers import optimizer_options

# Scripts look at both groups, even if one is empty or nothing decays.
TWO_GROUPS = True


def is_optimizer(value: Any) -> bool:
    return isinstance(value, torch.optim.Optimizer) or (hasattr(value, "step") and hasattr(value, "param_groups"))


def class_and_options(args: Any, model: nn.Module | None = None) -> tuple[Any, dict[str, Any]]:
    """The optimizer class for args.optim, and its keyword arguments."""
    chosen = catalog.chosen(args)
    if chosen is None or not chosen.has_class:
        name = str(getattr(args.optim, "value", args.optim))
        raise ArgumentError(
            f"optim={name!r} is not supported on torch; use adamw_torch, adafactor, sgd, rmsprop, adagrad"
        )
    extra = optimizer_options(args.optim_args)
    options: dict[str, Any] = {"lr": args.learning_rate}
    if chosen.betas:
        options |= {"betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon}
    if chosen.builder:
        return import_module(f".{chosen.builder}", __package__).class_and_options(args, model, options, extra)
    if chosen.name in catalog.ADAMW_NAMES and fused_works(model):
        # One AdamW under all its names: the fused kernel is the fastest on every device that supports it.
        options["fused"] = True
    if chosen.name == "sgd" and not args.fp16 and fused_works(model, "_fused_sgd_", ("cuda", "xpu", "mps")):
        # It can leave an update out on the device. Not with a loss scaler: an overflow in the first step would leave
        # the kernel's momentum uninitialised. Sparse gradients have no fused kernel.
        is_chosen = {"fused", "foreach", "differentiable"} & extra.keys() or _has_sparse_gradients(model)
        options |= {} if is_chosen else {"fused": True}
    if chosen.own_warmup:
        options["warmup_steps"] = args.get_warmup_steps(max(args.max_steps, 0))
    return class_of(chosen), options | extra


def class_of(optimizer: catalog.Optimizer) -> Any:
    """The class of torch, or of another package."""
    module, _, name = optimizer.source.partition(":")
    if optimizer.package and find_spec(optimizer.module) is None:
        raise MissingPackageError(
            f"optim={optimizer.name!r} needs the package {optimizer.package}: pip install {optimizer.package}"
        )
    return getattr(import_module(module), name)


def fused_works(
    model: nn.Module | None, kernel: str = "_fused_adamw_", known: tuple[str, ...] = ("cpu", "cuda", "xpu", "mps")
) -> bool:
    """Whether all parameters are on one device that has the kernel: a known one, or one of another package."""
    devices = {p.device.type for p in model.parameters() if p.requires_grad} if model is not None else {"cpu"}
    if len(devices) != 1:
        return False
    (kind,) = devices
    if kind == torch._C._get_privateuse1_backend_name():
        return torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{kernel}", "PrivateUse1")
    return kind in known


def _has_sparse_gradients(model: nn.Module | None) -> bool:
    return model is not None and any(getattr(module, "sparse", False) is True for module in model.modules())


def build(cls: Any, groups: list[dict[str, Any]], options: dict[str, Any]) -> Any:
    """An optimizer over these groups; an error lists options that the class does not accept."""
    accepted = inspect.signature(cls).parameters
    wrong = [key for key in options if key not in accepted]
    if wrong and not any(p.kind == p.VAR_KEYWORD for p in accepted.values()):
        raise ArgumentError(
            f"{cls.__name__} does not accept {', '.join(wrong)} (from optim_args or optimizer_cls_and_kwargs); it "
            f"accepts {', '.join(list(accepted)[1:])}."
        )
    try:
        return cls(groups, **options)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"cannot create {cls.__name__}: {error}. Check learning_rate, the adam_ arguments, optim_args and "
            "optimizer_cls_and_kwargs."
        ) from error


def groups(optimizer: Any) -> list[dict[str, Any]]:
    """The parameter groups of an optimizer, each with its weight decay; none if it is not a torch optimizer."""
    return getattr(optimizer, "param_groups", [])


def learning_rates(optimizer: Any) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


def set_learning_rates(optimizer: Any, rates: list[float]) -> None:
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        if isinstance(group["lr"], torch.Tensor):  # capturable optimizers keep it on the device
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def scheduler_class(rule: Any = None) -> Any:
    """The class of schedulers by the step, or of those that follow a metric by this rule: also torch's own."""
    from . import schedulers  # not for mindtorch, which uses the rest of this module

    return schedulers.class_for(rule)


def step_optimizer(optimizer: Any) -> None:
    """Step the optimizer. Groups of torch's own optimizers that differ only in their parameters share one kernel."""
    groups: Any = getattr(optimizer, "param_groups", ())
    joined = _joined(optimizer, *groups) if len(groups) == 2 else None
    if joined is None:
        optimizer.step()
        return
    optimizer.param_groups = [joined]
    try:
        optimizer.step()
    finally:
        optimizer.param_groups = groups


def _joined(optimizer: Any, first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any] | None:
    """One group in place of the two, if it makes no difference."""
    if type(optimizer) not in _JOINED:
        return None
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:  # which may look at the groups
        return None
    if isinstance(first["lr"], torch.Tensor):  # whose comparison is a host sync
        return None
    both = {"params": [*first["params"], *second["params"]]}
    joined = first | both
    return joined if joined == second | both else None


# They change nothing in their groups. mindtorch has not all of them.
_JOINED = {vars(torch.optim).get(name) for name in ("AdamW", "Adam", "SGD", "Adagrad", "RMSprop")}


def attached_schedule(optimizer: Any) -> None:
    """The schedule inside an optimizer: none on torch, where schedules are separate objects."""


def make_standalone_schedule(rate: float, factor: Callable[[int], float]) -> NoReturn:
    """A schedule with which an optimizer can be created; only Paddle has such schedules."""
    raise UnsupportedError(
        "the schedule needs an optimizer, but there is none yet: call create_optimizer before create_scheduler."
    )


def attach(optimizer: Any, scheduler: Any) -> None:
    """Connect an optimizer to a schedule that was created without one: not needed, torch's schedules have their
    optimizer."""


def group_of(optimizer: Any, parameter: nn.Parameter | None) -> Any:
    """The group of the parameter, or all groups."""
    if parameter is None:
        return [group["params"] for group in optimizer.param_groups]
    return next((group for group in optimizer.param_groups if any(p is parameter for p in group["params"])), None)
