"""What is logged, when, and to whom."""

import os
import socket
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from ..enums import IntervalStrategy
from . import values
from .fields import Group, declare
from .packages import WRITERS, usual_writers
from .run import to_path

if TYPE_CHECKING:
    from .given import Text, Words

arg = declare("Logging")


def to_writers(name: str, value: "Words") -> list[str]:
    words = values.to_words(name, value)
    if words == ["none"] or not words:
        return []
    if words == ["all"]:
        return usual_writers(every=True)
    for word in words:
        if word not in WRITERS:
            raise values.wrong(name, value, ", ".join(WRITERS) + "; or all, or none, alone")
    return list(dict.fromkeys(words))


def to_token_count(name: str, value: "bool | Text") -> str:
    """4.x spells it as a bool, 5.x as a word."""
    if isinstance(value, bool) or (isinstance(value, str) and value.lower() in ("true", "false")):
        return "all" if str(value).lower() == "true" else "no"
    return values.to_text(name, value)


def to_space(name: str, value: "Literal[False] | Text") -> str | bool:
    return False if value in (False, "false", "False") else values.to_text(name, value)  # type: ignore[arg-type]


@dataclass
class Logging(Group):
    logging_dir: str | None = arg(
        None, "Where the writers put their files.", convert=to_path, shown="output_dir/runs/DATE_HOST", compare=False
    )
    logging_strategy: str = arg("steps", "When to log.", enum=IntervalStrategy)
    logging_steps: float = arg(500, "Steps between logs; below 1 it is a ratio of all steps.", convert=values.to_steps)
    logging_first_step: bool = arg(False, "Log the first step too, and evaluate it when evaluation is by steps.")
    logging_nan_inf_filter: bool = arg(False, "Leave non-finite losses out of the logged average, and of that alone.")
    nonfinite: str = arg(
        "stop",
        "What a non-finite loss or gradient does: stop the run, skip the update, or nothing.",
        choices=("stop", "skip", "ignore"),
    )
    report_to: list[str] | None = arg(
        None,
        "Who gets the logs: "
        + ", ".join(WRITERS)
        + "; all that ask for no account; none. A service with accounts has to be named.",
        convert=to_writers,
        shown="tensorboard and visualdl, as far as installed",
    )
    include_num_input_tokens_seen: str = arg(
        "no", "Count the tokens trained on.", convert=to_token_count, choices=("no", "all", "non_padding")
    )
    include_tokens_per_second: bool = arg(False, "Add tokens per second to the speed metrics.")
    project: str = arg("huggingface", "The project in writers that have projects.")
    trackio_space_id: str | None = arg(None, "The space that trackio writes to.")
    trackio_bucket_id: str | None = arg(None, "The bucket that trackio writes to.")
    trackio_static_space_id: str | bool | None = arg(
        None, "The read-only space that trackio makes at the end; False makes none.", convert=to_space
    )

    def check(self) -> None:
        if self.logging_strategy == "steps" and self.logging_steps == 0:
            raise values.wrong("logging_steps", 0, "at least 1 with logging_strategy='steps', or a ratio below 1")
        self.fill("report_to", usual_writers(every=False))

    def fill_logging_dir(self, output_dir: str) -> None:
        # The time is taken once per object, so that validating again does not start another directory.
        stamp = self.__dict__.setdefault("_stamp", datetime.now().strftime("%b%d_%H-%M-%S"))
        self.fill("logging_dir", os.path.join(output_dir, "runs", f"{stamp}_{socket.gethostname()}"))
