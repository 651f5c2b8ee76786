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
from .mesh import Mesh
from .preemption import SignalHandler

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
    num_micro_batches: int = 0  # micro-batches that count
    has_dummy_batch: bool = False  # a micro-batch to join in with, should others have more
    save_ended: bool = False  # in the background
    may_change_control: bool = False  # what callbacks ask for has to be compared after the update
    signals: tuple[bool, ...] = ()  # received, for each signal that is watched

    def pack(self) -> list[float]:
        return [
            self.items,
            float(self.has_batch),
            float(self.num_micro_batches),
            float(self.has_dummy_batch),
            *self.pack_status(),
        ]

    def pack_status(self) -> list[float]:
        """The part that is not about batches."""
        return self.packed_status(self.save_ended, self.may_change_control, self.signals)

    @staticmethod
    def packed_status(save_ended: bool, may_change_control: bool, signals: tuple[bool, ...]) -> list[float]:
        return [float(save_ended), float(may_change_control), *map(float, signals)]

    @classmethod
    def unpack(cls, row: list[float]) -> "StepMessage":
        items, has_batch, num_micro_batches, has_dummy_batch, *status = row
        return cls(items, bool(has_batch), int(num_micro_batches), bool(has_dummy_batch), **cls._unpack_status(status))

    @classmethod
    def unpack_status(cls, row: list[float]) -> "StepMessage":
        """From the numbers of pack_status, as they come where all processes are known to have batches."""
        return cls(has_batch=True, num_micro_batches=1, has_dummy_batch=True, **cls._unpack_status(row))

    @staticmethod
    def _unpack_status(row: list[float]) -> dict[str, Any]:
        return {"save_ended": bool(row[0]), "may_change_control": bool(row[1]), "signals": tuple(map(bool, row[2:]))}


@dataclass(frozen=True)
class ControlMessage:
    """One process's message after an update: what its callbacks ask for, and the news since the step began."""

    VERSION = 1

    flags: tuple[bool, ...]  # of the control, in the order of FLAGS
    status: StepMessage

    def pack(self) -> list[float]:
        return [*map(float, self.flags), *self.status.pack()]

    @classmethod
    def unpack(cls, row: list[float]) -> "ControlMessage":
        return cls(tuple(map(bool, row[: len(FLAGS)])), StepMessage.unpack(row[len(FLAGS) :]))


@dataclass(frozen=True)
class StepSummary:
    """The messages of all processes before an update, taken together; items of a batch count once. It is made column by
    column: an object for each of a thousand processes would take milliseconds of every step."""

    items: float
    has_batch: bool  # any process
    max_micro_batches: int
    min_micro_batches: int
    all_have_dummy_batch: bool
    first_rank_with_batch: int  # the first process that has a batch
    save_ended: bool  # in any process, as are the next two
    may_change_control: bool
    signals: tuple[bool, ...]

    @classmethod
    def of(cls, rows: list[list[float]], mesh: Mesh) -> "StepSummary":
        items, has_batch, num_micro_batches, has_dummy_batch, save_ended, may_change_control, *signals = zip(*rows)
        return cls(
            sum(mesh.per_batch(items)),
            any(has_batch),
            int(max(num_micro_batches)),
            int(min(num_micro_batches)),
            all(has_dummy_batch),
            next((rank for rank, has in enumerate(has_batch) if has), 0),
            any(save_ended),
            any(may_change_control),
            tuple(map(any, signals)),
        )

    @classmethod
    def from_status(cls, means: list[float]) -> "StepSummary":
        """From the means of pack_status, as they come with the gradients where all processes have batches."""
        if not any(means):
            return NO_STATUS
        status = StepMessage.unpack_status(means)
        return cls(0.0, True, 1, 1, True, 0, status.save_ended, status.may_change_control, status.signals)


NO_STATUS = StepSummary(0.0, True, 1, 1, True, 0, save_ended=False, may_change_control=False, signals=())


