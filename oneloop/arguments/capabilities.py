"""What works on which framework and device: derived from the unsupported values of the arguments, so that page and
code agree.

python -m oneloop.arguments.capabilities          writes docs/frameworks.md
python -m oneloop.arguments.capabilities --check  checks whether it is up to date
"""

import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..backends import registry
from . import TrainingArguments
from .generated_page import write_or_check
from .support import all_unsupported
from .unsupported import UnsupportedValue

PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"


@dataclass(frozen=True)
class Feature:
    """A feature of a trainer, and the arguments that enable it."""

    title: str
    arguments: dict[str, Any] = field(default_factory=dict)
    processes: int = 1


FEATURES = (
    Feature("train, evaluate, predict, save, resume"),
    Feature("gradient accumulation, with the update of the whole batch", {"gradient_accumulation_steps": 2}),
    Feature("loader workers", {"dataloader_num_workers": 1}),
    Feature("batches of similar length", {"group_by_length": True}),
    Feature("batches of a number of tokens", {"max_tokens_per_batch": 4096}),
    Feature("micro-batches of equal cost", {"train_sampling_strategy": "batch_rebalance"}),
    Feature("AdamW", {"optim": "adamw"}),
    Feature("SGD", {"optim": "sgd"}),
    Feature("Adagrad", {"optim": "adagrad"}),
    Feature("RMSprop", {"optim": "rmsprop"}),
    Feature("Adafactor", {"optim": "adafactor"}),
    Feature("bf16", {"bf16": True}),
    Feature("fp16", {"fp16": True}),
    Feature("fp16, O2", {"fp16": True, "fp16_opt_level": "O2"}),
    Feature("evaluation in bf16", {"bf16_full_eval": True}),
    Feature("recompute", {"recompute": True}),
    Feature("compiled training", {"torch_compile": True}),
    Feature("compiled evaluation", {"jit_mode_eval": True}),
    Feature("label smoothing", {"label_smoothing_factor": 0.1}),
    Feature("NEFTune", {"neftune_noise_alpha": 5.0}),
    Feature("skipping updates that are not finite", {"nonfinite": "skip"}),
    Feature("finding the layer that overflowed", {"debug": "underflow_overflow"}),
    Feature("profiling of some steps", {"profile": "2-3"}),
    Feature("full determinism", {"full_determinism": True}),
    Feature("memory metrics", {"skip_memory_metrics": False}),
    Feature("a smaller batch when memory runs out", {"auto_find_batch_size": True}),
    Feature("several processes", processes=2),
    Feature("sharding, stage 1", {"sharding": "stage1"}, processes=2),
    Feature("sharding, stage 2", {"sharding": "stage2"}, processes=2),
    Feature("sharding, stage 3", {"sharding": "stage3"}, processes=2),
)


def arguments_of(feature: Feature, folder: str) -> TrainingArguments:
    return TrainingArguments(output_dir=folder, report_to=["none"], **feature.arguments)


def reasons(feature: Feature, backend: str, device: str, args: Any) -> list[UnsupportedValue]:
    """Why a feature is not supported there; [] if it is."""
    return [unsupported for unsupported in all_unsupported() if unsupported.applies(args, backend, device)]


def first_reason(feature: Feature, backend: str, device: str, args: Any) -> str | None:
    """The first reason why a feature is not supported, or None."""
    found = reasons(feature, backend, device, args)
    if found:
        return found[0].why
    if feature.processes > 1 and not registry.get(backend).parallel:
        return "it is not supported in this release yet"
    return None


def table(names: tuple[str, ...]) -> list[tuple[Feature, dict[str, dict[str, str | None]]]]:
    """Every feature with, by framework and device, the reason why it is not supported, or None."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for feature in FEATURES:
            args = arguments_of(feature, folder)
            answers = {
                name: {device: first_reason(feature, name, device, args) for device in registry.get(name).devices}
                for name in names
            }
            rows.append((feature, answers))
    return rows


def cell(by_device: dict[str, str | None]) -> str:
    """The cell of one framework: devices with and without support, and why."""
    reasons = {device: why for device, why in by_device.items() if why}
    if not reasons:
        return "yes"
    if len(reasons) == len(by_device) and len(set(reasons.values())) == 1:
        return f"no: {next(iter(reasons.values()))}"
    texts: dict[str, list[str]] = {}
    for device, why in reasons.items():
        texts.setdefault(why, []).append(device)
    return "; ".join(f"not on {', '.join(devices)}: {why}" for why, devices in texts.items())


def asked_by(feature: Feature) -> str:
    words = [f"`{name}={value!r}`" for name, value in feature.arguments.items()]
    return ", ".join(words + ["a launcher"] * (feature.processes > 1)) or "-"


OPENING = """# What works where

Generated from the unsupported values of the arguments (`python -m oneloop.arguments.capabilities`) and checked by the
test suite, which tries every feature with every framework on the CPU: "yes" means that it trains there, "no" that it
raises an error with this message. `oneloop doctor` shows the same for your machine.

Accelerators use the same code as the CPU, but the test suite has only run on CPUs: for {others} a "yes" means that the
feature is implemented and not known to be unsupported. [Accelerators](accelerators.md) says what of it was tried on a
simulated device.

"""


def render() -> str:
    """The page as text."""
    names = registry.released()
    specs = [registry.get(name) for name in names]
    others = ", ".join(sorted({device for spec in specs for device in spec.devices} - {"cpu"}))
    titles = " | ".join(spec.title for spec in specs)
    lines = [f"| | arguments | {titles} |", "|---" * (2 + len(names)) + "|"]
    for feature, answers in table(names):
        cells = [cell(answers[name]) for name in names]
        lines.append(f"| {feature.title} | {asked_by(feature)} | {' | '.join(cells)} |")
    return OPENING.format(others=others) + "\n".join(lines) + "\n"


def main(words: list[str]) -> int:
    return write_or_check(PAGE, render(), "oneloop.arguments.capabilities", words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
