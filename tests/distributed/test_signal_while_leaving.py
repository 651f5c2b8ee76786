"""A signal to one process while another has already made all of them leave: it changes nothing."""

import os
import re
import signal
from pathlib import Path

import pytest

from oneloop.distributed.preemption import SignalHandler
from tests.checkpoint.children import damage_of_latest
from tests.distributed.watching import Watched

SCRIPT = Path(__file__).with_name("lingering.py")


@pytest.mark.parametrize(
    ("first", "second", "number"),
    [
        (1, 0, signal.SIGINT),  # to the one that writes the last checkpoint
        pytest.param(0, 1, signal.SIGTERM, marks=pytest.mark.slow),  # to one that waits for it
    ],
    ids=["to the main process", "to the other"],
)
def test_all_save_and_leave_on_the_first_signal(first, second, number, tmp_path):
    output = tmp_path / "run"
    argv = ("--pause", 0.1, "--steps", 400, "--set", "save_steps=1000")
    with Watched(2, output, *argv, script=SCRIPT) as run:
        run.signal(signal.SIGTERM, first, step=3)
        run.wait_for("rank 0 saves")
        os.kill(run.pid(second), number)
        run.wait_for(rf"oneloop: {number.name}: finishing this step")
        Path(f"{output}.go").touch()
        assert run.end() == [75, 75]
        said = run.said
    saved = re.findall(
        r"Training interrupted \(SIGTERM\)\. Checkpoint saved to \S*checkpoint-(\d+);.*Exit status 75", said
    )
    assert len(saved) == 2 and len(set(saved)) == 1, said
    assert "KeyboardInterrupt" not in said
    assert [path.name for path in output.glob("checkpoint-*")] == [f"checkpoint-{saved[0]}"]
    assert damage_of_latest(output) == [] and list(output.glob(".*")) == []


def test_the_first_signal_is_the_one_that_is_remembered():
    """Others may have told this process of theirs before it got one itself; the next one works as it always did."""
    before = signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGUSR2)
    with SignalHandler(["USR1", "USR2"]) as watch:
        watch.received = signal.SIGUSR1
        os.kill(os.getpid(), signal.SIGUSR2)
        assert watch.received == signal.SIGUSR1 and watch.received_flags() == [True, False]
        assert (signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGUSR2)) == before
