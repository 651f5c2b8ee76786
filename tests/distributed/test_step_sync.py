"""The messages of a step: what is packed comes out again, and the layout on the wire is known."""

import pytest

from oneloop.distributed.step_sync import FLAGS, ControlMessage, StepMessage

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
    assert MESSAGES[1].pack_news() == [1.0, 0.0, 0.0, 1.0]


def test_means_that_come_with_gradients_are_true_where_any_process_said_so():
    found = StepMessage.unpack_news([0.5, 0.0, 0.25, 0.0])
    assert found.save_ended and not found.may_ask and found.signals == (True, False)
    assert found.has_batch and found.has_spare and found.computes


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
