"""What to run, where to write, on which device, and how verbose."""

import os
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ArgumentError
from ..formats import urls
from . import values
from .fields import Group, declare

if TYPE_CHECKING:
    from .given import Text, Words

arg = declare("Run")
LEVELS = ("debug", "info", "warning", "error", "critical", "passive")
DEVICE = re.compile(r"(cpu|gpu|cuda|xpu|npu|mps)(:\d+)?")
PROFILED = "3-5"  # two warmup steps, three profiled steps
STEPS = re.compile(r"(\d+)(?:\s*-\s*(\d+))?")
DEBUG = ("underflow_overflow", "tpu_metrics_debug")


def to_path(name: str, value: "Text") -> str:
    return os.path.expanduser(values.to_text(name, value))


def to_device(name: str, value: object) -> str | None:
    """The device as a string: "cuda:0". A framework's device object is accepted; "auto" is the best available."""
    text = str(value).lower()
    if text == "auto":
        return None
    if isinstance(value, bool | int) or not DEVICE.fullmatch(text):
        raise values.invalid(name, value, "cpu, gpu, cuda, xpu, npu or mps, optionally with :index, or None")
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
    """The first and last step as "3-5"; "" is off."""
    text = str(value).strip().lower()
    if text in ("", "false", "no", "none"):
        return ""
    if text in ("true", "yes"):
        return PROFILED
    found = STEPS.fullmatch(text)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if isinstance(value, bool) or not 0 < first <= last:
        raise values.invalid(name, value, 'True, a step such as 3, or a range of steps such as "3-5"')
    return f"{first}-{last}"


def to_steps(name: str, value: int | str) -> str:
    """Steps counted from 0, as "0-2,10"; "" is none."""
    text = "" if value is None else str(value).replace(" ", "")
    if isinstance(value, bool) or not re.fullmatch(r"(\d{1,9}(-\d{1,9})?(,\d{1,9}(-\d{1,9})?)*)?", text):
        raise values.invalid(name, value, 'a step such as 0, or ranges of steps such as "0-2,10"')
    for word in filter(None, text.split(",")):
        first, _, last = word.partition("-")
        if not 0 <= int(last or first) - int(first) < 10000:
            raise values.invalid(
                name, value, f"ranges of at most 10000 steps that do not end before they begin: {word}"
            )
    return text


