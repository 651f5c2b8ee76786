"""A plan as text for a terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import sizes

if TYPE_CHECKING:
    from .results import LayoutChoice, Search, StrategyPlan, TrainingPlan

show, count = sizes.show, sizes.count


def render(plan: "TrainingPlan") -> str:
    """The whole plan."""
    parts = [*(f"{title}\n" + _pairs(rows) for title, rows in facts(plan)), _strategies(plan)]
    if plan.search is not None:
        parts.append(_search(plan))
    if plan.arguments:
        parts.append("Arguments\n" + _pairs([(f"{e.argument}={e.value}", effect_text(e)) for e in plan.arguments]))
    if plan.notes:
        parts.append("Notes\n" + "\n".join(f"  {note}" for note in plan.notes))
    return "\n\n".join(parts) + "\n"


def facts(plan: "TrainingPlan") -> list[tuple[str, list[tuple[str, str]]]]:
    """The figures that do not depend on the strategy, in sections of (name, value)."""
    model, length, checkpoint = plan.model, plan.length, plan.checkpoint
    recompute = " (the arguments have it)" if plan.recompute else ""
    saved = f"{show(checkpoint.weights)} of weights, {show(checkpoint.optimizer)} of optimizer state"
    kept = "-" if checkpoint.kept is None else f"{count(checkpoint.kept)}, {show(checkpoint.on_disk)} on the disk"
    return [
        (
            "Run",
            [
                ("processes", f"{plan.world} ({plan.framework}, {plan.device})"),
                ("memory of a device", show(plan.device_memory)),
                ("samples per update", f"{length.samples_per_step} ({_product(plan)})"),
                ("samples in an epoch", count(length.samples)),
                ("steps", f"{count(length.steps)} ({count(length.steps_per_epoch)} in an epoch)"),
                ("tokens", f"{count(length.tokens)} ({count(length.tokens_per_step)} in an update)"),
            ],
        ),
        (
            "Model",
            [
                ("parameters", f"{count(model.parameters)}, {count(model.trainable)} of them trained"),
                ("weights", show(model.parameter_bytes)),
                ("gradients", show(model.gradient_bytes)),
                ("optimizer state", show(model.optimizer_bytes)),
                ("activations of a micro-batch", show(plan.activations)),
                ("the same with gradient_checkpointing", show(plan.activations_recomputed) + recompute),
            ],
        ),
        ("Checkpoints", [("size", saved), ("saves", count(checkpoint.saves)), ("kept", kept)]),
    ]


def _product(plan: "TrainingPlan") -> str:
    return f"{plan.micro_batch} x {plan.accumulation} accumulated x {plan.world} processes"


HEADER = (
    *("", "weights", "gradients", "optimizer", "activations", "peak", "with gradient_checkpointing", "fits"),
    *("largest batch", "messages", "sent"),
)


def cells(each: "StrategyPlan") -> tuple[str, ...]:
    """The row of a strategy in the table of HEADER."""
    fits = {None: "-", True: "yes", False: "no"}[each.fits]
    sent = each.messages
    return (
        each.name,
        show(each.parameters),
        show(each.gradients),
        show(each.optimizer),
        show(each.activations),
        show(each.peak_kept),
        show(each.peak_recomputed),
        fits,
        count(each.largest_micro_batch),
        "-" if sent is None else count(sent.collectives),
        "-" if sent is None else show(sent.sent),
    )


def _strategies(plan: "TrainingPlan") -> str:
    possible = [each for each in plan.strategies if each.refused is None]
    lines = _table([HEADER, *map(cells, possible)])
    lines += [f"  {each.name}: refused, {each.refused}" for each in plan.strategies if each.refused is not None]
    return "Memory of a process, and what it sends in an update\n" + "\n".join(lines)


CHOICES = ("", "peak", "sent in an update", "micro-batch", "accumulated", "gradient_checkpointing", "")
MOST_SHOWN = 12


def choice_cells(each: "LayoutChoice") -> tuple[str, ...]:
    """The row of a layout in the table of CHOICES."""
    return (
        each.name,
        show(each.peak),
        show(each.sent),
        count(each.arguments["per_device_train_batch_size"]),
        count(each.arguments["gradient_accumulation_steps"]),
        "yes" if each.arguments["gradient_checkpointing"] else "no",
        "simulated" if each.simulated else "estimated",
    )


def search_title(plan: "TrainingPlan") -> str:
    return f"Layouts that fit, with {plan.length.samples_per_step} samples per update, by what a process sends"


def search_remarks(search: "Search") -> list[str]:
    """What the table does not show, and the arguments of the best."""
    lines = []
    if len(search.choices) > MOST_SHOWN:
        lines.append(f"{len(search.choices) - MOST_SHOWN} more fit.")
    if search.too_large:
        lines.append(f"{search.too_large} do not fit; the smallest of them needs {show(search.smallest)}.")
    if search.best is not None:
        lines.append(f"Arguments of the best: {flags(search.best.arguments)}")
    return lines


def flags(arguments: dict[str, Any]) -> str:
    """Arguments as they are given to a script; those that are off are left out."""
    given = {name: value for name, value in arguments.items() if value is not False}
    words = (f"--{name} {f'{value!r}' if ' ' in str(value) else value}" for name, value in given.items())
    return " ".join(words)


def _search(plan: "TrainingPlan") -> str:
    assert plan.search is not None
    rows = [choice_cells(each) for each in plan.search.choices[:MOST_SHOWN]]
    lines = _table([CHOICES, *rows]) if rows else []
    return "\n".join([search_title(plan), *lines, *(f"  {line}" for line in search_remarks(plan.search))])


def effect_text(effect: object) -> str:
    """The word `works`, or what happens to the argument."""
    name, text = effect.effect, effect.text  # type: ignore[attr-defined]
    return f"{name}: {text}" if text else name


def _pairs(rows: Sequence[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name.ljust(width)}  {value}" for name, value in rows)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  " + "  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths)))
        for row in rows
    ]
