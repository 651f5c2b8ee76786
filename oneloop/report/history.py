"""The curves and final values of a log history, independent of how they are drawn."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, DataError
from ..formats.reading import read_json
from .run_folders import STATE_FILE, runs_near

TIMES = ("_runtime", "_per_second", "_time", "_flos")  # suffixes of values that are not metrics


@dataclass
class Line:
    """One curve. `sparse` ones have few points, each drawn with a marker."""

    name: str
    steps: list[float]
    values: list[float]
    sparse: bool = False


@dataclass
class Chart:
    title: str
    lines: list[Line]
    zero: bool = False  # the y axis starts at zero


@dataclass
class LoggedRun:
    """A log history as in trainer_state.json: a list of dicts, each with `step` and the values logged at it."""

    log_history: list[dict[str, Any]]
    title: str = "run"
    state: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> "LoggedRun":
        """The run that wrote into `folder`: an output directory or one of its checkpoints."""
        path = _state_file(folder)
        try:
            state = read_json(path)
            history = [entry for entry in state.pop("log_history") if isinstance(entry, dict)]
        except (CheckpointError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path} is not a trainer state: expected a JSON object with a list log_history ({error!r}). "
                "Pass the output_dir of a Trainer."
            ) from error
        return cls(history, title=folder.resolve().name, state=state)

    def line(self, key: str, name: str | None = None) -> Line | None:
        """The curve of one logged value; None if it was never logged."""
        points = [
            (entry["step"], entry[key]) for entry in self.log_history if _is_number(entry.get(key)) and "step" in entry
        ]
        if not points:
            return None
        steps, values = zip(*points)
        return Line(name or key, list(steps), [float(value) for value in values], sparse=key.startswith("eval_"))

    def charts(self) -> list[Chart]:
        """The charts that this history has values for; the four most important ones first."""
        rates, others = self._metrics()
        candidates = [
            Chart("loss", _existing([self.line("loss", "training"), *self._evaluation_losses()])),
            Chart("evaluation", rates),
            Chart("training loss by dataset", self._by_source("loss/")),
            Chart("learning rate", _existing([self.line("learning_rate", "learning rate")]), zero=True),
            Chart("samples per second", _existing([self.line("samples_per_second", "training")]), zero=True),
            Chart(
                "tokens per second",
                _existing(
                    [
                        self.line("tokens_per_second", "training"),
                        self.line("useful_tokens_per_second", "without padding"),
                    ]
                ),
                zero=True,
            ),
            Chart("gradient norm", _existing([self.line("grad_norm", "gradient norm")]), zero=True),
            Chart("MFU", _existing([self.line("mfu", "model FLOPs utilization")]), zero=True),
            *(Chart(line.name, [line]) for line in others),
        ]
        return [chart for chart in candidates if chart.lines]

    def final_figures(self) -> dict[str, float]:
        """The last value of every evaluation, prediction and whole-run metric, in order of first appearance."""
        figures: dict[str, float] = {}
        for entry in self.log_history:
            figures.update(
                {k: v for k, v in entry.items() if k.startswith(("eval_", "test_", "train_")) and _is_number(v)}
            )
        return figures

    def _keys(self, prefix: str, suffix: str = "") -> list[str]:
        """Names logged by evaluations, in order, both `eval_loss` and `eval_<set>_loss`."""
        keys = dict.fromkeys(key for entry in self.log_history for key in entry if key.startswith(prefix))
        return [key for key in keys if key.endswith(suffix)]

    def _by_source(self, prefix: str) -> list[Line]:
        """The values of the datasets of a mixture."""
        return _existing([self.line(key, key.removeprefix(prefix)) for key in self._keys(prefix)])

    def _evaluation_losses(self) -> list[Line | None]:
        names = {key: key.removeprefix("eval_").removesuffix("loss").strip("_") for key in self._keys("eval_", "_loss")}
        return [self.line(key, f"evaluation {name}".strip()) for key, name in names.items()]

    def _metrics(self) -> tuple[list[Line], list[Line]]:
        """Evaluation metrics: those within 0 and 1 share an axis, each of the others has its own."""
        keys = [key for key in self._keys("eval_") if not key.endswith(("_loss", *TIMES))]
        lines = _existing([self.line(key, key.removeprefix("eval_")) for key in keys])
        rates = [line for line in lines if all(0 <= value <= 1 for value in line.values if math.isfinite(value))]
        return rates, [line for line in lines if line not in rates]


def _state_file(folder: Path) -> Path:
    if (folder / STATE_FILE).is_file():
        return folder / STATE_FILE
    checkpoints = [path for path in folder.glob(f"checkpoint-*/{STATE_FILE}") if path.parent.name[11:].isdigit()]
    if not folder.is_dir():
        raise DataError(f"{folder}: no such directory. Pass the output_dir of a run.{runs_near(folder)}")
    if not checkpoints:
        raise DataError(
            f"{folder} contains no {STATE_FILE}, and no checkpoint with one. Pass the output_dir of a run, or the "
            "history itself: write_report(output_dir, trainer.state.log_history)."
        )
    return max(checkpoints, key=lambda path: int(path.parent.name[11:]))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _existing(lines: Iterable[Line | None]) -> list[Line]:
    return [line for line in lines if line is not None]