@dataclass
class RunArguments(Group):
    output_dir: str | None = arg(
        None,
        "Directory for checkpoints, logs and results. A Trainer without arguments uses tmp_trainer. A URL such as "
        "s3://bucket/run becomes output_url, and output_dir a local directory in the cache of the user.",
        convert=to_path,
        shown="trainer_output",
        per_process=True,
    )
    output_url: str | None = arg(
        None,
        "Object storage, as a URL that fsspec can open: the contents of output_dir are uploaded there, and a run is "
        "resumed from there.",
        shown="none",
        per_process=True,
    )
    overwrite_output_dir: bool = arg(
        False,
        "For your script: start a new run in a directory with checkpoints. The Trainer itself deletes nothing; a new "
        "run in a directory with checkpoints logs a warning.",
        per_process=True,
    )
    do_train: bool = arg(False, "For your script: whether to train.", per_process=True)
    do_eval: bool = arg(
        False, "For your script: whether to evaluate. True if eval_strategy is not 'no'.", per_process=True
    )
    do_predict: bool = arg(False, "For your script: whether to predict on the test set.", per_process=True)
    do_export: bool = arg(False, "For your script: whether to export the trained model.", per_process=True)
    resume_from_checkpoint: str | None = arg(
        None,
        "Path of a checkpoint, or True or latest for the newest one; the default of train(). True without a checkpoint "
        "starts from scratch and logs it.",
        convert=to_checkpoint,
        hint=str | bool | None,
        per_process=True,
    )
    seed: int = arg(42, "Random seed of the model and of dropout.", low=0, high=2**32 - 1, per_process=True)
    data_seed: int | None = arg(
        None, "Random seed of the data order.", low=0, high=2**32 - 1, shown="seed", per_process=True
    )
    full_determinism: bool = arg(False, "Use the framework's deterministic algorithms: two runs are bit-identical.")
    run_name: str | None = arg(None, "Name of the run in the writers.", shown="output_dir", per_process=True)
    device_spec: str | None = arg(
        None,
        "Device: cpu, gpu, cuda, xpu, npu or mps, optionally with :index. Reads back as the framework's device object.",
        convert=to_device,
        shown="the best available",
        public="device",
        per_process=True,
    )
    debug: str = arg(
        "",
        "underflow_overflow: report the layer and step of the first non-finite value.",
        convert=to_debug,
        none=True,
        per_process=True,
    )
    profile: str = arg(
        "",
        "Steps to profile, such as 3-5, counted from the start of train(); True is 3-5. Writes a trace and a table of "
        "operators to output_dir/profile.",
        convert=to_profile,
        none=True,
        per_process=True,
    )
    trace_steps: str = arg(
        "",
        "Steps to record for `oneloop diff`, counted from 0, such as 0-2: digests of what every layer computes, of "
        "gradients, updates and optimizer state, in output_dir/trace.",
        convert=to_steps,
        none=True,
    )
    verify_steps: int = arg(
        0,
        "Compute the gradients of every N-th update twice and compare their bytes: finds layers that are not "
        "deterministic, and hardware that computes wrongly. 0: off.",
        low=0,
    )
    verify_action: str = arg(
        "stop",
        "If the gradients differ (verify_steps): stop before the update, or warn. Both record an event.",
        choices=("stop", "warn"),
    )
    replay_overrides: list[str] = arg(
        list,
        "Overridden methods that may be called again where an update is computed more than once (trace_steps, "
        "verify_steps): training_step, compute_loss. Name those whose side effects may be doubled, or that have none.",
        choices=("training_step", "compute_loss"),
        none=True,
    )
    log_level: str = arg(
        "passive",
        "Log level of the main process; passive keeps the application's level.",
        choices=LEVELS,
        none=True,
        per_process=True,
    )
    log_level_replica: str = arg(
        "warning", "Log level of the other processes.", choices=LEVELS, none=True, per_process=True
    )
    log_on_each_node: bool = arg(
        True, "With several machines: log on each machine instead of only the first.", per_process=True
    )
    disable_tqdm: bool | None = arg(
        None,
        "Disable progress bars.",
        shown="True without a terminal or with log_level above warning, otherwise False",
        per_process=True,
    )
    skip_memory_metrics: bool = arg(True, "False adds peak memory to the metrics.", per_process=True)
    past_index: int = arg(-1, "Index of the model output to pass as `mems` to the next step; -1: off.", low=-1)

    def check(self) -> None:
        self.fill("output_dir", "trainer_output")
        if not self.output_dir:
            raise ArgumentError(
                "output_dir is empty; expected the directory for checkpoints, logs and results. "
                'Pass it first: TrainingArguments("output", ...), or --output_dir output.'
            )
        self._resolve_url()
        self.fill("run_name", self.output_url or self.output_dir)

    def _resolve_url(self) -> None:
        """A URL as output_dir becomes output_url; output_dir is a local directory."""
        given, filled = self.output_dir or "", self.__dict__.get("_defaulted", {})
        if urls.is_url(given):
            url = urls.checked("output_dir", given)
            if self.output_url is None or self.output_url == filled.get("output_url"):
                self.fill("output_url", url)
            elif self.output_url != url:
                raise ArgumentError(
                    f"output_dir={given!r} and output_url={self.output_url!r} are two URLs; pass one of them, or a "
                    "local directory as output_dir."
                )
            self.output_dir = urls.staging_directory(url)
            os.makedirs(self.output_dir, exist_ok=True)  # scripts look for checkpoints only in a directory that exists
        elif self.output_url and filled.get("output_url") == self.output_url:
            is_same = given == urls.staging_directory(self.output_url)
            self.fill("output_url", self.output_url if is_same else None)  # or output_dir was assigned since
        if self.output_url is not None:
            if not urls.is_url(self.output_url):
                raise values.invalid("output_url", self.output_url, "a URL such as s3://bucket/run")
            self.output_url = urls.checked("output_url", self.output_url)
            urls.require_fsspec()  # or an error that names it
            urls.remember(self.output_dir or "", self.output_url)


def progress_is_visible() -> bool:
    """Whether a progress bar would be visible: in a terminal or a notebook."""
    if "ipykernel" in sys.modules:
        return True
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except ValueError:  # it is closed
        return False
