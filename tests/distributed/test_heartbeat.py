"""Which of three processes is lost: by what their notes on the board say, and once with three real processes."""

import json
import os
import signal
import subprocess
import sys

import pytest

from oneloop.distributed.heartbeat import LOST, Heartbeat
from oneloop.distributed.mesh import Axis, Mesh, Splits
from tests.distributed.watching import Watched

MEETING = 7
THERE = "another machine"


class Board:
    """The notes of all processes. One that lives writes its note again and again."""

    def __init__(self):
        self.notes, self.alive, self.written = {}, set(), {}

    def note(self, rank, alive=True, collective_count=MEETING, pid=None, space=THERE, **more):
        pid = 100 + rank if pid is None else pid
        self.notes[rank] = {
            "beat": 1,
            "meetings": collective_count,
            "host": "there",
            "pid": pid,
            "space": space,
            **more,
        }
        if alive:
            self.alive.add(rank)

    def read(self, key):
        rank = int(key) if key.isdigit() else None
        if rank not in self.notes:
            return self.written.get(key)
        self.notes[rank]["beat"] += rank in self.alive
        return json.dumps(self.notes[rank])

    def here(self, rank):
        """Where the numbers of processes mean what they mean to this process, which has written a note itself."""
        return json.loads(self.written[str(rank)])["space"]


@pytest.fixture
def board():
    return Board()


@pytest.fixture
def heartbeat(board):
    """signs(rank): the view of a process that has come to MEETING."""
    made = []

    def make(rank, read=board.read):
        made.append(Heartbeat(rank, 3, 2.0, board.written.__setitem__, read))
        made[-1].collective_count = MEETING
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture
def sleeper():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield child
    child.kill()
    child.wait(10)


def test_the_place_in_the_mesh_is_named_too(board, heartbeat):
    board.note(1, collective_count=MEETING - 1)
    board.note(2)
    looking = heartbeat(0)
    looking.place_of = Mesh((Axis("tensor", 3, Splits.WEIGHTS),)).place
    assert looking.describe_lost_rank("timed out").startswith("Process 1 (tensor 1, pid ")
    looking.place_of = Mesh.of_batches(3).place
    assert looking._who(1, {"pid": 7, "host": "here"}) == "Process 1 (pid 7 on here)"


@pytest.mark.parametrize(("rank", "hanging"), [(0, 1), (0, 2), (1, 0), (2, 1)])
def test_the_one_that_hangs_is_named(rank, hanging, board, heartbeat):
    (waiting,) = {0, 1, 2} - {rank, hanging}
    board.note(hanging, collective_count=MEETING - 1)
    board.note(waiting)
    said = heartbeat(rank).describe_lost_rank("timed out")
    assert said.startswith(f"Process {hanging} (pid {100 + hanging} on there) hangs: it is alive, but has not ")
    assert f"reached collective {MEETING} within ddp_timeout (2 s). This process ({rank} of 3) cannot continue" in said
    assert f"(timed out)\n\nProcess {hanging} is at " in said


def test_the_stacks_of_all_are_told(board, heartbeat):
    """Of the one that hangs first; those that wait at the same place together, and this process with its own."""
    board.note(1, collective_count=MEETING - 1, stack="  File a.py, line 1, in stuck")
    board.note(2, stack="  File b.py, line 2, in waiting")
    mine = heartbeat(0)
    mine._note()
    mine._note()
    said = mine.describe_lost_rank("timed out")
    _, hanging, own, waiting = said.split("\n\n")
    assert hanging == "Process 1 is at (most recent call last):\n  File a.py, line 1, in stuck"
    assert own.startswith("Process 0 waits at:\n") and "test_the_stacks_of_all_are_told" in own
    assert waiting == "Process 2 waits at:\n  File b.py, line 2, in waiting"


def test_a_process_that_explains_keeps_the_stack_of_its_wait(board, heartbeat):
    board.note(1, collective_count=MEETING - 1)
    board.note(2)
    mine = heartbeat(0)
    mine._note()
    mine._note()
    before = json.loads(board.written["0"])["stack"]
    mine.describe_lost_rank("")
    mine._note()
    assert json.loads(board.written["0"])["stack"] == before


