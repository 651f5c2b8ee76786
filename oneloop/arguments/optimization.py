"""The optimizer, the learning rate's schedule, and the length of the run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..enums import OptimizerNames, SchedulerType
from ..errors import ArgumentError
from . import values
from .fields import Group, declare

if TYPE_CHECKING:
    from .given import Text, Words

arg = declare("Optimization")
PROJECTING = ("galore", "apollo")  # optimizers that work on named modules only


def to_optim_args(name: str, value: "Mapping[str, Any] | Text") -> str:
    """ "key=value, key=value"; a dict is written that way."""
    if isinstance(value, Mapping):
        value = ",".join(f"{key}={item}" for key, item in value.items())
    text = values.to_text(name, value)
    if not all("=" in part for part in text.split(",") if part.strip()):
        raise values.wrong(name, value, 'text such as "key=value,key=value"')
    return text


def to_modules(name: str, value: "Words") -> str | list[str]:
    """A pattern stays text: splitting it at commas or spaces would break it."""
    return value if isinstance(value, str) else values.to_words(name, value)


@dataclass
class Optimization(Group):
    learning_rate: float = arg(5e-5, "The highest learning rate of the schedule.", low=0)
    weight_decay: float = arg(0.0, "Decay of the weights, but not of biases and norm weights.", low=0)
    adam_beta1: float = arg(0.9, "AdamW's decay of the mean.", low=0, below=1)
    adam_beta2: float = arg(0.999, "AdamW's decay of the variance.", low=0, below=1)
    adam_epsilon: float = arg(1e-8, "AdamW's epsilon.", low=0)
    max_grad_norm: float = arg(
        1.0, "Gradients are scaled down to this norm; 0 turns it off. The norm is logged.", low=0, finite=False
    )
    optim: str = arg(
        "adamw_torch",
        "The optimizer. Every spelling of AdamW is AdamW, except adamw_anyprecision, which is its own; one that "
        "needs a package says which.",
        enum=OptimizerNames,
        shown="adamw",
    )
    optim_args: str | None = arg(
        None, 'Further options of the optimizer: "key=value,key=value".', convert=to_optim_args
    )
    optim_target_modules: str | list[str] | None = arg(
        None, "For GaLore and APOLLO optimizers: the modules they work on.", convert=to_modules
    )
    lr_scheduler_type: str = arg("linear", "How the learning rate moves.", enum=SchedulerType)
    lr_scheduler_kwargs: dict[str, Any] | None = arg(None, "Further options of the schedule, as a dict or as JSON.")
    warmup_steps: float = arg(
        0,
        "Steps over which the learning rate rises from 0; below 1 it is a ratio of all steps.",
        convert=values.to_steps,
    )
    warmup_ratio: float = arg(0.0, "The same as a ratio of all steps; warmup_steps wins.", low=0, high=1)
    num_train_epochs: float = arg(3.0, "Passes over the data; fractions of an epoch are trained.", low=0)
    max_steps: int = arg(-1, "Updates in all, when it is not -1; wins over num_train_epochs.", low=-1, never=(0,))
    label_smoothing_factor: float = arg(0.0, "Spreads this share of each label over all classes.", low=0, below=1)
    neftune_noise_alpha: float | None = arg(None, "Strength of NEFTune's noise on the embeddings.", low=0)

    def check(self) -> None:
        projecting = str(self.optim).startswith(PROJECTING)
        if self.optim_target_modules and not projecting:
            raise ArgumentError(
                f"optim_target_modules={self.optim_target_modules!r} is for GaLore and APOLLO optimizers, but optim is "
                f"'{self.optim}'; leave it out, or use one of those."
            )
        if projecting and not self.optim_target_modules:
            raise ArgumentError(
                f"optim='{self.optim}' needs optim_target_modules, the modules it works on: a list of names, a "
                "pattern, or 'all-linear'."
            )
