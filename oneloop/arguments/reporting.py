"""What is logged, when, and to which writers."""

import os
import socket
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from ..enums import IntervalStrategy
from ..formats import urls
from . import values
from .fields import Group, declare
from .packages import WRITERS, default_writers
from .run import to_path

if TYPE_CHECKING:
    from .given import Text, Words

arg = declare("Logging")


def to_writers(name: str, value: "Words") -> list[str]:
    words = values.to_words(name, value)
    if words == ["none"] or not words:
        return []
    if words == ["all"]:
        return default_writers(every=True)
    for word in words:
        if word not in WRITERS:
            raise values.invalid(name, value, ", ".join(WRITERS) + "; or 'all' or 'none' on its own")
    return list(dict.fromkeys(words))


def to_token_count(name: str, value: "bool | Text") -> str:
    """A bool in transformers 4.x, a string in 5.x."""
    if isinstance(value, bool) or (isinstance(value, str) and value.lower() in ("true", "false")):
        return "all" if str(value).lower() == "true" else "no"
    return values.to_text(name, value)


def to_space(name: str, value: "Literal[False] | Text") -> str | bool:
    return False if value in (False, "false", "False") else values.to_text(name, value)  # type: ignore[arg-type]


@dataclass
class Logging(Group):
    logging_dir: str | None = arg(
        None,
        "Directory for the writers' files.",
        convert=to_path,
        shown="output_dir/runs/DATE_HOST",
        compare=False,
        per_process=True,
    )
    logging_strategy: str = arg("steps", "When to log.", enum=IntervalStrategy)
    logging_steps: float = arg(
        500, "Steps between logs; a value below 1 is a ratio of all steps.", convert=values.to_steps
    )
    logging_first_step: bool = arg(
        False,
        "Also log the first step and, except in transformers scripts, evaluate it with eval_strategy='steps'.",
    )
    logging_nan_inf_filter: bool = arg(False, "Exclude non-finite losses from the logged average (only).")
    nonfinite: str = arg(
        "stop",
        "What to do about a non-finite loss or gradient: stop the run, skip the update, or nothing.",
        choices=("stop", "skip", "ignore"),
    )
    nonfinite_limit: int = arg(
        100, "Updates in a row that nonfinite='skip' may skip before the run is stopped; 0: any number.", low=0
    )
    loss_spike: str = arg(
        "off",
        "What to do about a loss or gradient norm far above those of recent steps: nothing; warn; or return to the "
        "last checkpoint and skip the samples of the spike.",
        choices=("off", "warn", "rollback"),
    )
    loss_spike_threshold: float = arg(
        10.0,
        "With loss_spike: the number of robust standard deviations above the median from which a value is a spike.",
        low=0,
        never=(0,),
    )
    loss_spike_window: int = arg(
        100,
        "With loss_spike: the number of recent steps that a value is compared with. Before that, none is a spike.",
        low=8,
    )
    loss_spike_skip_steps: int = arg(
        1, "With loss_spike='rollback': steps whose samples are skipped: the spike and those before it.", low=1
    )
    loss_spike_limit: int = arg(
        3,
        "With loss_spike='rollback': returns since the last checkpoint on schedule before the run is stopped.",
        low=1,
    )
    report_to: None | str | list[str] = arg(
        None,
        "Writers that receive the logs: "
        + ", ".join(WRITERS)
        + "; all: every one that needs no account; none. A service with accounts has to be named.",
        convert=to_writers,
        shown="tensorboard and visualdl, if installed",
        per_process=True,
    )
    include_num_input_tokens_seen: str = arg(
        "no", "Count the input tokens seen.", convert=to_token_count, choices=("no", "all", "non_padding")
    )
    include_tokens_per_second: bool = arg(False, "Report tokens per second in the speed metrics.")
    log_throughput: bool = arg(
        False,
        "Add to the logs: tokens per second, those without padding (if include_num_input_tokens_seen is non_padding), "
        "MFU, and the share of the time spent waiting for data. The report page has them anyway.",
    )
    device_peak_flops: float | None = arg(
        None,
        "Peak floating-point operations per second of one device, for the model FLOPs utilization (MFU). By default "
        "known for some GPUs in half precision.",
        low=0,
        never=(0,),
        per_process=True,
    )
    project: str = arg("huggingface", "Project name, for writers that have projects.", per_process=True)
    trackio_space_id: str | None = arg(None, "Space that trackio writes to.", per_process=True)
    trackio_bucket_id: str | None = arg(None, "Bucket that trackio writes to.", per_process=True)
    trackio_static_space_id: str | None = arg(
        None,
        "Read-only space that trackio creates at the end; False: none.",
        convert=to_space,
        hint=str | bool | None,
        per_process=True,
    )

    def check(self) -> None:
        if self.logging_strategy == "steps" and self.logging_steps == 0:
            raise values.invalid("logging_steps", 0, "at least 1 with logging_strategy='steps', or a ratio below 1")
        if urls.is_url(self.logging_dir):
            urls.checked("logging_dir", str(self.logging_dir))
        self.fill("report_to", default_writers(every=False))

    def fill_logging_dir(self, output_dir: str) -> None:
        # The time is taken once per object, so that validating again does not select another directory.
        stamp = self.__dict__.setdefault("_stamp", _now())
        self.fill("logging_dir", default_log_directory(output_dir, stamp))


def _now() -> str:
    return datetime.now().strftime("%b%d_%H-%M-%S")


def default_log_directory(output_dir: str, stamp: str | None = None) -> str:
    """Where writers put their files unless logging_dir is given."""
    return os.path.join(output_dir, "runs", f"{stamp or _now()}_{socket.gethostname()}")
