"""Going on from a checkpoint that another framework wrote."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import CheckpointError
from .. import safetensors_io as files
from ..safetensors_io import Raw
from .framework_layout import ONLY_HERE, Crossing


def run_of(path: Path) -> dict[str, Any]:
    """run.json of a checkpoint; {} where there is none."""
    file = path / "run.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def is_needed(trainer: Any, run: Mapping[str, Any]) -> bool:
    """Whether the checkpoint comes from another framework."""
    return run.get("framework", trainer.backend.NAME) != trainer.backend.NAME


def _crossing(trainer: Any, run: Mapping[str, Any], path: Path) -> Crossing:
    if "layout" not in run:
        raise CheckpointError(
            f"{path} was written by a run on {run['framework']} before layouts were recorded, and this model is one of "
            f"{trainer.backend.NAME}. Resume it with a {run['framework']} model; its next checkpoint can cross."
        )
    own = trainer.backend.framework_layout.layout(trainer.model)
    return Crossing(run["framework"], trainer.backend.NAME, run["layout"], own, trainer.rename_parameter, str(path))


def load_weights(trainer: Any, run: Mapping[str, Any], path: Path, stored: list[Path], tied: dict[str, str]) -> None:
    """Copy the weights of another framework's checkpoint into the model."""
    weights = trainer.backend.weights
    crossing = _crossing(trainer, run, path)
    raws: dict[str, Raw] = {}
    for file in stored:
        raws |= files.read(file)
    raws |= {name: raws[first] for name, first in tied.items() if first in raws}
    own, own_tied = weights.model_tensors(trainer.model)
    own = own | {name: own[first] for name, first in own_tied.items()}
    found = crossing.weights(raws, {name: tuple(tensor.shape) for name, tensor in own.items()})
    values = _through_file(trainer, found)
    # A buffer that only this framework has keeps its value.
    values |= {name: own[name] for name, place in crossing.own.items() if place.axes == ONLY_HERE and name in own}
    weights.load_model(trainer.model, values, {}, str(path))


def load_optimizer(trainer: Any, run: Mapping[str, Any], path: Path, stored: list[Path]) -> None:
    """Moments and the count of updates; rates and other options are this run's own, which its schedule sets."""
    weights = trainer.backend.weights
    crossing = _crossing(trainer, run, path)
    updates = trainer.state.global_step - run["engine"].get("skipped", 0)
    _, own = weights.optimizer_state(trainer.optimizer, trainer.model)
    raws: dict[str, Raw] = {}
    for file in stored:
        raws |= files.read(file)
    found = crossing.optimizer(raws, run["optimizer"], updates, own)
    trainer.strategy.load_optimizer(
        trainer.optimizer, trainer.model, _through_file(trainer, found), own | {"values": {}}, str(path)
    )


def _through_file(trainer: Any, raws: dict[str, Raw]) -> dict[str, Any]:
    """Tensors of this framework, made by its own reader of safetensors files."""
    if not raws:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "crossing.safetensors"
        files.write(path, raws)
        return trainer.backend.weights.load_tensors(path)