def test_those_that_wait_at_the_same_place_are_named_together(board, heartbeat):
    for rank, stack in ((1, "there"), (2, "there")):
        board.note(rank, stack=stack)
    assert "\n\nProcesses 1, 2 wait at:\nthere" in heartbeat(0).describe_lost_rank("")


def test_others_tell_the_same_stacks(board, heartbeat):
    board.note(1, collective_count=MEETING - 1, stack="stuck here")
    board.note(2)
    first = heartbeat(0).describe_lost_rank("")
    board.notes[1]["stack"] = "another one"
    assert (
        heartbeat(2, read=lambda key: board.written.get(key)).describe_lost_rank("").endswith(first.split("\n\n", 1)[1])
    )


def test_a_note_has_a_stack_only_where_no_collective_was_reached(board, heartbeat):
    mine = heartbeat(1)
    mine._note()
    assert "stack" not in json.loads(board.written["1"])
    mine._note()
    stack = json.loads(board.written["1"])["stack"]
    assert "in test_a_note_has_a_stack_only" in stack and "mine._note()" in stack
    mine.collective_count += 1
    mine._note()
    assert "stack" not in json.loads(board.written["1"])


def test_a_stack_is_told_without_secrets(board, heartbeat):
    mine = heartbeat(1)
    for _ in range(2):
        mine._note(), "https://host/?token=hunter2hunter2hunter2hunter2"
    assert "_note()" in json.loads(board.written["1"])["stack"]
    assert "hunter" not in board.written["1"]


def test_one_whose_threads_do_not_run_is_not_called_dead(board, heartbeat, sleeper):
    looking = heartbeat(0)
    board.note(1, alive=False, pid=sleeper.pid, space=board.here(0))
    board.note(2)
    assert "hangs: it is alive, but none of its threads runs" in looking.describe_lost_rank("")


def test_nobody_hangs_who_has_come(board, heartbeat):
    """Others may even be further: their word to this one was lost."""
    board.note(1)
    board.note(2, collective_count=MEETING + 1)
    assert (
        heartbeat(0)
        .describe_lost_rank("")
        .startswith("The connection to another process was lost, although all of them send")
    )


def test_one_that_gives_no_sign_of_life_is_named_before_one_that_is_late(board, heartbeat):
    """It is the late one that waits for it."""
    board.note(1, collective_count=MEETING - 1)
    board.note(2, alive=False)
    assert (
        heartbeat(0)
        .describe_lost_rank("")
        .startswith("Process 2 (pid 102 on there) has died or lost its connection: no heart")
    )


def test_one_that_failed_is_named_with_its_error_before_all_others(board, heartbeat):
    board.note(1, alive=False, collective_count=MEETING - 1)
    board.note(2, alive=False, left="KeyError: 'broken'")
    own = heartbeat(0)
    name = "Process 2 (pid 102 on there) exited after an error: KeyError: 'broken'"
    assert own.find_lost_rank() == name
    assert own.describe_lost_rank("").startswith(name)


def test_an_error_is_named_before_the_deaths_that_follow_it(board, heartbeat, sleeper):
    """A launcher ends the others as soon as one has failed, and whoever misses another leaves as well."""
    sleeper.kill()
    sleeper.wait(10)
    own = heartbeat(0)
    board.note(1, pid=sleeper.pid, space=board.here(0))
    board.note(2, alive=False, left="KeyError: 'broken'")
    assert own.find_lost_rank().startswith("Process 2 ") and own.describe_lost_rank("").startswith("Process 2 ")
    del board.written[LOST]
    board.note(1, alive=False, left="ProcessLostError: Process 2 has left")
    assert own.find_lost_rank().startswith("Process 2 ") and own.describe_lost_rank("").startswith("Process 2 ")
    del board.written[LOST]
    board.note(2, pid=sleeper.pid, space=board.here(0))
    assert own.find_lost_rank().startswith("Process 2 ") and own.describe_lost_rank("").startswith("Process 2 ")