class SharedUpdate(NamedTuple):
    """What this process does in the next update, as the processes have agreed."""

    has_batch: bool  # any process has one: the epoch goes on
    num_items: Any  # in the batches of all: a number, a function that waits for it, or None
    sharing: int = 1  # batches of processes that count their items together
    loss_follows_gradients: bool = False  # with the closing backward pass
    is_idle: bool = False  # none of this process's micro-batches counts
    dummy_steps: int = 0  # micro-batches that it computes only because the others compute that many
    dummy_batch: Any = None  # the one that it computes then


class StepSync:
    """Lives for one run."""

    def __init__(self, run: "Run") -> None:
        self.run, self.core, self.trainer = run, run.core, run.core.trainer
        self.signals: SignalHandler | None = None
        self.agreed_signal: signal.Signals | None = None  # the signal that all processes have agreed to leave on
        self._messages: Callable[[], StepSummary] | None = None  # of the step under way; waits for them
        self._any_may_change_control = True  # in the last step
        self._step_began = 0.0
        self._dummy_batch: Any = None

    @contextlib.contextmanager
    def starting(self, names: list[str]) -> Iterator[None]:
        """A context in which signals exit with their own status, until `watching` is entered. Of several processes, the
        launcher ends those that wait for one that has failed: what they say is about that one."""
        if not self.core.mesh.is_single:
            with self.core.processes.translate_lost_peer_errors():
                yield
            return
        with SignalHandler(names) as self.signals:
            self.signals.is_starting = True
            yield

    @contextlib.contextmanager
    def watching(self, names: list[str]) -> Iterator[None]:
        """A context in which signals are received, and the loss of another process is explained."""
        with self.signals or SignalHandler(names) as self.signals:
            self.signals.is_starting = False
            try:
                with self.core.processes.translate_lost_peer_errors():
                    yield
            except ProcessLostError:
                self.signals.exit_with_peers()  # the launcher is about to end this one too, before it could say why
                raise

    @property
    def interrupted(self) -> bool:
        """A signal has asked the run to leave. Of several processes, none leaves on one that the others do not know."""
        if not self.core.mesh.is_single:
            return self.agreed_signal is not None
        return self.signals is not None and self.signals.received is not None

    # -- before an update

    def sync_before_update(self, micro_batches: list[Any], num_items: Any) -> SharedUpdate:
        """Whether any process has a batch for the next update, and the items in the batches of all.

        Where the order of the samples says that all have theirs, nobody waits here. Then the items are those that can
        be expected, and the strategy corrects the gradients when these bring the real number; or they are a function,
        which waits for the others' when the loss is weighed, after the forward pass.
        """
        run, core = self.run, self.core
        if core.mesh.is_single:
            return SharedUpdate(bool(micro_batches), num_items)
        if not micro_batches and self._epoch_is_over_everywhere():
            self._messages = self._previous_summary
            return SharedUpdate(False, None)
        update, strategy, size = run.update, core.strategy, core.mesh.num_batches
        num_micro_batches = len(micro_batches)
        if update.counting.counts and micro_batches:
            num_micro_batches = sum(items != 0 for items in update.items_of(micro_batches))
        status = run.checkpointer.writer.has_finished_save, self._may_change_control(), self._received()
        counts = update.counting.counts and core.trainer.args.average_tokens_across_devices
        sharing = size if counts else 1
        ahead = len(micro_batches) == run.plan.accumulation and self._all_have_batches()
        if ahead and strategy.can_piggyback and len(status[2]) + 2 < MOST_NUMBERS:
            # As many as there are samples, until gradients have come together with the real number.
            # Only a loss that was divided by the expected number may be corrected.
            divides = counts and update.contract.divides_by_items
            expected = run.batch_size * len(micro_batches) if divides else None
            strategy.piggyback([float(num_items or 0), *StepMessage.packed_status(*status)], expected)
            num_items = num_items if expected is None else expected * size
            core.processes.count_collective()
            self._messages = self._piggybacked_summary
            left_out = len(micro_batches) - num_micro_batches if num_items else 0
            return self._update_without_presync(micro_batches, num_items, sharing, left_out)
        has_dummy_batch = bool(micro_batches) or self._dummy_batch is not None
        self._messages = self._send(
            StepMessage(float(num_items or 0), bool(micro_batches), num_micro_batches, has_dummy_batch, *status)
        )
        if ahead:
            if counts:
                num_items = self._items_of_all if num_micro_batches == len(micro_batches) else self._items_of_all()
            left_out = len(micro_batches) - num_micro_batches if num_items else 0
            return self._update_without_presync(micro_batches, num_items, sharing, left_out)
        return self._wait_for_all(micro_batches, num_items, sharing, num_micro_batches)

    def any_process_has_batch(self, micro_batches: list[Any]) -> bool:
        """Whether any process has a batch for a step that all leave out. A collective on several processes."""
        processes = self.core.processes
        if self.core.mesh.is_single:
            return bool(micro_batches)
        return any(has for (has,) in processes.all_gather([bool(micro_batches)]))

    def _send(self, message: StepMessage) -> Callable[[], StepSummary]:
        """A collective, which is waited for when its result is asked for."""
        core = self.core
        rows = core.processes.all_gather_async(message.pack())
        return cache(lambda: StepSummary.of(rows(), core.mesh))

    def _wait_for_all(
        self, micro_batches: list[Any], num_items: Any, sharing: int, num_micro_batches: int
    ) -> SharedUpdate:
        strategy, contract = self.core.strategy, self.run.contract
        assert self._messages is not None
        every = self._messages()
        dummy_steps, gathers = 0, contract.gathers and strategy.can_join_without_grad
        if (strategy.forward_is_collective or gathers) and every.has_batch:
            dummy_steps = every.max_micro_batches - num_micro_batches
            self._find_dummy_batch(micro_batches, every)
        # Whoever runs out of memory computes its micro-batches again, which must not concern the others.
        finds_size = self.trainer.args.auto_find_batch_size
        # A micro-batch that a process computes only to join must not take part in DDP's exchange of gradients.
        uneven = gathers and every.min_micro_batches != every.max_micro_batches
        strategy.begin(every.min_micro_batches > 0 and not finds_size and not uneven)
        total = self._items_of_all() if sharing > 1 else num_items
        sharing = self._averaged(sharing)
        return SharedUpdate(every.has_batch, total, sharing, dummy_steps=dummy_steps, dummy_batch=self._dummy_batch)

    def _averaged(self, sharing: int) -> int:
        """Of batches whose items are counted together, how many have their losses averaged: none if they are added."""
        return 1 if self.core.strategy.sums_gradients else sharing

    def _all_have_batches(self) -> bool:
        """Whether all processes are known to have all their micro-batches for the next update, so that none asks."""
        run, core = self.run, self.core
        update = run.update
        if update.contract.gathers:
            return False
        if (
            not core.processes.is_async
            or not core.strategy.skips_presync
            or update.counting.is_given
            or update.split > 1
        ):
            return False
        if core.trainer.args.auto_find_batch_size:
            return False
        if any(wants(core.trainer.state.global_step + 1) for wants in run.hooks.wants_presync):
            return False
        return self._remaining_samples(self.run.position.step_in_epoch + 1) >= 0

    def _epoch_is_over_everywhere(self) -> bool:
        """Whether the epoch is known to be over in all processes."""
        return self._remaining_samples(self.run.position.step_in_epoch) <= 0

    def _remaining_samples(self, updates: int) -> float:
        """In the epoch, after so many updates of full micro-batches in all processes; NaN if that is not known."""
        plan = self.run.plan
        sampler = getattr(plan.loader, "batch_sampler", None)
        return sampler.remaining(updates * plan.accumulation) if isinstance(sampler, BatchSampler) else math.nan

    def _update_without_presync(
        self, micro_batches: list[Any], num_items: Any, sharing: int, left_out: int
    ) -> SharedUpdate:
        """`left_out`: how many of the micro-batches have no label that counts. The others need not know."""
        strategy, contract = self.core.strategy, self.run.contract
        dummy_steps = left_out if strategy.forward_is_collective else 0
        if dummy_steps:
            self._dummy_batch = micro_batches[0]
        strategy.begin(True)
        return SharedUpdate(
            True,
            num_items,
            self._averaged(sharing),
            loss_follows_gradients=contract.has_default_step,
            is_idle=left_out == len(micro_batches) and not strategy.forward_is_collective,
            dummy_steps=dummy_steps,
            dummy_batch=self._dummy_batch,
        )

    def _items_of_all(self) -> Any:
        """The items in the batches of all processes for this update; waits for the others' messages."""
        assert self._messages is not None
        total = self._messages().items
        return int(total) if float(total).is_integer() else total

    def _may_change_control(self) -> bool:
        """Whether requests have to be compared after this step: a callback may have some of its own, or a clock that
        differs between processes. After a long step it is done in any case: it costs nothing beside it, and a signal
        that came meanwhile is known now, not a step later."""
        began, self._step_began = self._step_began, time.monotonic()
        is_long = self._step_began - began > LONG_STEP
        trainer = self.trainer
        return is_long or bool(trainer.args.save_interval_minutes) or trainer.callback_handler.may_change_control

    def _received(self) -> tuple[bool, ...]:
        return () if self.signals is None else tuple(self.signals.received_flags())

    def _find_dummy_batch(self, micro_batches: list[Any], every: StepSummary) -> None:
        """A micro-batch to compute for the others' sake: one of its own, of now or of before, or, where this process
        never had any, another's."""
        processes = self.core.processes
        if micro_batches:
            self._dummy_batch = micro_batches[0]
        if not every.all_have_dummy_batch:
            given = processes.all_gather_object(
                self._dummy_batch if processes.rank == every.first_rank_with_batch else None
            )
            self._dummy_batch = given[every.first_rank_with_batch] if self._dummy_batch is None else self._dummy_batch

    # -- after an update

    def sync_after_update(self) -> None:
        """What one process was asked to do, by a callback or a signal, all do.

        A signal and the end of a save were exchanged when the step began. What callbacks ask for is compared only where
        there are any, in some process, that may ask for something of their own.
        """
        run = self.run
        if self.core.mesh.is_single:
            return
        messages, self._messages = self._messages, None
        every = messages() if messages is not None else None
        if every is not None:
            self._any_may_change_control = every.may_change_control
        if every is None or every.may_change_control:
            every = self._compare_control()
        if every.save_ended:
            run.checkpointer.writer.expect_result()
        if any(every.signals):
            assert self.signals is not None
            self.agreed_signal = self.signals.signals[every.signals.index(True)]
            self.signals.agree_on(self.agreed_signal)

    def _previous_summary(self) -> StepSummary:
        """At the end of an epoch, where no message is sent: what is new is sent in the next step."""
        return replace(NO_STATUS, may_change_control=self._any_may_change_control)

    def _piggybacked_summary(self) -> StepSummary:
        """One message for all: the means of their numbers."""
        items, *status = self.core.strategy.piggybacked()
        return StepSummary.from_status(status)

    def _compare_control(self) -> StepSummary:
        """A collective: the requests of all processes are in this one's control when it returns."""
        run, trainer, processes = self.run, self.trainer, self.core.processes
        status = StepMessage(save_ended=run.checkpointer.writer.has_finished_save, signals=self._received())
        own = ControlMessage(tuple(getattr(trainer.control, name) for name in FLAGS), status)
        rows = processes.all_gather(own.pack())
        for name, values in zip(FLAGS, zip(*rows)):
            setattr(trainer.control, name, any(values))
        return StepSummary.of([row[len(FLAGS) :] for row in rows], self.core.mesh)
