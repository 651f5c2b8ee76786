"""Several processes as one run: they agree on every step, and leave and save together."""

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import Any

from .. import randomness
from ..data.feistel import key_of
from ..data.order import BatchSampler
from ..data.process_sharding import every_nth, shards_by_sampler, with_streams_of
from ..data.worker_seeding import seed_streams
from ..distributed.collectives import ProcessGroup
from ..distributed.preemption import Watch
from ..errors import ProcessLostError
from .parts import TrainerParts

logger = logging.getLogger(__name__)

_RANKS = -105  # keeps the random streams of the processes apart from all other seeds
LONG_STEP = 0.5  # seconds
MOST_WORDS = 14  # numbers that travel with the gradients beside the loss and the items
_NEWS, _ASKS = 4, 5  # places in the message at the start of a step; one for each signal follows
_FLAGS = ("should_log", "should_evaluate", "should_save", "should_training_stop", "should_epoch_stop")


class TrainerTogether(TrainerParts):
    """What the loop asks of the other processes. A process alone answers itself, at no cost."""

    def share_batches(self, micro_batches: list[Any], num_items: Any) -> tuple[bool, Any]:
        """(whether any process has a batch for the next update, the items in the batches of all).

        Where the order of the samples says that all have theirs, nobody waits here. Then the items are those that can
        be expected, and the strategy corrects the gradients when these bring the real number; or they are a function,
        which waits for the others' when the loss is weighed, after the forward pass.
        """
        if self.processes.size == 1:
            return bool(micro_batches), num_items
        computes = len(micro_batches)
        if self._counts_items and micro_batches:
            computes = sum(items != 0 for items in self._micro_items)
        spare = bool(micro_batches) or self._spare is not None
        word = [self._saver.has_news, self._asks_after_step(), *self._watch.heard()]
        counts = self._counts_items and self.args.average_tokens_across_devices
        self._sharing = self.processes.size if counts else 1
        ahead = self._goes_ahead() and len(micro_batches) == self._plan.accumulation
        if ahead and self.strategy.carries and len(word) < MOST_WORDS:
            # As many as there are samples, until gradients have come together with the real number.
            expected = self._train_batch_size * len(micro_batches) if counts else None
            self.strategy.carry([float(num_items or 0), *map(float, word)], expected)
            num_items = num_items if expected is None else expected * self.processes.size
            self.processes.count_collective()
            self._told = self._told_with_gradients
            self._go_ahead(micro_batches, len(micro_batches) - computes if num_items else 0)
            return True, num_items
        mine = [float(num_items or 0), bool(micro_batches), computes, spare, *word]
        self._told = self.processes.all_gather_async(mine)
        if ahead:
            if counts:
                num_items = self._items_of_all if computes == len(micro_batches) else self._items_of_all()
            self._go_ahead(micro_batches, len(micro_batches) - computes if num_items else 0)
            return True, num_items
        self._idle, self._closes_early = False, False
        _, some, turns, spares, *_ = zip(*self._told())
        if self.strategy.lockstep and any(some):
            self._keep_in_step(micro_batches, int(max(turns)) - computes, [bool(s) for s in some], all(spares))
        # Whoever runs out of memory computes its micro-batches again, which must not concern the others.
        self.strategy.begin(all(turns) and not self.args.auto_find_batch_size)
        return any(some), self._items_of_all() if counts else num_items

    def _goes_ahead(self) -> bool:
        """Whether all processes are known to have all their micro-batches for the next update, so that none asks."""
        if not self.processes.is_async or not self.strategy.goes_ahead or self._needs_items or self._split > 1:
            return False
        sampler = getattr(self._plan.loader, "batch_sampler", None)
        if self.args.auto_find_batch_size or not isinstance(sampler, BatchSampler):
            return False
        ends = (self._place.step_in_epoch + 1) * self._plan.accumulation * sampler.batch_size * sampler.world
        return ends <= sampler.length

    def _go_ahead(self, micro_batches: list[Any], left_out: int) -> None:
        """`left_out`: how many of the micro-batches have no label that counts. The others need not know."""
        self._closes_early = self._own_step
        self._idle = left_out == len(micro_batches) and not self.strategy.lockstep
        if left_out and self.strategy.lockstep:
            self._stand_ins, self._spare = left_out, micro_batches[0]
        self.strategy.begin(True)

    def _items_of_all(self) -> Any:
        """The items in the batches of all processes for this update; waits for the others' word."""
        total = sum(row[0] for row in self._told())
        return int(total) if total.is_integer() else total

    def _asks_after_step(self) -> bool:
        """Whether wishes have to be compared after this step: a callback may have some of its own, or a clock that
        differs between processes. After a long step it is done in any case: it costs nothing beside it, and a signal
        that came meanwhile is heard of now, not a step later."""
        began, self._step_began = self._step_began, time.monotonic()
        is_long = self._step_began - began > LONG_STEP
        return is_long or bool(self.args.save_interval_minutes) or self.callback_handler.may_ask

    def is_sharded(self, loader: Any) -> bool:
        """Whether a loader gives each process its own batches: ours do, and those with a DistributedSampler."""
        return self.processes.size == 1 or self.backend.loaders.is_own(loader) or shards_by_sampler(loader)

    def own_batches(self, loader: Any) -> Iterator[Any]:
        """The batches of a loader that are this process's. Of a loader that knows nothing of processes, and that all
        of them have, each takes its turn."""
        iterate = self.backend.loaders.iterate
        if self.is_sharded(loader):
            return iterate(loader)
        streams = self.processes.broadcast_object(randomness.get_state(self.backend))
        if self.processes.is_main:
            batches = iterate(loader)
        else:
            batches = with_streams_of(streams, self.backend, lambda: iterate(loader))
        return every_nth(batches, self.processes.size, self.processes.rank)

    def _keep_in_step(self, micro_batches: list[Any], missing: int, some: list[bool], all_have: bool) -> None:
        """How many micro-batches this process computes for the others' sake, and which one: one of its own, of now or
        of before, or, where it never had any, another's."""
        self._stand_ins = missing
        if micro_batches:
            self._spare = micro_batches[0]
        if not all_have:
            giver = some.index(True)
            every = self.processes.all_gather_object(self._spare if self.processes.rank == giver else None)
            self._spare = every[giver] if self._spare is None else self._spare

    def agree(self) -> None:
        """After a step: what one process was asked to do, by a callback or a signal, all do.

        A signal and the end of a save were told when the step began. What callbacks ask for is compared only where
        there are any, in some process, that may ask for something of their own.
        """
        if self.processes.size == 1:
            return
        told, self._told = self._told, None
        rows = told() if told is not None else None
        if rows is None or any(row[_ASKS] for row in rows):
            rows = self._compare_wishes()
        self._hears_of_saves = any(row[_NEWS] for row in rows)
        heard = [any(column) for column in list(zip(*rows))[_ASKS + 1 :]]
        if any(heard):
            self._agreed = self._watch.received = self._watch.signals[heard.index(True)]

    def _told_with_gradients(self) -> list[list[float]]:
        """What came with them, as one row: that of the means, of which only whether they are zero is asked."""
        items, *word = self.strategy.carried()
        return [[items, 1.0, 1.0, 1.0, *word]]

    def _compare_wishes(self) -> list[list[float]]:
        """Of all processes, in the order of the messages at the start of a step; their wishes are in control then."""
        mine = [float(getattr(self.control, name)) for name in _FLAGS]
        own = [*mine, 0.0, 0.0, 0.0, 0.0, self._saver.has_news, 0.0, *self._watch.heard()]
        every = self.processes.all_gather(own)
        for name, values in zip(_FLAGS, zip(*every)):
            setattr(self.control, name, any(values))
        return [row[len(_FLAGS) :] for row in every]

    def _start_own_streams(self) -> None:
        """Other random numbers in every process, or all would drop the same neurons. The main one keeps its own."""
        if self.processes.rank:
            seed_streams(
                self.backend.NAME, key_of(self.args.seed, self.processes.rank, self.state.global_step, _RANKS) >> 1
            )

    def _share_model(self, again: bool = False) -> None:
        """The model as training calls it; evaluations call the model itself."""
        if self.processes.size == 1:
            return
        args = self.args
        if self._step_divides and not again:
            logger.warning(
                "training_step divides by num_items_in_batch itself. Gradients are averaged over the %d processes, so "
                "it is given the items of all processes divided by their number. One that asks for "
                "self.accelerator.num_processes, or leaves the loss to self.compute_loss, is given all of them.",
                self.processes.size,
            )
        self.strategy.sees_losses = self._own_step
        self.model_wrapped = self.strategy.rewrap() if again else self.strategy.wrap(self.model)
        if args.torch_compile:
            self.model_wrapped = self.backend.models.compiled(
                self.model_wrapped, args.torch_compile_backend, args.torch_compile_mode
            )


@contextlib.contextmanager
def lost_processes(processes: ProcessGroup, watch: Watch) -> Iterator[None]:
    """What the framework says when another process is gone, in words that name it."""
    try:
        with processes.explaining_lost_peers():
            yield
    except ProcessLostError:
        watch.leave_with_others()  # the launcher is about to end this one too, before it could say why
        raise
