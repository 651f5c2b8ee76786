"""world_invariant=True: a run has the same bytes on any number of processes.

| what depends on the number of processes otherwise | here |
|---|---|
| which samples are in a micro-batch | the same V micro-batches in an update (data/update_batches.py) |
| random numbers of a forward pass | each micro-batch is seeded by the step and its number in the update |
| those of samples and collators | seeded by the position in the data (as with seed_each_sample) |
| sums of gradients and of losses | in the order of a tree (distributed/sum_tree.py) |
| threads | set and stored, since sums over threads differ |

V is the accumulation times the processes of the first run. It is stored: a resume divides it by its own processes.
"""

import logging
import math
from typing import TYPE_CHECKING, Any

from .. import introspect
from ..data.feistel import key_of
from ..data.update_batches import UpdateBatches
from ..data.worker_seeding import seed_rngs
from ..errors import ArgumentError, DataError
from ..formats.schema import integer, record
from .loss import scaled_for_accumulation
from .part import Part, RunContext

if TYPE_CHECKING:
    from ..checkpoint.resume import StoredRun

logger = logging.getLogger(__name__)

NAME = "world_invariant"
_MICRO_BATCH, _REST_OF_STEP = -107, -108  # separate these seeds from all others


class WorldInvariance(Part):
    """Seeds micro-batches, and stores what has to stay the same."""

    name = NAME
    title = "state of world_invariant"
    schema = {NAME: record({"micro_batches": integer(1), "threads": integer(1)}, is_closed=True)}

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        self._threads = 1

    @property
    def is_active(self) -> bool:
        return bool(self.context.args.world_invariant)

    # -- before the first step

    def plan_ready(self) -> None:
        if not self.is_active:
            return
        self._refuse_overrides()
        self._refuse_data()
        self._threads = self.context.strategy.fix_threads(None)

    def load(self, stored: dict[str, Any], source: "StoredRun") -> None:
        if not self.is_active or NAME not in stored:
            return
        before, self._threads = self._threads, self.context.strategy.fix_threads(stored[NAME]["threads"])
        if before != self._threads:
            logger.warning(
                "world_invariant: the run computes with %d thread(s) per process, as since its start, and not with %d.",
                self._threads,
                before,
            )

    def begin_run(self) -> None:
        if not self.is_active or self.context.mesh.is_single:
            return
        kinds = self.context.processes.all_gather_object(self.context.strategy.processor())
        others = {kind: rank for rank, kind in reversed(list(enumerate(kinds))) if kind != kinds[0]}
        if others and self.context.mesh.is_main:
            kind, rank = min(others.items(), key=lambda item: item[1])
            logger.warning(
                "world_invariant: process 0 computes on %s, process %d on %s. Their results may differ in the last "
                "bits, so another number of processes may give other bytes.",
                kinds[0],
                rank,
                kind,
            )

    def _refuse_overrides(self) -> None:
        trainer = self.context.trainer
        if introspect.calls_collectives(trainer):
            raise ArgumentError(
                "world_invariant=True: methods of this Trainer exchange values between processes, and what they return "
                "depends on their number. Remove the exchange (or set the class attribute calls_collectives = False if "
                "it changes nothing of the loss), or remove world_invariant."
            )
        for name in ("compute_loss", "training_step"):
            if introspect.is_overridden(trainer, name) and introspect.reads_world_size(getattr(trainer, name)):
                raise ArgumentError(
                    f"world_invariant=True: {name} asks for the number of processes, but losses are added up and not "
                    "averaged over processes. Return the mean of the micro-batch, or its sum divided by "
                    "num_items_in_batch, or remove world_invariant."
                )
        if scaled_for_accumulation(trainer) is not None:
            raise ArgumentError(
                "world_invariant=True: this Trainer has losses that are averaged over micro-batches or processes "
                "(loss_is_scaled_for_ga, model_accepts_loss_kwargs=False), and not by their items. Remove the "
                "attribute, or world_invariant."
            )

    def _refuse_data(self) -> None:
        loader = self.context.plan.loader
        if not isinstance(getattr(loader, "batch_sampler", None), UpdateBatches):
            raise DataError(
                "world_invariant=True: the order of the training data is not oneloop's (an iterable dataset, a sampler "
                "or a loader of your own), so the samples of a micro-batch depend on the number of processes. Pass a "
                "dataset with __len__ and __getitem__, without a sampler, or remove world_invariant."
            )

    # -- in each update

    def seed_micro_batch(self, index: int) -> None:
        """Before the micro-batch at this place of those of this process: its random numbers are the same in any."""
        number = self.context.mesh.batch_index * self.context.plan.accumulation + index
        self._seed(number, _MICRO_BATCH)

    def seed_rest_of_step(self) -> None:
        """After the last micro-batch: what callbacks and evaluations draw, and what checkpoints store, is the same in
        all processes."""
        self._seed(0, _REST_OF_STEP)

    def _seed(self, number: int, what: int) -> None:
        args, step = self.context.args, self.context.state.global_step
        seed_rngs(self.backend.NAME, key_of(args.seed, step, number, what) >> 1)

    # -- checkpoints

    @property
    def _micro_batches(self) -> int:
        return self.context.plan.batches_per_step

    def state(self) -> dict[str, Any]:
        return {NAME: {"micro_batches": self._micro_batches, "threads": self._threads}}

    def properties(self) -> dict[str, Any]:
        return {"processor": self.context.strategy.processor()}


def exact_weight(weight: float) -> float:
    """A sum of class weights, rounded so that the sum over micro-batches is exact, and does not depend on its order."""
    return math.ldexp(round(math.ldexp(weight, 30)), -30) if math.isfinite(weight) else weight
