"""The thread that writes saves: what follows a save, and where errors go."""

import logging
import threading

import pytest

from oneloop.checkpoint.writer import SaveWriter
from oneloop.errors import CheckpointError, NonFiniteError


class Group:
    """One of two processes: what it sends is kept, and the other one's values are given."""

    size = 2

    def __init__(self, rank, of_main=(), failed=False):
        self.rank, self.is_main, self.of_main, self.failed, self.sent = rank, rank == 0, list(of_main), failed, []

    def broadcast_object(self, value):
        self.sent.append(list(value))
        return value if self.is_main else self.of_main

    def all_gather(self, values):
        self.sent.append(values)
        return [values, [self.failed]] if self.is_main else [[self.failed], values]


class Alone:
    size, rank, is_main = 1, 0, True


@pytest.fixture
def done():
    return []


@pytest.fixture
def make(done):
    made = []

    def writer(group=None, writes=True, is_sharded=False):
        events = []
        made.append(SaveWriter(group or Alone(), writes, is_sharded, lambda name, **facts: events.append(name)))
        made[-1].events = events
        return made[-1]

    yield writer
    for each in made:
        each.drain()


@pytest.fixture
def ends(done):
    return (lambda: done.append("saved")), (lambda: done.append("failed"))


def fail(error):
    def job():
        raise error

    return job


@pytest.mark.parametrize("background", [True, False])
def test_what_follows_a_save_runs_in_the_main_thread_once(make, ends, done, background):
    writer, threads = make(), []
    writer.submit(lambda: threads.append(threading.current_thread()), ends, "checkpoint-1", background)
    writer.wait()
    assert done == [] and writer.has_finished_save and writer.can_end
    assert (threads[0] is threading.main_thread()) is not background
    assert writer.end() == [] and done == ["saved"]
    assert writer.end() == [] and done == ["saved"] and not writer.can_end


def test_an_error_of_the_disk_is_no_error_of_the_run(make, ends, done, caplog):
    writer = make()
    writer.submit(fail(OSError(28, "full")), ends, "run/checkpoint-1", True)
    writer.wait()
    assert writer.end() == [] and done == ["failed"] and writer.failures == 1 and writer.events == ["save_failed"]
    assert "run/checkpoint-1 was NOT saved" in caplog.text
    writer.submit(lambda: None, ends, "checkpoint-2", True)
    writer.wait()
    assert writer.end() == [] and done == ["failed", "saved"] and writer.failures == 1


def test_values_that_are_not_finite_are_told_and_no_failure_of_the_disk(make, ends, done):
    writer = make()
    writer.submit(fail(NonFiniteError("NaN in a")), ends, "run/checkpoint-1", True)
    writer.wait()
    assert writer.end() == ["checkpoint-1: NaN in a"] and done == ["failed"] and writer.failures == 0
    assert writer.end() == []


def test_a_save_that_could_not_begin_has_a_result_and_nothing_follows(make, done):
    writer = make()
    writer.refuse(OSError(28, "full"), "checkpoint-1")
    writer.refuse(NonFiniteError("NaN in a"), "checkpoint-2")
    assert writer.end() == ["checkpoint-2: NaN in a"] and done == [] and writer.failures == 1


@pytest.mark.parametrize("use", ["wait", "end", "submit"])
def test_another_error_is_raised_once_at_the_next_use(make, ends, done, use):
    writer, error = make(), RuntimeError("broken")
    writer.submit(fail(error), ends, "checkpoint-1", True)
    writer._thread.join()
    assert writer.has_finished_save
    given = {"submit": (lambda: None, ends, "checkpoint-2", True)}.get(use, ())
    with pytest.raises(CheckpointError, match="cannot write a checkpoint: broken") as caught:
        getattr(writer, use)(*given)
    assert caught.value.__cause__ is error and done == []
    writer.wait()


def test_the_end_of_a_run_hides_no_error_and_loses_no_save(make, ends, done, caplog):
    writer = make(Group(0))
    writer.submit(lambda: None, ends, "checkpoint-1", True)
    writer.drain()
    assert done == ["saved"] and writer.processes.sent == [], "nothing is sent: the others may be gone"
    writer.submit(fail(RuntimeError("broken")), ends, "checkpoint-2", True)
    writer.drain()
    assert "cannot write a checkpoint: broken" in caplog.text and done == ["saved"]


def test_a_process_that_does_not_write_follows_the_results_of_the_main_one(make, ends, done):
    writer = make(Group(1, of_main=[True, False, "checkpoint-3: NaN"]), writes=False)
    for _ in range(3):
        writer.expect(ends)
    assert writer.end() == ["checkpoint-3: NaN"] and done == ["saved", "failed", "failed"]


def test_what_the_main_process_has_found_is_sent_once(make, ends, done):
    writer = make(Group(0))
    assert not writer.can_end
    writer.submit(lambda: None, ends, "checkpoint-1", True)
    writer.wait()
    assert not writer.can_end, "the others do not know yet"
    writer.expect_result()
    assert writer.can_end
    writer.end()
    writer.end()
    assert writer.processes.sent == [[True], []] and done == ["saved"] and not writer.can_end


def test_every_process_that_writes_whole_checkpoints_follows_its_own(make, ends, done):
    writer = make(Group(1, of_main=[True]))
    writer.submit(fail(OSError(28, "full")), ends, "checkpoint-1", True)
    writer.wait()
    writer.end()
    assert done == ["failed"]


@pytest.mark.parametrize("error", [None, OSError(28, "full"), NonFiniteError("NaN in a")], ids=str)
def test_a_shard_that_cannot_be_written_is_told_to_the_process_that_waits(make, ends, done, error):
    writer = make(Group(1), writes=False, is_sharded=True)
    writer.submit((lambda: None) if error is None else fail(error), ends, "checkpoint-1", True, is_shard=True)
    writer.wait()
    assert writer.processes.sent == [[error is not None]] and not writer.waiting.failed.is_set()
    writer.wait()
    assert writer.processes.sent[1:] == [[False]], "only once"
    assert writer.end() == [] and done == [], "the main process has the result"
    main = make(Group(0, failed=error is not None), is_sharded=True)
    main.await_shards()
    main.wait()
    assert main.waiting.failed.is_set() is (error is not None)
    main.await_shards()
    assert not main.waiting.failed.is_set(), "the next save begins anew"


def test_the_end_of_a_shard_is_news_too(make, ends):
    writer = make(Group(1), writes=False, is_sharded=True)
    writer.submit(lambda: None, ends, "checkpoint-1", True, is_shard=True)
    writer._thread.join()
    assert writer.has_finished_save
    writer.end()
    assert not writer.has_finished_save


def test_a_save_that_waits_for_the_one_before_is_logged(make, ends, caplog):
    writer, go_on = make(), threading.Event()
    for number in (1, 2):
        go_on.clear()
        writer.submit(lambda: go_on.wait(10), ends, f"checkpoint-{number}", True)
        threading.Timer(0.1, go_on.set).start()
        with caplog.at_level(logging.INFO):
            writer.wait(f"run/checkpoint-{number + 1}")
    levels = [record.levelno for record in caplog.records if "for the previous save" in record.getMessage()]
    assert levels == [logging.WARNING, logging.INFO] and writer.waits == 2 and writer.events == ["save_waited"] * 2
