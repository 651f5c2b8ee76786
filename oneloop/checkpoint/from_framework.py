"""Resumes from a checkpoint that another framework wrote."""

import tempfile
from pathlib import Path
from typing import Any

from ..backends import registry
from ..converters.framework_layout import ONLY_HERE, Crossing
from ..errors import CheckpointError
from ..formats import safetensors_io as files
from ..formats.safetensors_io import Raw
from ..formats.schema import format_short
from .run_state import RunState
from .saved_run import SavedTrainer


def is_needed(core: SavedTrainer, run: RunState) -> bool:
    """Whether another framework wrote the checkpoint."""
    return run.framework != core.backend.NAME


def _crossing(core: SavedTrainer, run: RunState, path: Path) -> Crossing:
    if run.framework not in {spec.name for spec in registry.specs()}:
        raise CheckpointError(
            f"{path} was written on the framework {format_short(run.framework)}, which is not known here: "
            f"{', '.join(registry.names())}"
        )
    if run.layout is None:
        raise CheckpointError(
            f"{path} was written by a run on {run.framework} before layouts were recorded, but this is a model of "
            f"{core.backend.NAME}. Resume it with a {run.framework} model; its next checkpoint can be converted."
        )
    own = core.backend.framework_layout.layout(core.trainer.model)
    return Crossing(run.framework, core.backend.NAME, run.layout, own, core.trainer.rename_parameter, str(path))


def load_weights(core: SavedTrainer, run: RunState, path: Path, stored: list[Path], tied: dict[str, str]) -> None:
    """Copy the weights of another framework's checkpoint into the model."""
    crossing = _crossing(core, run, path)
    raws: dict[str, Raw] = {}
    for file in stored:
        raws |= files.read(file)
    raws |= {name: raws[first] for name, first in tied.items() if first in raws}
    values = _through_file(core, crossing.weights(raws, core.strategy.weight_shapes(core.trainer.model)))
    # A buffer that only this framework has keeps its value.
    own, own_tied = core.backend.weights.model_tensors(core.trainer.model)
    own = own | {name: own[first] for name, first in own_tied.items()}
    values |= {name: own[name] for name, place in crossing.own.items() if place.axes == ONLY_HERE and name in own}
    core.strategy.load_model(core.trainer.model, values, {}, str(path))


def load_tensors(core: SavedTrainer, run: RunState, path: Path, stored: list[Path]) -> dict[str, Any]:
    """Tensors with the names of some of the weights, for this model."""
    raws: dict[str, Raw] = {}
    for file in stored:
        raws |= files.read(file)
    crossing = _crossing(core, run, path)
    return _through_file(core, crossing.weights(raws, core.strategy.weight_shapes(core.trainer.model)))


def load_optimizer(core: SavedTrainer, run: RunState, path: Path, stored: list[Path]) -> None:
    """Load moments and the count of updates; rates and other options are those of this run."""
    crossing = _crossing(core, run, path)
    updates = core.trainer.state.global_step - run.engine.get("skipped", 0)
    _, own = core.strategy.optimizer_state(core.trainer.optimizer, core.trainer.model)
    raws: dict[str, Raw] = {}
    for file in stored:
        raws |= files.read(file)
    found = crossing.optimizer(raws, run.optimizer, updates, own)
    core.strategy.load_optimizer(
        core.trainer.optimizer, core.trainer.model, _through_file(core, found), own | {"values": {}}, str(path)
    )


def _through_file(core: SavedTrainer, raws: dict[str, Raw]) -> dict[str, Any]:
    """Tensors of this framework, made by its own reader of safetensors files."""
    if not raws:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "crossing.safetensors"
        files.write(path, raws)
        return core.backend.weights.load_tensors(path)
