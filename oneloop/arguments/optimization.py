"""The optimizer, the learning rate schedule, and the length of the run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..enums import SchedulerType
from ..errors import ArgumentError
from ..optim import catalog
from ..optim.catalog import OptimizerNames
from ..optim.cooldown import KINDS
from . import values
from .fields import Group, declare

if TYPE_CHECKING:
    from .given import Text, Words

arg = declare("Optimization")


def to_optim_args(name: str, value: "Mapping[str, Any] | Text") -> str:
    """ "key=value, key=value"; a dict is converted to this form."""
    if isinstance(value, Mapping):
        value = ",".join(f"{key}={item}" for key, item in value.items())
    text = values.to_text(name, value)
    if not all("=" in part for part in text.split(",") if part.strip()):
        raise values.invalid(name, value, 'a string such as "key=value,key=value"')
    return text


def to_modules(name: str, value: "Words") -> str | list[str]:
    """A pattern stays a string: splitting it at commas or spaces would break it."""
    return value if isinstance(value, str) else values.to_words(name, value)


@dataclass
class Optimization(Group):
    learning_rate: float = arg(5e-5, "Peak learning rate.", low=0)
    weight_decay: float = arg(0.0, "Weight decay; not applied to biases and normalization weights.", low=0)
    adam_beta1: float = arg(0.9, "Beta1 of AdamW.", low=0, below=1)
    adam_beta2: float = arg(0.999, "Beta2 of AdamW.", low=0, below=1)
    adam_epsilon: float = arg(1e-8, "Epsilon of AdamW.", low=0)
    max_grad_norm: float = arg(
        1.0, "Maximum gradient norm, for clipping; 0 disables clipping. The norm is logged.", low=0, finite=False
    )
    optim: str = arg(
        "adamw_torch",
        "The optimizer. All spellings of AdamW select the same AdamW, except adamw_anyprecision. muon is Muon for "
        "matrices of hidden layers and AdamW for the rest. If an optimizer needs a package, the error message names "
        "it.",
        enum=OptimizerNames,
        shown="adamw",
    )
    optim_args: str | None = arg(
        None, 'Additional options of the optimizer: "key=value,key=value".', convert=to_optim_args
    )
    optim_target_modules: None | str | list[str] = arg(
        None,
        "For GaLore, APOLLO and Muon: the modules to optimize with it. Required by the first two; by default, Muon "
        "updates all matrices except embeddings and the head.",
        convert=to_modules,
    )
    lr_scheduler_type: str = arg("linear", "Learning rate schedule.", enum=SchedulerType)
    lr_scheduler_kwargs: dict[str, Any] | str | None = arg(
        None, "Additional options of the schedule, as a dict or JSON.", hint=dict[str, Any] | None
    )
    warmup_steps: float = arg(
        0,
        "Steps of linear warmup from 0; a value below 1 is a ratio of all steps.",
        convert=values.to_steps,
    )
    warmup_ratio: float | None = arg(
        0.0, "Warmup as a ratio of all steps; overridden by warmup_steps. None is 0.", low=0, high=1
    )
    cooldown_steps: int | None = arg(
        None,
        "Branch a run: from the checkpoint in resume_from_checkpoint on, decay the learning rate from its value there "
        "to 0 within this number of steps, which end the run.",
        low=1,
    )
    cooldown_type: str = arg("1-sqrt", "Shape of the decay of cooldown_steps.", choices=KINDS)
    num_train_epochs: float = arg(3.0, "Number of epochs; may be fractional.", low=0)
    max_steps: int = arg(
        -1, "Total number of optimizer updates; overrides num_train_epochs. -1: off.", low=-1, never=(0,)
    )
    ema_decay: float | None = arg(
        None,
        "Keep an exponential moving average (EMA) of the weights with this decay, such as 0.999; in checkpoints it is "
        "average.safetensors.",
        low=0,
        below=1,
    )
    swa_start: float | None = arg(
        None,
        "Keep the mean of the weights from this step on (stochastic weight averaging, SWA); a value below 1 is a ratio "
        "of all steps.",
        convert=values.to_steps,
    )
    averaging_steps: int = arg(1, "Steps between two updates of the average (EMA or SWA) of the weights.", low=1)
    eval_with_average: bool = arg(False, "Evaluate and predict with the average (EMA or SWA) of the weights.")
    save_average: bool = arg(
        False,
        "Write the average (EMA or SWA) of the weights in save_model, export and pushes to the Hub. Checkpoints always "
        "have both.",
    )
    label_smoothing_factor: float = arg(0.0, "Label smoothing: spread this fraction over all classes.", low=0, below=1)
    chunked_loss: bool | None = arg(
        None,
        "Compute the loss of a language model from its hidden states and its head in chunks: whole logits never exist. "
        "None: where those of a micro-batch would take more than 256 MB, and the model does nothing else with them.",
        shown="where logits are large",
    )
    chunked_loss_layer: str | None = arg(
        None,
        "The name of the layer that computes the logits, for chunked_loss with a model that has no method "
        "get_output_embeddings.",
    )
    neftune_noise_alpha: float | None = arg(None, "Alpha of NEFTune embedding noise.", low=0)

    def check(self) -> None:
        self._check_average()
        chosen = catalog.chosen(self)
        if chosen is None:
            return
        if self.optim_target_modules and not chosen.targets:
            raise ArgumentError(
                f"optim_target_modules={self.optim_target_modules!r} is for {catalog.families_with_targets()}, but "
                f"optim is '{self.optim}'; remove it, or use one of those."
            )
        if chosen.targets == "required" and not self.optim_target_modules:
            raise ArgumentError(
                f"optim='{self.optim}' requires optim_target_modules, the modules to optimize with it: a list of "
                "names, a pattern, or 'all-linear'."
            )

    def _check_average(self) -> None:
        if self.ema_decay is not None and self.swa_start is not None:
            raise ArgumentError("ema_decay and swa_start are two averages of the weights; a run has one. Remove one.")
        for name in ("eval_with_average", "save_average"):
            if getattr(self, name) and self.ema_decay is None and self.swa_start is None:
                raise ArgumentError(f"{name}=True needs an average of the weights: set ema_decay or swa_start.")
