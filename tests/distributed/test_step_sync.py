"""The messages of a step: what is packed comes out again, and the layout on the wire is known."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from oneloop.data.order import BatchSampler, Order
from oneloop.distributed.mesh import Mesh
from oneloop.distributed.step_sync import FLAGS, NO_STATUS, ControlMessage, StepMessage, StepSync

MESSAGES = [
    StepMessage(),
    StepMessage(12.0, True, 2, True, True, False, (False, True)),
    StepMessage(0.5, False, 0, True, False, True, (True,)),
]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_comes_out_as_it_went_in(message):
    row = message.pack()
    assert all(isinstance(number, float) for number in row)
    assert StepMessage.unpack(row) == message


def test_the_layout_of_a_message():
    assert MESSAGES[1].pack() == [12.0, 1.0, 2.0, 1.0, 1.0, 0.0, 0.0, 1.0]
    assert MESSAGES[1].pack_status() == [1.0, 0.0, 0.0, 1.0]


def test_means_that_come_with_gradients_are_true_where_any_process_said_so():
    found = StepMessage.unpack_status([0.5, 0.0, 0.25, 0.0])
    assert found.save_ended and not found.may_change_control and found.signals == (True, False)
    assert found.has_batch and found.has_dummy_batch and found.num_micro_batches


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_about_the_control(message):
    flags = tuple(i % 2 == 0 for i in range(len(FLAGS)))
    row = ControlMessage(flags, message).pack()
    assert len(row) == len(FLAGS) + len(message.pack())
    assert ControlMessage.unpack(row) == ControlMessage(flags, message)


def test_every_flag_of_the_control_travels():
    from oneloop import TrainerControl

    control = TrainerControl()
    assert set(FLAGS) == {name for name in vars(control) if name.startswith("should_")}


# -- one of two processes, of which the other is not asked


class Alone(StepSync):
    """After two updates, an epoch of eight samples is over."""

    def __init__(self):
        loader = SimpleNamespace(batch_sampler=BatchSampler(partial(Order, 8), 2, num_shards=2))
        processes = SimpleNamespace(size=2, count_collective=lambda: None)
        core = SimpleNamespace(processes=processes, mesh=Mesh.of_batches(2), trainer=SimpleNamespace())
        super().__init__(SimpleNamespace(core=core, plan=SimpleNamespace(loader=loader, accumulation=1)))
        self.run.position = SimpleNamespace(step_in_epoch=2)
        self.signals = SimpleNamespace(signals=())
        self.compared = 0

    def _compare_control(self):
        self.compared += 1
        return NO_STATUS


@pytest.mark.parametrize("may_change_control", [True, False])
def test_at_the_end_of_an_epoch_processes_compare_what_they_want_if_they_did_in_its_steps(may_change_control):
    """Without another message: all know that nobody has a batch."""
    sync = Alone()
    sync._messages = lambda: replace(NO_STATUS, may_change_control=may_change_control)
    sync.sync_after_update()
    assert not sync.sync_before_update([], None).has_batch
    sync.sync_after_update()
    assert sync.compared == 2 * may_change_control


@pytest.mark.parametrize(("length", "all_have"), [(7, False), (8, True), (9, True)])
def test_nobody_is_asked_where_all_have_whole_batches(length, all_have):
    sync = Alone()
    run = sync.run
    run.plan.loader.batch_sampler = BatchSampler(partial(Order, length), 2, num_shards=2)
    run.position.step_in_epoch = 1
    run.core.processes.is_async = True
    run.core.strategy = SimpleNamespace(skips_presync=True)
    run.core.trainer = SimpleNamespace(args=SimpleNamespace(auto_find_batch_size=False))
    counting, contract = SimpleNamespace(is_given=False), SimpleNamespace(gathers=False)
    run.update = SimpleNamespace(counting=counting, contract=contract, split=1)
    run.hooks = SimpleNamespace(wants_presync=())
    assert sync._all_have_batches() is all_have


@pytest.mark.parametrize("signals", [1, 11, 12, 40])
def test_numbers_that_travel_with_gradients_fit_beside_the_loss(signals, monkeypatch):
    ddp = pytest.importorskip("oneloop.backends.torch.ddp")
    carried, sync = [], Alone()
    run = sync.run
    run.update = SimpleNamespace(counting=SimpleNamespace(counts=False))
    run.checkpointer = SimpleNamespace(writer=SimpleNamespace(has_finished_save=False))
    run.core.strategy = SimpleNamespace(can_piggyback=True, piggyback=lambda numbers, expected: carried.append(numbers))
    for name, value in (("_may_change_control", False), ("_received", (False,) * signals), ("_all_have_batches", True)):
        monkeypatch.setattr(sync, name, lambda value=value: value)
    for name in ("_update_without_presync", "_send"):
        monkeypatch.setattr(sync, name, lambda *given: None)
    run.core.trainer = SimpleNamespace(args=SimpleNamespace(average_tokens_across_devices=True))
    sync.sync_before_update(["batch"], None)
    assert all(len(numbers) + 1 <= ddp.WORD for numbers in carried) and len(carried) == (signals < 12)
