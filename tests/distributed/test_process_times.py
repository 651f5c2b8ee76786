"""Each process's own part of a step: without waiting for the others, so that the slowest one shows."""

from types import SimpleNamespace

import pytest

from oneloop.distributed.mesh import Mesh
from oneloop.trainer import process_times
from oneloop.trainer.process_times import ProcessTimes


def test_the_figures_of_a_run_on_two_processes(shared):
    lines = shared(2)[0]["timed"]
    told = [line for line in lines if line]
    assert lines[1:4:2] == told  # after 10 and 20 of 20 steps
    for line in told:
        assert sorted(line) == ["process_seconds/process 0", "process_seconds/process 1"]
        assert line["process_seconds/process 1"] >= 0.02  # it sleeps in each forward pass
        assert line["process_seconds/process 0"] > 0


def test_one_process_has_nothing_to_compare(shared):
    assert not any(shared(1)[0]["timed"])


@pytest.fixture
def part(monkeypatch):
    """A part whose clock is `part.now`, as one of two processes; the other one tells 0.5 s."""
    meter = SimpleNamespace(last_data_wait=0.0, told=[])
    meter.add_figures = meter.told.append
    context = SimpleNamespace(
        backend=None,
        parts=SimpleNamespace(of=lambda kind: meter),
        mesh=Mesh.of_batches(2),
        state=SimpleNamespace(global_step=0),
        strategy=SimpleNamespace(forward_is_collective=False, reached_exchange=0.0),
        processes=SimpleNamespace(all_gather=lambda row: [row, [0.5]]),
    )
    made = ProcessTimes(context)
    made.now, made.meter = 100.0, meter
    monkeypatch.setattr(process_times.time, "perf_counter", lambda: made.now)
    made.begin_run()
    return made


def step(part, data=0.0, forward=0.0, backward=0.0, waiting=0.0, optimizer=0.0, overlaps=True):
    part.meter.last_data_wait = data
    part.now += 50.0  # an evaluation, or a message before the update
    part.start_update([])
    part.now += forward
    part.context.strategy.reached_exchange = part.now if overlaps else 1.0
    part.now += backward
    part.end_accumulation([])
    part.now += waiting
    part.gradients_ready(None)
    part.now += optimizer
    part.context.state.global_step += 1
    part.end_step(part.context.state.global_step)
    part.now += 50.0  # a log, a save


def test_waiting_is_not_counted(part):
    for _ in range(10):
        step(part, data=1.0, forward=2.0, backward=4.0, waiting=8.0, optimizer=16.0)
    assert part.log() == {}
    assert part.meter.told == [{"process_seconds/process 0": 19.0, "process_seconds/process 1": 0.5}]


def test_backward_passes_count_where_gradients_are_exchanged_after_them(part):
    for _ in range(10):
        step(part, forward=2.0, backward=4.0, waiting=8.0, overlaps=False)
    part.log()
    assert part.meter.told[0]["process_seconds/process 0"] == 6.0


def test_a_message_every_ten_steps(part):
    for count in range(1, 31):
        step(part, forward=float(count))
        part.log()
    assert [each["process_seconds/process 0"] for each in part.meter.told] == [5.5, 15.5, 25.5]


def test_a_step_that_is_left_out_has_no_time(part):
    for _ in range(10):
        step(part, forward=1.0)
        part.context.state.global_step += 1
        part.end_step(part.context.state.global_step)
    part.log()
    assert part.meter.told[0]["process_seconds/process 0"] == 1.0


def test_where_forward_passes_are_collectives_nothing_is_timed(part):
    assert part.is_active
    part.context.strategy.forward_is_collective = True
    assert not part.is_active


def test_of_many_processes_the_slowest():
    found = process_times._shown({rank: float(rank % 50) for rank in range(100)})
    assert found == {f"process_seconds/process {rank}": 49.0 - (rank % 50 == 48) for rank in (48, 49, 98, 99)} | {
        "process_seconds/median": 24.5
    }
