"""What the processes of a run tell each other in a step, and what each of them does with it.

A step of several processes has two moments of exchange:

- Before the update: who has batches for it, how many items they hold, and what has happened in between (a signal, a
  save that ended). Where the order of the samples says that all processes have all their micro-batches, nobody waits:
  the numbers travel with the gradients, or are waited for after the forward pass.
- After the update: what callbacks ask for. It is compared only where a callback may ask for something that those of the
  other processes do not.

A process alone answers itself, at no cost.
"""

import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ..data.order import BatchSampler
from ..errors import ProcessLostError
from .preemption import Watch

if TYPE_CHECKING:
    from ..trainer.run import Run

LONG_STEP = 0.5  # seconds
MOST_NUMBERS = 14  # that travel with the gradients beside the loss and the items
FLAGS = ("should_log", "should_evaluate", "should_save", "should_training_stop", "should_epoch_stop")


@dataclass(frozen=True)
class StepMessage:
    """One process's message before an update. On the wire it is a row of numbers; VERSION counts its layouts.

    Rows of means, as they come back with the gradients, unpack too: of them only whether they are zero is asked.
    """

    VERSION = 1

    items: float = 0.0  # in the micro-batches of this process
    has_batch: bool = False
    computes: int = 0  # micro-batches that count
    has_spare: bool = False  # a micro-batch to join in with, should others have more
    save_ended: bool = False  # in the background
    may_ask: bool = False  # what callbacks ask for has to be compared after the update
    signals: tuple[bool, ...] = ()  # received, for each signal that is watched

    def pack(self) -> list[float]:
        return [self.items, float(self.has_batch), float(self.computes), float(self.has_spare), *self.pack_news()]

    def pack_news(self) -> list[float]:
        """The part that is not about batches."""
        return self.packed_news(self.save_ended, self.may_ask, self.signals)

    @staticmethod
    def packed_news(save_ended: bool, may_ask: bool, signals: tuple[bool, ...]) -> list[float]:
        return [float(save_ended), float(may_ask), *map(float, signals)]

    @classmethod
    def unpack(cls, row: list[float]) -> "StepMessage":
        items, has_batch, computes, has_spare, *news = row
        return cls(items, bool(has_batch), int(computes), bool(has_spare), **cls._unpack_news(news))

    @classmethod
    def unpack_news(cls, row: list[float]) -> "StepMessage":
        """From the numbers of pack_news, as they come where all processes are known to have batches."""
        return cls(has_batch=True, computes=1, has_spare=True, **cls._unpack_news(row))

    @staticmethod
    def _unpack_news(row: list[float]) -> dict[str, Any]:
        return {"save_ended": bool(row[0]), "may_ask": bool(row[1]), "signals": tuple(map(bool, row[2:]))}


@dataclass(frozen=True)
class ControlMessage:
    """One process's message after an update: what its callbacks ask for, and the news since the step began."""

    VERSION = 1

    flags: tuple[bool, ...]  # of the control, in the order of FLAGS
    news: StepMessage

    def pack(self) -> list[float]:
        return [*map(float, self.flags), *self.news.pack()]

    @classmethod
    def unpack(cls, row: list[float]) -> "ControlMessage":
        return cls(tuple(map(bool, row[: len(FLAGS)])), StepMessage.unpack(row[len(FLAGS) :]))


@dataclass(frozen=True)
class StepSummary:
    """The messages of all processes before an update, taken together. It is made column by column: an object for each
    of a thousand processes would take milliseconds of every step."""

    items: float
    has_batch: bool  # any process
    most_computes: int
    least_computes: int
    all_have_spare: bool
    giver: int  # the first process that has a batch
    save_ended: bool  # in any process, as are the next two
    may_ask: bool
    signals: tuple[bool, ...]

    @classmethod
    def of(cls, rows: list[list[float]]) -> "StepSummary":
        items, has_batch, computes, has_spare, save_ended, may_ask, *signals = zip(*rows)
        return cls(
            sum(items),
            any(has_batch),
            int(max(computes)),
            int(min(computes)),
            all(has_spare),
            next((rank for rank, has in enumerate(has_batch) if has), 0),
            any(save_ended),
            any(may_ask),
            tuple(map(any, signals)),
        )

    @classmethod
    def of_news(cls, means: list[float]) -> "StepSummary":
        """From the means of pack_news, as they come with the gradients where all processes have batches."""
        if not any(means):
            return NO_NEWS
        news = StepMessage.unpack_news(means)
        return cls(0.0, True, 1, 1, True, 0, news.save_ended, news.may_ask, news.signals)


NO_NEWS = StepSummary(0.0, True, 1, 1, True, 0, save_ended=False, may_ask=False, signals=())


