"""Copies of the state for a save. Training waits for all of them, and may change the state afterwards."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..formats.safetensors_io import from_numpy
from ..formats.structure import AVERAGE
from . import store
from .contents import Contents
from .copies import Buffers
from .live_state import run_state
from .overrides import Gathered
from .run_state import OPTIMIZER, RANDOM, RUN, STATE

if TYPE_CHECKING:
    from ..trainer.internals import Internals
    from ..trainer.run import Run


class StateCopies:
    """Created for each run: its saves reuse the host buffers."""

    def __init__(self, run: "Run") -> None:
        self.run = run
        self._buffers = Buffers()
        self.is_reserved = False  # memory for the first save, or it is not worth it

    @property
    def core(self) -> "Internals":
        return self.run.core

    def reserve_memory(self) -> None:
        """Reserve memory for the copies of the first save, once the optimizer has its state; later saves reuse it."""
        self.is_reserved = True
        core = self.core
        args, weights, state = core.trainer.args, core.backend.weights, core.trainer.state
        one_writer = core.processes.size == 1 and self.run.checkpointer.model_files.as_built
        if args.save_strategy == "no" or not args.save_async or not one_writer:
            return
        if args.save_strategy == "steps" and 0 < state.max_steps < state.save_steps:
            return
        model = core.backend.models.unwrap(core.trainer.model)
        tensors: dict[str, Any] = {}
        if not core.backend.models.is_adapter(model):
            tensors |= {f"model/{name}": t for name, t in weights.model_tensors(model)[0].items()}
        if not args.save_only_model:
            found, _ = core.strategy.optimizer_state(core.trainer.optimizer, core.trainer.model)
            tensors |= {f"optimizer/{name}": t for name, t in found.items()}
        self._buffers.prepare({name: weights.room(t) for name, t in tensors.items()}, weights.raw)

    def _copies(self, tensors: dict[str, Any]) -> dict[str, Any]:
        return self._buffers.copy(tensors, self.core.backend.weights)

    def whole(self, stage: Path, state: Any, gathered: Gathered | None) -> Contents:
        """All files of a checkpoint that one process writes, or those of the process that commits."""
        contents, files, models = Contents(), self.run.checkpointer.model_files, self.core.backend.models
        if not files.as_built or models.is_adapter(models.unwrap(self.core.trainer.model)):
            files.finite_values.check_model(f"{store.PREFIX}-{state.global_step}")
        if files.as_built:
            files.add_model(contents, stage, self._copies)
        else:
            files.save_quietly(str(stage))  # an override may write anything
        if gathered is not None:
            self._add_optimizer(contents, gathered)
            self._add_average(contents)
            streams = {name: from_numpy(array.copy()) for name, array in gathered.stored_streams().items()}
            contents.tensors[RANDOM] = (streams, {})
            contents.add_json(RUN, run_state(self.run, gathered).to_json())
        contents.texts[STATE] = self.run.events.history.to_json(state).encode()
        return contents

    def part(self, gathered: Gathered | None) -> Contents:
        """What a process writes that does not commit."""
        contents, models = Contents(), self.core.backend.models
        if not models.is_adapter(models.unwrap(self.core.trainer.model)):
            self.run.checkpointer.model_files.add_weights(contents, self._copies)
        if gathered is not None:
            self._add_optimizer(contents, gathered)
        return contents

    def _add_optimizer(self, contents: Contents, gathered: Gathered) -> None:
        weights = self.core.backend.weights
        tensors, data = gathered.optimizer
        if not data:  # an override has stored it
            return
        copies = self._copies({f"optimizer/{name}": t for name, t in tensors.items()})
        raws = {name.removeprefix("optimizer/"): weights.raw(value) for name, value in copies.items()}
        contents.tensors[OPTIMIZER] = (raws, {"format": weights.LAYOUT})

    def _add_average(self, contents: Contents) -> None:
        weights, values = self.core.backend.weights, self.run.update.modes.average.named_values()
        if values:
            copies = self._copies({f"average/{name}": value for name, value in values.items()})
            raws = {name.removeprefix("average/"): weights.raw(value) for name, value in copies.items()}
            contents.tensors[AVERAGE] = (raws, {"format": weights.LAYOUT})
