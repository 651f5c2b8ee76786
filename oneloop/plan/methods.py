"""The method of the Trainer that plans a run."""

from typing import TYPE_CHECKING

from ..trainer.generic import Args_co, TrainerBase

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..trainer import Trainer as Base
    from .results import TrainingPlan
else:
    Base = TrainerBase


class PlanMethods(Base[Args_co]):
    """A part of the Trainer."""

    def plan(
        self,
        world: int | None = None,
        device_memory: str | float | None = None,
        per_machine: int = 8,
        largest: bool = True,
        search: bool = False,
        progress: "Callable[[str], None] | None" = None,
    ) -> "TrainingPlan":
        """What the run will need: memory of each process for each sharding stage, steps, tokens, sizes of checkpoints,
        messages, and what the arguments do. Nothing is trained, and nothing is written.

        Args:
            world: The number of processes; by default those of this run.
            device_memory: The memory of a device, such as "80GB" or a number of bytes, to see what fits.
            per_machine: The processes of one machine, which share a copy of the state in hybrid sharding.
            largest: Whether to look for the largest micro-batch that fits.
            search: Whether to look for layouts that fit: sizes of the axes, sharding, gradient_checkpointing and the
                micro-batch, with as many samples in an update.
            progress: Called with a line of text before each step that is simulated, which can take seconds.

        Returns:
            TrainingPlan: its figures, with to_text, to_dict and to_html.
        """
        from .building import build_plan  # quick imports: few runs are planned

        return build_plan(self, world, device_memory, per_machine, largest, search, progress)
