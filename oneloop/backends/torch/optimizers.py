"""Optimizers by name, parameter groups, and their learning rates."""

import inspect
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import nn

from ... import behaviour
from ...errors import ArgumentError, RefusedError
from .._common.helpers import from_package, optimizer_options

# They warm up by themselves, since they are used without a schedule.
WITH_OWN_WARMUP = ("schedule_free_adamw", "schedule_free_sgd")
ADAMW_NAMES = ("adamw", "adamw_torch", "adamw_hf", "adamw_torch_fused")


# As in transformers, whose users look at both groups, even if one is empty or nothing decays.
TWO_GROUPS = True


def is_optimizer(value: Any) -> bool:
    return isinstance(value, torch.optim.Optimizer) or (hasattr(value, "step") and hasattr(value, "param_groups"))


def class_and_options(args: Any, model: nn.Module | None = None) -> tuple[Any, dict[str, Any]]:
    """The optimizer class for args.optim, and its keyword arguments."""
    name = str(getattr(args.optim, "value", args.optim))
    extra = optimizer_options(args.optim_args)
    adam = {"betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon}
    options: dict[str, Any] = {"lr": args.learning_rate}
    if name in ADAMW_NAMES:
        # One AdamW under all its names: the fused kernel is the fastest on every device that supports it.
        fused = _fused_works(model)
        return torch.optim.AdamW, options | adam | ({"fused": True} if fused else {}) | extra
    if name == "adamw_anyprecision":
        from .anyprecision import AnyPrecisionAdamW

        return AnyPrecisionAdamW, options | adam | AnyPrecisionAdamW.read_options(extra)
    if name == "adafactor":
        return _adafactor(options, extra)
    if name == "muon":
        return _muon(args, model, options | adam, extra)
    if name in _PROJECTING:
        return _projecting(name, args, model, options, adam, extra)
    simple: dict[str, Callable[[], type]] = {
        "sgd": lambda: torch.optim.SGD,
        "adagrad": lambda: torch.optim.Adagrad,
        "rmsprop": lambda: torch.optim.RMSprop,
    }
    if name == "sgd" and not args.fp16 and _fused_works(model, "_fused_sgd_", ("cuda", "xpu", "mps")):
        # It can leave an update out on the device. Not with a loss scaler: an overflow in the first step would leave
        # the kernel's momentum uninitialised. Sparse gradients have no fused kernel.
        is_chosen = {"fused", "foreach", "differentiable"} & extra.keys() or _has_sparse_gradients(model)
        options |= {} if is_chosen else {"fused": True}
    if name in simple:
        return simple[name](), options | extra
    if name in _PACKAGED:
        package, module, attribute, takes_adam = _PACKAGED[name]
        found = from_package(package, module, attribute, name)
        if name in WITH_OWN_WARMUP:
            options["warmup_steps"] = args.get_warmup_steps(max(args.max_steps, 0))
        return found, options | (adam if takes_adam else {}) | extra
    raise ArgumentError(f"optim={name!r} is not supported on torch; use adamw_torch, adafactor, sgd, rmsprop, adagrad")


def _adafactor(options: dict[str, Any], extra: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The class that a script expects, with which it may compare, or ours."""
    expected = behaviour.current().optimizer_factories.get("adafactor")
    found = None if expected is None else expected()
    if found is not None:
        return found, options | {"scale_parameter": False, "relative_step": False} | extra
    from .adafactor import Adafactor

    return Adafactor, options | extra


def _muon(
    args: Any, model: nn.Module | None, options: dict[str, Any], extra: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    from . import muon, target_groups

    muon.check_release()
    extra = dict(extra)
    of_matrices = {"use_muon": True, "lr": extra.pop("muon_lr", args.learning_rate), "eps": muon.MATRIX_EPS}
    options |= ({"fused": True} if _fused_works(model) else {}) | extra
    if model is not None:
        targets = target_groups.hidden_matrices(model, args.optim_target_modules)
        options["params"] = target_groups.TargetGroups(model, targets, of_matrices, args.weight_decay)
    return muon.MuonWithAdamW, options


# Options of the groups of GaLore and APOLLO whose gradients are projected, with the defaults of transformers.
_GALORE = {"rank": 128, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"}
_APOLLO = _GALORE | {"proj": "random", "scale_type": "channel", "scale": 1.0}
_PROJECTING: dict[str, dict[str, Any]] = {
    "galore_adamw": _GALORE,
    "galore_adafactor": _GALORE,
    "apollo_adamw": _APOLLO,
}


def _projecting(
    name: str, args: Any, model: nn.Module | None, options: dict[str, Any], adam: dict[str, Any], extra: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """GaLore and APOLLO: the gradients of some layers are projected to a lower rank."""
    from . import target_groups

    package, module, attribute, takes_adam = _PACKAGED[name]
    cls = from_package(package, module, attribute, name)
    of_targets = {key: extra.get(key, value) for key, value in _PROJECTING[name].items()}
    extra = {key: value for key, value in extra.items() if key not in of_targets}
    options |= adam if takes_adam else {"scale_parameter": False, "relative_step": False}
    if name == "galore_adamw":
        options["no_deprecation_warning"] = True
    options |= extra
    if model is not None:
        targets = target_groups.linear_weights(model, args.optim_target_modules, name)
        options["params"] = target_groups.TargetGroups(model, targets, of_targets, args.weight_decay)
    return cls, options


# name: (package on the index, module, class, takes Adam's betas and eps)
_PACKAGED = {
    "adamw_bnb_8bit": ("bitsandbytes", "bitsandbytes.optim", "AdamW8bit", True),
    "adamw_8bit": ("bitsandbytes", "bitsandbytes.optim", "AdamW8bit", True),
    "paged_adamw_8bit": ("bitsandbytes", "bitsandbytes.optim", "PagedAdamW8bit", True),
    "paged_adamw_32bit": ("bitsandbytes", "bitsandbytes.optim", "PagedAdamW32bit", True),
    "lion_32bit": ("bitsandbytes", "bitsandbytes.optim", "Lion32bit", False),
    "lion_8bit": ("bitsandbytes", "bitsandbytes.optim", "Lion8bit", False),
    "paged_lion_32bit": ("bitsandbytes", "bitsandbytes.optim", "PagedLion32bit", False),
    "paged_lion_8bit": ("bitsandbytes", "bitsandbytes.optim", "PagedLion8bit", False),
    "ademamix": ("bitsandbytes", "bitsandbytes.optim", "AdEMAMix", False),
    "ademamix_8bit": ("bitsandbytes", "bitsandbytes.optim", "AdEMAMix8bit", False),
    "paged_ademamix_32bit": ("bitsandbytes", "bitsandbytes.optim", "PagedAdEMAMix32bit", False),
    "paged_ademamix_8bit": ("bitsandbytes", "bitsandbytes.optim", "PagedAdEMAMix8bit", False),
    "rmsprop_bnb": ("bitsandbytes", "bitsandbytes.optim", "RMSprop", False),
    "rmsprop_bnb_8bit": ("bitsandbytes", "bitsandbytes.optim", "RMSprop8bit", False),
    "rmsprop_bnb_32bit": ("bitsandbytes", "bitsandbytes.optim", "RMSprop32bit", False),
    "adamw_torch_8bit": ("torchao", "torchao.optim", "AdamW8bit", True),
    "adamw_torch_4bit": ("torchao", "torchao.optim", "AdamW4bit", True),
    "grokadamw": ("grokadamw", "grokadamw", "GrokAdamW", True),
    "stable_adamw": ("torch-optimi", "optimi", "StableAdamW", True),
    "schedule_free_adamw": ("schedulefree", "schedulefree", "AdamWScheduleFree", True),
    "schedule_free_radam": ("schedulefree", "schedulefree", "RAdamScheduleFree", True),
    "schedule_free_sgd": ("schedulefree", "schedulefree", "SGDScheduleFree", False),
    "adamw_apex_fused": ("apex", "apex.optimizers", "FusedAdam", True),
    "adamw_torch_npu_fused": ("torch_npu", "torch_npu.optim", "NpuFusedAdamW", True),
    "galore_adamw": ("galore-torch", "galore_torch", "GaLoreAdamW", True),
    "galore_adamw_8bit": ("galore-torch", "galore_torch", "GaLoreAdamW8bit", True),
    "galore_adafactor": ("galore-torch", "galore_torch", "GaLoreAdafactor", False),
    "apollo_adamw": ("apollo-torch", "apollo_torch", "APOLLOAdamW", True),
    "lomo": ("lomo-optim", "lomo_optim", "Lomo", False),
    "adalomo": ("lomo-optim", "lomo_optim", "AdaLomo", False),
}


def _fused_works(
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
    from . import schedulers

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


def own_schedule(optimizer: Any) -> None:
    """The schedule inside an optimizer: none on torch, where schedules are separate objects."""


def schedule_alone(rate: float, factor: Callable[[int], float]) -> NoReturn:
    """A schedule with which an optimizer can be created; only Paddle has such schedules."""
    raise RefusedError(
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
