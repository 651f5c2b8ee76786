"""Every optimizer that `optim` can name: its name, and a row that says what it is and needs.

Arguments, backends, warnings and the memory plan read this table; nothing else lists optimizers by name. To add one,
add its name and its row, and where the row names a module of backends/torch, that module.
"""

from dataclasses import dataclass
from typing import Any, Literal

from ..enums import TextEnum


class OptimizerNames(TextEnum):
    """The values of `optim`. All spellings of AdamW select AdamW."""

    ADAMW = "adamw"
    ADAMW_HF = "adamw_hf"
    ADAMW_TORCH = "adamw_torch"
    ADAMW_TORCH_FUSED = "adamw_torch_fused"
    ADAMW_TORCH_XLA = "adamw_torch_xla"
    ADAMW_TORCH_NPU_FUSED = "adamw_torch_npu_fused"
    ADAMW_APEX_FUSED = "adamw_apex_fused"
    ADAFACTOR = "adafactor"
    ADAMW_ANYPRECISION = "adamw_anyprecision"
    ADAMW_TORCH_4BIT = "adamw_torch_4bit"
    ADAMW_TORCH_8BIT = "adamw_torch_8bit"
    ADEMAMIX = "ademamix"
    SGD = "sgd"
    ADAGRAD = "adagrad"
    ADAMW_BNB = "adamw_bnb_8bit"
    ADAMW_8BIT = "adamw_8bit"
    ADEMAMIX_8BIT = "ademamix_8bit"
    LION_8BIT = "lion_8bit"
    LION = "lion_32bit"
    PAGED_ADAMW = "paged_adamw_32bit"
    PAGED_ADAMW_8BIT = "paged_adamw_8bit"
    PAGED_ADEMAMIX = "paged_ademamix_32bit"
    PAGED_ADEMAMIX_8BIT = "paged_ademamix_8bit"
    PAGED_LION = "paged_lion_32bit"
    PAGED_LION_8BIT = "paged_lion_8bit"
    RMSPROP = "rmsprop"
    RMSPROP_BNB = "rmsprop_bnb"
    RMSPROP_8BIT = "rmsprop_bnb_8bit"
    RMSPROP_32BIT = "rmsprop_bnb_32bit"
    GALORE_ADAMW = "galore_adamw"
    GALORE_ADAMW_8BIT = "galore_adamw_8bit"
    GALORE_ADAFACTOR = "galore_adafactor"
    GALORE_ADAMW_LAYERWISE = "galore_adamw_layerwise"
    GALORE_ADAMW_8BIT_LAYERWISE = "galore_adamw_8bit_layerwise"
    GALORE_ADAFACTOR_LAYERWISE = "galore_adafactor_layerwise"
    LOMO = "lomo"
    ADALOMO = "adalomo"
    GROKADAMW = "grokadamw"
    SCHEDULE_FREE_RADAM = "schedule_free_radam"
    SCHEDULE_FREE_ADAMW = "schedule_free_adamw"
    SCHEDULE_FREE_SGD = "schedule_free_sgd"
    APOLLO_ADAMW = "apollo_adamw"
    APOLLO_ADAMW_LAYERWISE = "apollo_adamw_layerwise"
    STABLE_ADAMW = "stable_adamw"
    MUON = "muon"


@dataclass(frozen=True)
class Optimizer:
    """One optimizer.

    source: its class on torch, "module:Class"; without a class, only the module. builder: the module of backends/torch
    whose `class_and_options` chooses class and options, where the learning rate, betas and optim_args are not all of
    them. package: what to install. everywhere: all frameworks have it. betas: it takes adam_beta1, adam_beta2 and
    adam_epsilon. own_warmup: it is used without a schedule, and warms up by itself. targets: whether it takes
    optim_target_modules. family: what people call it, for messages. sharding: what it can be sharded by: "all",
    "tensors" (not DeepSpeed, whose buffers have no matrices), or "none". unsupported: why it cannot be used even if its
    package is installed. instead: what to use in its place. state_copies: how many float32 tensors of a parameter's
    size it keeps, if that is known.
    """

    name: str
    source: str = ""
    package: str = ""
    builder: str = ""
    everywhere: bool = False
    betas: bool = False
    own_warmup: bool = False
    targets: Literal["", "optional", "required"] = ""
    family: str = ""
    sharding: Literal["all", "tensors", "none"] = "all"
    unsupported: str = ""
    instead: str = "adamw_torch"
    state_copies: int | None = None

    @property
    def module(self) -> str:
        """The module that has to be installed."""
        return self.source.partition(":")[0].partition(".")[0] if self.package else ""

    @property
    def has_class(self) -> bool:
        return not self.source.endswith(":")


def _adamw(name: str) -> Optimizer:
    return Optimizer(name, "torch.optim:AdamW", everywhere=True, betas=True, state_copies=2)


def _bitsandbytes(name: str, cls: str, betas: bool = False) -> Optimizer:
    return Optimizer(name, f"bitsandbytes.optim:{cls}", "bitsandbytes", betas=betas)


def _galore(name: str, cls: str = "", **others: Any) -> Optimizer:
    return Optimizer(
        name, f"galore_torch:{cls}", "galore-torch", "projectors", targets="required", family="GaLore",
        sharding="none", **others,
    )  # fmt: skip


