"""Several processes as one run: they agree on every step, and leave and save together."""

import contextlib
import logging
import signal
from collections.abc import Iterator
from typing import Any

from .. import randomness
from ..data.dealing import every_nth, minds_its_sampler, with_streams_of
from ..data.permutation import key_of
from ..data.seeding import seed_streams
from ..processes import Team
from .parts import TrainerParts

logger = logging.getLogger(__name__)

_RANKS = -105  # keeps the random streams of the processes apart from all other seeds
_FLAGS = ("should_log", "should_evaluate", "should_save", "should_training_stop", "should_epoch_stop")


class TrainerTogether(TrainerParts):
    """What the loop asks of the other processes. A process alone answers itself, at no cost."""

    def share_batches(self, micro_batches: list[Any], num_items: Any) -> tuple[bool, Any]:
        """(whether any process has a batch for the next update, the items in the batches of all)."""
        if self.team.size == 1:
            return bool(micro_batches), num_items
        computes = len(micro_batches)
        if self._counts_items and micro_batches:
            computes = sum(items != 0 for items in self._micro_items)
        spare = bool(micro_batches) or self._spare is not None
        every = self.team.compare([float(num_items or 0), bool(micro_batches), computes, spare])
        items, some, turns, spares = zip(*every)
        if self.strategy.lockstep and any(some):
            self._keep_in_step(micro_batches, int(max(turns)) - computes, [bool(s) for s in some], all(spares))
        # Whoever runs out of memory computes its micro-batches again, which must not concern the others.
        self.strategy.begin(all(turns) and not self.args.auto_find_batch_size)
        if not self._counts_items or not self.args.average_tokens_across_devices:
            self._sharing = 1
            return any(some), num_items
        self._sharing = self.team.size
        total = sum(items)
        return any(some), int(total) if total.is_integer() else total

    def is_dealt(self, loader: Any) -> bool:
        """Whether a loader gives each process its own batches: ours do, and those with a DistributedSampler."""
        return self.team.size == 1 or self.backend.loaders.is_own(loader) or minds_its_sampler(loader)

    def own_batches(self, loader: Any) -> Iterator[Any]:
        """The batches of a loader that are this process's. Of a loader that knows nothing of processes, and that all
        of them have, each takes its turn."""
        iterate = self.backend.loaders.iterate
        if self.is_dealt(loader):
            return iterate(loader)
        streams = self.team.from_main(randomness.get_state(self.backend))
        if self.team.is_main:
            batches = iterate(loader)
        else:
            batches = with_streams_of(streams, self.backend, lambda: iterate(loader))
        return every_nth(batches, self.team.size, self.team.rank)

    def _keep_in_step(self, micro_batches: list[Any], missing: int, some: list[bool], all_have: bool) -> None:
        """How many micro-batches this process computes for the others' sake, and which one: one of its own, of now or
        of before, or, where it never had any, another's."""
        self._stand_ins = missing
        if micro_batches:
            self._spare = micro_batches[0]
        if not all_have:
            giver = some.index(True)
            every = self.team.everyone(self._spare if self.team.rank == giver else None)
            self._spare = every[giver] if self._spare is None else self._spare

    def agree(self) -> None:
        """After a step: what one process was asked to do, by a callback or a signal, all do."""
        if self.team.size == 1:
            return
        control, received = self.control, self._watch.received
        mine = [float(getattr(control, name)) for name in _FLAGS]
        every = self.team.compare([*mine, float(self._saver.has_news), float(received or 0)])
        *flags, news, signals = zip(*every)
        for name, values in zip(_FLAGS, flags):
            setattr(control, name, any(values))
        self._hears_of_saves = any(news)
        if received is None and any(signals):
            self._watch.received = signal.Signals(int(max(signals)))

    def agree_to_leave(self) -> bool:
        """Whether a signal has reached any of the processes."""
        if self.team.size > 1 and self.is_in_train:
            heard = max(row[0] for row in self.team.compare([float(self._watch.received or 0)]))
            if heard:
                self._watch.received = signal.Signals(int(heard))
        return self.interrupted

    def _start_own_streams(self) -> None:
        """Other random numbers in every process, or all would drop the same neurons. The main one keeps its own."""
        if self.team.rank:
            seed_streams(self.backend.NAME, key_of(self.args.seed, self.team.rank, self.state.global_step, _RANKS) >> 1)

    def _share_model(self, again: bool = False) -> None:
        """The model as training calls it; evaluations call the model itself."""
        if self.team.size == 1:
            return
        args = self.args
        if self._step_divides and not again:
            logger.warning(
                "training_step divides by num_items_in_batch itself. Gradients are averaged over the %d processes, so "
                "it is given the items of all processes divided by their number. One that asks for "
                "self.accelerator.num_processes, or leaves the loss to self.compute_loss, is given all of them.",
                self.team.size,
            )
        self.model_wrapped = self.strategy.rewrap() if again else self.strategy.wrap(self.model)
        if args.torch_compile:
            self.model_wrapped = self.backend.models.compiled(
                self.model_wrapped, args.torch_compile_backend, args.torch_compile_mode
            )


@contextlib.contextmanager
def lost_processes(team: Team) -> Iterator[None]:
    """What the framework says when another process is gone, in words that name it."""
    try:
        yield
    except Exception as error:
        lost = team.explain(error)
        if lost is None:
            raise
        raise lost from error
