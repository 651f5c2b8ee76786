"""Packages that arguments can require, and whether they are installed. The check imports nothing."""

import sys
from importlib.util import find_spec

from ..writers import WRITERS


def installed(module: str) -> bool:
    """Whether the module can be imported. A plain folder of that name does not count."""
    if module in sys.modules:
        return sys.modules[module] is not None
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None


def usual_writers(every: bool) -> list[str]:
    """Installed writers that need no account: those used by default, or with `every`, all of them."""
    return [
        name
        for name, writer in WRITERS.items()
        if writer.released and not writer.account and (every or writer.usual) and installed(writer.module)
    ]


# Optimizers that the torch backend does not support, even if their package is installed, and why.
_IN_BACKWARD = (
    "updates the weights during the backward pass, so that there are no gradients to accumulate, to clip or to check"
)
_EIGHT_BIT = "keeps 8-bit state that runs on GPUs only and was never tried in checkpoints"
NOT_DRIVEN = {
    "adamw_torch_xla": "needs XLA's own step",
    "galore_adamw_8bit": _EIGHT_BIT,
    "galore_adamw_layerwise": _IN_BACKWARD,
    "galore_adamw_8bit_layerwise": _IN_BACKWARD,
    "galore_adafactor_layerwise": _IN_BACKWARD,
    "apollo_adamw_layerwise": _IN_BACKWARD,
    "lomo": _IN_BACKWARD,
    "adalomo": _IN_BACKWARD,
}
_BITSANDBYTES = ("bitsandbytes", "bitsandbytes")
_GALORE = ("galore_torch", "galore-torch")
# optim -> (module, package to install)
OPTIMIZERS = {
    "adamw_apex_fused": ("apex", "apex (from its source repository)"),
    "adamw_torch_xla": ("torch_xla", "torch-xla"),
    "adamw_torch_npu_fused": ("torch_npu", "torch-npu"),
    "adamw_torch_4bit": ("torchao", "torchao"),
    "adamw_torch_8bit": ("torchao", "torchao"),
    "ademamix": _BITSANDBYTES,
    "adamw_bnb_8bit": _BITSANDBYTES,
    "adamw_8bit": _BITSANDBYTES,
    "ademamix_8bit": _BITSANDBYTES,
    "lion_8bit": _BITSANDBYTES,
    "lion_32bit": _BITSANDBYTES,
    "paged_adamw_32bit": _BITSANDBYTES,
    "paged_adamw_8bit": _BITSANDBYTES,
    "paged_ademamix_32bit": _BITSANDBYTES,
    "paged_ademamix_8bit": _BITSANDBYTES,
    "paged_lion_32bit": _BITSANDBYTES,
    "paged_lion_8bit": _BITSANDBYTES,
    "rmsprop_bnb": _BITSANDBYTES,
    "rmsprop_bnb_8bit": _BITSANDBYTES,
    "rmsprop_bnb_32bit": _BITSANDBYTES,
    "galore_adamw": _GALORE,
    "galore_adamw_8bit": _GALORE,
    "galore_adafactor": _GALORE,
    "galore_adamw_layerwise": _GALORE,
    "galore_adamw_8bit_layerwise": _GALORE,
    "galore_adafactor_layerwise": _GALORE,
    "lomo": ("lomo_optim", "lomo-optim"),
    "adalomo": ("lomo_optim", "lomo-optim"),
    "grokadamw": ("grokadamw", "grokadamw"),
    "schedule_free_radam": ("schedulefree", "schedulefree"),
    "schedule_free_adamw": ("schedulefree", "schedulefree"),
    "schedule_free_sgd": ("schedulefree", "schedulefree"),
    "apollo_adamw": ("apollo_torch", "apollo-torch"),
    "apollo_adamw_layerwise": ("apollo_torch", "apollo-torch"),
    "stable_adamw": ("optimi", "torch-optimi"),
}