def test_one_that_has_ended_well_is_lost_only_to_those_who_wait_for_it(board, heartbeat):
    board.note(1)
    board.note(2, alive=False, left="")
    own = heartbeat(0)
    assert own.find_lost_rank() is None
    assert own.describe_lost_rank("").startswith(
        "Process 2 (pid 102 on there) exited while other processes are still running"
    )


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")
@pytest.mark.parametrize(
    ("number", "state"),
    [(signal.SIGKILL, "has died"), (signal.SIGSTOP, "is stopped (SIGSTOP)")],
    ids=["dead", "stopped"],
)
def test_a_process_of_this_machine_is_looked_at(number, state, board, heartbeat, sleeper):
    """Of two with the same number, only the one of this machine is the one that can be seen here."""
    sleeper.send_signal(number)
    flags = os.WEXITED | os.WSTOPPED | os.WNOWAIT
    os.waitid(os.P_PID, sleeper.pid, flags)  # it is a zombie or stopped now
    own = heartbeat(0)
    board.note(1, pid=sleeper.pid)
    board.note(2, pid=sleeper.pid, space=board.here(0))
    assert own.find_lost_rank() == (f"Process 2 (pid {sleeper.pid} on there) has died" if state == "has died" else None)
    assert own.describe_lost_rank("").startswith(
        f"Process 2 (pid {sleeper.pid} on there) {state}. This process (0 of 3)"
    )


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")
def test_one_that_has_exited_and_is_not_reaped_yet_has_not_died(board, heartbeat):
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie now
    own = heartbeat(0)
    board.note(1)
    board.note(2, pid=child.pid, space=board.here(0), left="")
    found = own.describe_lost_rank("")
    child.wait(10)
    gone = own.describe_lost_rank("")
    assert found.startswith(f"Process 2 (pid {child.pid} on there) exited while other processes are still running.")
    assert gone == found


def test_all_name_the_same_one(board, heartbeat):
    """Whoever leaves because of a loss is not named for it by the next to notice."""
    board.note(1, collective_count=MEETING - 1)
    board.note(2)
    first = heartbeat(0).describe_lost_rank("")
    assert board.written[LOST].startswith("Process 1 ")
    board.note(0, alive=False, left="ProcessLostError: Process 1 hangs")
    assert heartbeat(2).describe_lost_rank("").split(" This process")[0] == first.split(" This process")[0]


def test_a_board_that_is_gone(heartbeat):
    def read(key):
        raise ConnectionError("the store is gone")

    assert heartbeat(1, read).describe_lost_rank("").startswith("The launcher's store cannot be reached")


@pytest.mark.parametrize("error", [None, KeyError("broken")], ids=["well", "after an error"])
def test_a_process_that_leaves_says_so(error, board, heartbeat, monkeypatch):
    for name in ("last_exc", "last_value"):  # where the interpreter keeps what no one has caught
        monkeypatch.setattr(sys, name, error, raising=False)
    leaving = heartbeat(1)
    leaving.stop()
    assert json.loads(board.written["1"])["left"] == ("KeyError: 'broken'" if error else "")
    assert (heartbeat(0).find_lost_rank() or "").endswith("exited after an error: KeyError: 'broken'") == bool(error)


def test_the_error_of_a_process_is_told_without_secrets(board, heartbeat, monkeypatch):
    error = ConnectionError(f"{'x' * 445} https://host/?token=hunter2hunter2hunter2hunter2")  # longer than what is told
    for name in ("last_exc", "last_value"):
        monkeypatch.setattr(sys, name, error, raising=False)
    heartbeat(1).stop()
    assert json.loads(board.written["1"])["left"].startswith("ConnectionError: xxx")
    assert "hunter" not in board.written["1"]


@pytest.mark.slow
@pytest.mark.parametrize("hanging", [1, 2])
def test_three_real_processes(hanging, tmp_path):
    with Watched(3, tmp_path / "run", "--hang", f"{hanging}:3") as run:
        for rank in {0, 1, 2} - {hanging}:
            name = rf"Process {hanging} \(pid {run.pid(hanging)} on .*\) hangs: .* This process \({rank} of 3\)"
            run.wait_for(rf"ProcessLostError: {name}", seconds=90)
        os.kill(run.pid(hanging), signal.SIGKILL)
        assert [status for rank, status in enumerate(run.end()) if rank != hanging] == [1, 1]
