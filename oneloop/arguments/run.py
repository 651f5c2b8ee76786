"""What is run, where it goes, on which device, and how much it says."""

import os
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ArgumentError
from . import values
from .fields import Group, declare

if TYPE_CHECKING:
    from .given import Text, Words

arg = declare("Run")
LEVELS = ("debug", "info", "warning", "error", "critical", "passive")
DEVICE = re.compile(r"(cpu|gpu|cuda|xpu|npu|mps)(:\d+)?")
PROFILED = "3-5"  # two steps to warm up, three to look at
STEPS = re.compile(r"(\d+)(?:\s*-\s*(\d+))?")
DEBUG = ("underflow_overflow", "tpu_metrics_debug")


def to_path(name: str, value: "Text") -> str:
    return os.path.expanduser(values.to_text(name, value))


def to_device(name: str, value: object) -> str | None:
    """A device as it is written: "cuda:0". A framework's own device object is accepted; "auto" is the best there is."""
    text = str(value).lower()
    if text == "auto":
        return None
    if isinstance(value, bool | int) or not DEVICE.fullmatch(text):
        raise values.wrong(name, value, "cpu, gpu, cuda, xpu, npu or mps, with :index for one of several, or None")
    return "cpu" if text.startswith("cpu") else text


def to_checkpoint(name: str, value: "bool | Text") -> str | bool | None:
    if isinstance(value, bool) or (isinstance(value, str) and value.lower() in ("true", "false", "none", "")):
        return True if str(value).lower() == "true" else None
    return to_path(name, value)


def to_debug(name: str, value: "Words") -> str:
    words = values.to_words(name, value)
    for word in words:
        values.to_member(name, word, DEBUG)
    return " ".join(word for word in DEBUG if word in words)


def to_profile(name: str, value: bool | int | str) -> str:
    """The first and the last step, as "3-5"; "" is off."""
    text = str(value).strip().lower()
    if text in ("", "false", "no", "none"):
        return ""
    if text in ("true", "yes"):
        return PROFILED
    found = STEPS.fullmatch(text)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if isinstance(value, bool) or not 0 < first <= last:
        raise values.wrong(name, value, 'True, a step such as 3, or the first and the last one, such as "3-5"')
    return f"{first}-{last}"


@dataclass
class Run(Group):
    output_dir: str | None = arg(
        None,
        "Where checkpoints, logs and results go. Required; a Trainer without arguments uses tmp_trainer.",
        convert=to_path,
        shown="required",
    )
    overwrite_output_dir: bool = arg(
        False,
        "For your script: it may start afresh in a directory that holds checkpoints. The Trainer itself deletes "
        "nothing; a fresh run among old checkpoints warns and goes on.",
    )
    do_train: bool = arg(False, "For your script: train.")
    do_eval: bool = arg(False, "For your script: evaluate. Becomes True when eval_strategy is not no.")
    do_predict: bool = arg(False, "For your script: predict on the test set.")
    do_export: bool = arg(False, "For your script: export the trained model.")
    resume_from_checkpoint: str | bool | None = arg(
        None,
        "A checkpoint's path, or True or latest for the newest one; train() uses it when it gets none. True without "
        "a checkpoint starts fresh and says so.",
        convert=to_checkpoint,
    )
    seed: int = arg(42, "Seed of the model's and dropout's randomness.", low=0, high=2**32 - 1)
    data_seed: int | None = arg(None, "Seed of the order of the data.", low=0, high=2**32 - 1, shown="seed")
    full_determinism: bool = arg(False, "Deterministic algorithms in the framework: two runs are equal to the bit.")
    run_name: str | None = arg(None, "The name of the run in every logger.", shown="output_dir")
    device_spec: str | None = arg(
        None,
        "Where to compute: cpu, gpu, cuda, xpu, npu or mps, with :index for one of several. Reads back as the "
        "framework's own device.",
        convert=to_device,
        shown="the best there is",
        public="device",
    )
    debug: str = arg(
        "",
        "underflow_overflow: on a non-finite value, name the layer and the step.",
        convert=to_debug,
        none=True,
    )
    profile: str = arg(
        "",
        "Steps to profile, such as 3-5, counted from the start of train(); True is 3-5. A trace and a table of "
        "operators go to output_dir/profile.",
        convert=to_profile,
        none=True,
    )
    log_level: str = arg(
        "passive", "How much the main process says; passive leaves it alone.", choices=LEVELS, none=True
    )
    log_level_replica: str = arg("warning", "How much the other processes say.", choices=LEVELS, none=True)
    log_on_each_node: bool = arg(True, "With several machines: log on each, not on the first alone.")
    disable_tqdm: bool | None = arg(
        None,
        "No progress bars.",
        shown="True off a terminal or with log_level above warning, else False",
    )
    skip_memory_metrics: bool = arg(True, "False adds peak-memory figures to the metrics.")
    past_index: int = arg(-1, "Feeds this output of the model back as `mems` at the next step; -1 is off.", low=-1)

    def check(self) -> None:
        if not self.output_dir:
            raise ArgumentError(
                "output_dir is missing; expected the directory where checkpoints, logs and results go. "
                'Pass it first: TrainingArguments("output", ...), or --output_dir output.'
            )
        self.fill("run_name", self.output_dir)


def progress_is_visible() -> bool:
    """Whether anyone would see a progress bar: a terminal, or a notebook."""
    return "ipykernel" in sys.modules or bool(sys.stderr is not None and sys.stderr.isatty())