def _apollo(name: str, cls: str = "", **others: Any) -> Optimizer:
    return Optimizer(
        name, f"apollo_torch:{cls}", "apollo-torch", "projectors", targets="required", family="APOLLO",
        sharding="none", **others,
    )  # fmt: skip


_IN_BACKWARD = (
    "updates the weights during the backward pass, so that there are no gradients to accumulate, to clip or to check"
)
_EIGHT_BIT = "keeps 8-bit state that runs on GPUs only and was never tried in checkpoints"

_ROWS = (
    *map(_adamw, ("adamw", "adamw_torch", "adamw_hf", "adamw_torch_fused")),
    Optimizer("sgd", "torch.optim:SGD", everywhere=True),
    Optimizer("adagrad", "torch.optim:Adagrad", everywhere=True, state_copies=1),
    Optimizer("rmsprop", "torch.optim:RMSprop", everywhere=True),
    Optimizer("adamw_apex_fused", "apex.optimizers:FusedAdam", "apex (from its source repository)", betas=True),
    Optimizer("adamw_torch_xla", "torch_xla:", "torch-xla", betas=True, unsupported="needs XLA's own step"),
    Optimizer("adamw_torch_npu_fused", "torch_npu.optim:NpuFusedAdamW", "torch-npu", betas=True),
    Optimizer("adamw_torch_4bit", "torchao.optim:AdamW4bit", "torchao", betas=True),
    Optimizer("adamw_torch_8bit", "torchao.optim:AdamW8bit", "torchao", betas=True),
    _bitsandbytes("ademamix", "AdEMAMix"),
    _bitsandbytes("adamw_bnb_8bit", "AdamW8bit", betas=True),
    _bitsandbytes("adamw_8bit", "AdamW8bit", betas=True),
    _bitsandbytes("ademamix_8bit", "AdEMAMix8bit"),
    _bitsandbytes("lion_8bit", "Lion8bit"),
    _bitsandbytes("lion_32bit", "Lion32bit"),
    _bitsandbytes("paged_adamw_32bit", "PagedAdamW32bit", betas=True),
    _bitsandbytes("paged_adamw_8bit", "PagedAdamW8bit", betas=True),
    _bitsandbytes("paged_ademamix_32bit", "PagedAdEMAMix32bit"),
    _bitsandbytes("paged_ademamix_8bit", "PagedAdEMAMix8bit"),
    _bitsandbytes("paged_lion_32bit", "PagedLion32bit"),
    _bitsandbytes("paged_lion_8bit", "PagedLion8bit"),
    _bitsandbytes("rmsprop_bnb", "RMSprop"),
    _bitsandbytes("rmsprop_bnb_8bit", "RMSprop8bit"),
    _bitsandbytes("rmsprop_bnb_32bit", "RMSprop32bit"),
    _galore("galore_adamw", "GaLoreAdamW", betas=True),
    _galore("galore_adamw_8bit", "GaLoreAdamW8bit", betas=True, unsupported=_EIGHT_BIT, instead="galore_adamw"),
    _galore("galore_adafactor", "GaLoreAdafactor", instead="adafactor"),
    _galore("galore_adamw_layerwise", betas=True, unsupported=_IN_BACKWARD, instead="galore_adamw"),
    _galore("galore_adamw_8bit_layerwise", betas=True, unsupported=_IN_BACKWARD, instead="galore_adamw"),
    _galore("galore_adafactor_layerwise", unsupported=_IN_BACKWARD, instead="galore_adafactor"),
    Optimizer("lomo", "lomo_optim:Lomo", "lomo-optim", unsupported=_IN_BACKWARD),
    Optimizer("adalomo", "lomo_optim:AdaLomo", "lomo-optim", unsupported=_IN_BACKWARD),
    Optimizer("grokadamw", "grokadamw:GrokAdamW", "grokadamw", betas=True),
    Optimizer("schedule_free_radam", "schedulefree:RAdamScheduleFree", "schedulefree", betas=True),
    Optimizer("schedule_free_adamw", "schedulefree:AdamWScheduleFree", "schedulefree", betas=True, own_warmup=True),
    Optimizer("schedule_free_sgd", "schedulefree:SGDScheduleFree", "schedulefree", own_warmup=True, instead="sgd"),
    _apollo("apollo_adamw", "APOLLOAdamW", betas=True),
    _apollo("apollo_adamw_layerwise", betas=True, unsupported=_IN_BACKWARD, instead="apollo_adamw"),
    Optimizer("stable_adamw", "optimi:StableAdamW", "torch-optimi", betas=True),
    Optimizer("adafactor", builder="adafactor"),
    Optimizer("adamw_anyprecision", builder="anyprecision", betas=True),
    Optimizer("muon", builder="muon", betas=True, targets="optional", family="Muon", sharding="tensors"),
)
OPTIMIZERS = {row.name: row for row in _ROWS}
ADAMW_NAMES = tuple(row.name for row in _ROWS if row.everywhere and row.source.endswith(":AdamW"))


def chosen(args: Any) -> Optimizer | None:
    """The row of args.optim; None for a name that is not in the table."""
    return OPTIMIZERS.get(str(getattr(args.optim, "value", args.optim)))


def families_with_targets() -> str:
    """The optimizers that take optim_target_modules, for messages: "A, B and C"."""
    *first, last = dict.fromkeys(row.family for row in _ROWS if row.targets)
    return f"{', '.join(first)} and {last}"