class SharedUpdate(NamedTuple):
    """What this process does in the next update, as the processes have agreed."""

    has_batch: bool  # any process has one: the epoch goes on
    num_items: Any  # in the batches of all: a number, a function that waits for it, or None
    sharing: int = 1  # processes that count their items together
    loss_travels: bool = False  # with the closing backward pass
    is_idle: bool = False  # none of this process's micro-batches counts
    joins: int = 0  # micro-batches that it computes only because the others compute that many
    spare: Any = None  # the one that it computes then


class StepSync:
    """Lives for one run."""

    def __init__(self, run: "Run") -> None:
        self.run = run
        self.signals: Watch | None = None
        self.agreed: signal.Signals | None = None  # the signal that all processes have agreed to leave on
        self._messages: Callable[[], StepSummary] | None = None  # of the step under way; waits for them
        self._any_may_ask = True  # in the last step
        self._step_began = 0.0
        self._spare: Any = None

    @contextlib.contextmanager
    def watching(self, names: list[str]) -> Iterator[None]:
        """Within it, signals are received, and the loss of another process is explained."""
        with Watch(names) as self.signals:
            try:
                with self.run.core.processes.explaining_lost_peers():
                    yield
            except ProcessLostError:
                self.signals.leave_with_others()  # the launcher is about to end this one too, before it could say why
                raise

    @property
    def interrupted(self) -> bool:
        """A signal has asked the run to leave. Of several processes, none leaves on one that the others do not know."""
        if self.run.core.processes.size > 1:
            return self.agreed is not None
        return self.signals is not None and self.signals.received is not None

    # -- before an update

    def share(self, micro_batches: list[Any], num_items: Any) -> SharedUpdate:
        """Whether any process has a batch for the next update, and the items in the batches of all.

        Where the order of the samples says that all have theirs, nobody waits here. Then the items are those that can
        be expected, and the strategy corrects the gradients when these bring the real number; or they are a function,
        which waits for the others' when the loss is weighed, after the forward pass.
        """
        run, core = self.run, self.run.core
        if core.processes.size == 1:
            return SharedUpdate(bool(micro_batches), num_items)
        if not micro_batches and self._nobody_has_batches():
            self._messages = self._as_before
            return SharedUpdate(False, None)
        update, strategy, size = run.update, core.strategy, core.processes.size
        computes = len(micro_batches)
        if update.counting.counts and micro_batches:
            computes = sum(items != 0 for items in update.micro_items)
        news = run.checkpointer.pending.has_news, self._may_ask(), self._received()
        counts = update.counting.counts and core.trainer.args.average_tokens_across_devices
        sharing = size if counts else 1
        ahead = len(micro_batches) == run.plan.accumulation and self._all_have_batches()
        if ahead and strategy.carries and len(news[2]) + 2 < MOST_NUMBERS:
            # As many as there are samples, until gradients have come together with the real number.
            expected = run.sizes.per_process * len(micro_batches) if counts else None
            strategy.carry([float(num_items or 0), *StepMessage.packed_news(*news)], expected)
            num_items = num_items if expected is None else expected * size
            core.processes.count_collective()
            self._messages = self._came_with_gradients
            left_out = len(micro_batches) - computes if num_items else 0
            return self._go_ahead(micro_batches, num_items, sharing, left_out)
        has_spare = bool(micro_batches) or self._spare is not None
        self._messages = self._send(StepMessage(float(num_items or 0), bool(micro_batches), computes, has_spare, *news))
        if ahead:
            if counts:
                num_items = self._items_of_all if computes == len(micro_batches) else self._items_of_all()
            left_out = len(micro_batches) - computes if num_items else 0
            return self._go_ahead(micro_batches, num_items, sharing, left_out)
        return self._wait_for_all(micro_batches, num_items, sharing, computes)

    def any_has(self, micro_batches: list[Any]) -> bool:
        """Whether any process has a batch for a step that all leave out. A collective on several processes."""
        processes = self.run.core.processes
        if processes.size == 1:
            return bool(micro_batches)
        return any(has for (has,) in processes.all_gather([bool(micro_batches)]))

    def _send(self, message: StepMessage) -> Callable[[], StepSummary]:
        """A collective, which is waited for when its result is asked for."""
        rows = self.run.core.processes.all_gather_async(message.pack())
        return cache(lambda: StepSummary.of(rows()))

    def _wait_for_all(self, micro_batches: list[Any], num_items: Any, sharing: int, computes: int) -> SharedUpdate:
        strategy = self.run.core.strategy
        assert self._messages is not None
        every = self._messages()
        joins, gathers = 0, self.run.update.contract.gathers and strategy.mutes
        if (strategy.lockstep or gathers) and every.has_batch:
            joins = every.most_computes - computes
            self._find_spare(micro_batches, every)
        # Whoever runs out of memory computes its micro-batches again, which must not concern the others.
        finds_size = self.run.core.trainer.args.auto_find_batch_size
        # A micro-batch that a process computes only to join must not take part in DDP's exchange of gradients.
        uneven = gathers and every.least_computes != every.most_computes
        strategy.begin(every.least_computes > 0 and not finds_size and not uneven)
        total = self._items_of_all() if sharing > 1 else num_items
        return SharedUpdate(every.has_batch, total, sharing, joins=joins, spare=self._spare)

    def _all_have_batches(self) -> bool:
        """Whether all processes are known to have all their micro-batches for the next update, so that none asks."""
        run, core = self.run, self.run.core
        update = run.update
        if update.contract.gathers:
            return False
        if not core.processes.is_async or not core.strategy.goes_ahead or update.counting.is_given or update.split > 1:
            return False
        if core.trainer.args.auto_find_batch_size:
            return False
        return self._samples_left(self.run.position.step_in_epoch + 1) >= 0

    def _nobody_has_batches(self) -> bool:
        """Whether the epoch is known to be over in all processes."""
        return self._samples_left(self.run.position.step_in_epoch) <= 0

    def _samples_left(self, updates: int) -> float:
        """In the epoch, after so many updates of full micro-batches in all processes; NaN if that is not known."""
        plan = self.run.plan
        sampler = getattr(plan.loader, "batch_sampler", None)
        if not isinstance(sampler, BatchSampler):
            return math.nan
        return sampler.length - updates * plan.accumulation * sampler.batch_size * sampler.world

    def _go_ahead(self, micro_batches: list[Any], num_items: Any, sharing: int, left_out: int) -> SharedUpdate:
        """`left_out`: how many of the micro-batches have no label that counts. The others need not know."""
        strategy = self.run.core.strategy
        joins = left_out if strategy.lockstep else 0
        if joins:
            self._spare = micro_batches[0]
        strategy.begin(True)
        return SharedUpdate(
            True,
            num_items,
            sharing,
            loss_travels=self.run.update.contract.own_step,
            is_idle=left_out == len(micro_batches) and not strategy.lockstep,
            joins=joins,
            spare=self._spare,
        )

    def _items_of_all(self) -> Any:
        """The items in the batches of all processes for this update; waits for the others' messages."""
        assert self._messages is not None
        total = self._messages().items
        return int(total) if float(total).is_integer() else total

    def _may_ask(self) -> bool:
        """Whether requests have to be compared after this step: a callback may have some of its own, or a clock that
        differs between processes. After a long step it is done in any case: it costs nothing beside it, and a signal
        that came meanwhile is known now, not a step later."""
        began, self._step_began = self._step_began, time.monotonic()
        is_long = self._step_began - began > LONG_STEP
        trainer = self.run.core.trainer
        return is_long or bool(trainer.args.save_interval_minutes) or trainer.callback_handler.may_change_control

    def _received(self) -> tuple[bool, ...]:
        return () if self.signals is None else tuple(self.signals.heard())

    def _find_spare(self, micro_batches: list[Any], every: StepSummary) -> None:
        """A micro-batch to compute for the others' sake: one of its own, of now or of before, or, where this process
        never had any, another's."""
        processes = self.run.core.processes
        if micro_batches:
            self._spare = micro_batches[0]
        if not every.all_have_spare:
            given = processes.all_gather_object(self._spare if processes.rank == every.giver else None)
            self._spare = given[every.giver] if self._spare is None else self._spare

    # -- after an update

    def agree(self) -> None:
        """What one process was asked to do, by a callback or a signal, all do.

        A signal and the end of a save were told when the step began. What callbacks ask for is compared only where
        there are any, in some process, that may ask for something of their own.
        """
        if self.run.core.processes.size == 1:
            return
        messages, self._messages = self._messages, None
        every = messages() if messages is not None else None
        if every is not None:
            self._any_may_ask = every.may_ask
        if every is None or every.may_ask:
            every = self._compare_control()
        if every.save_ended:
            self.run.checkpointer.pending.expect_news()
        if any(every.signals):
            assert self.signals is not None
            self.agreed = self.signals.signals[every.signals.index(True)]
            self.signals.agree_on(self.agreed)

    def _as_before(self) -> StepSummary:
        """At the end of an epoch, where no message is sent: what is new is told in the next step."""
        return replace(NO_NEWS, may_ask=self._any_may_ask)

    def _came_with_gradients(self) -> StepSummary:
        """One message for all: the means of their numbers."""
        items, *news = self.run.core.strategy.carried()
        return StepSummary.of_news(news)

    def _compare_control(self) -> StepSummary:
        """A collective: the requests of all processes are in this one's control when it returns."""
        trainer, processes = self.run.core.trainer, self.run.core.processes
        news = StepMessage(save_ended=self.run.checkpointer.pending.has_news, signals=self._received())
        own = ControlMessage(tuple(getattr(trainer.control, name) for name in FLAGS), news)
        rows = processes.all_gather(own.pack())
        for name, values in zip(FLAGS, zip(*rows)):
            setattr(trainer.control, name, any(values))
        return StepSummary.of([row[len(FLAGS) :] for row in rows])
