"""Signals that ask a run to leave, without a run: which there are, what is said, and what a loader's worker does."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from oneloop.distributed.preemption import EXIT_STATUS, Preempted, SignalHandler, parse
from oneloop.errors import ArgumentError


def test_signals_by_name():
    expected = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]
    assert parse(["SIGTERM", "int", "Usr1"]) == expected and parse([]) == []


@pytest.mark.parametrize("name", ["SIGKILL", "kill", "STOP", "SIGNAL", "", "TERM "])
def test_signals_that_no_program_can_catch(name):
    with pytest.raises(
        ArgumentError, match=f"Invalid preemption_signals={name!r}: not a signal that a process can handle"
    ):
        parse(["SIGTERM", name])


def test_the_first_is_remembered_and_the_second_works_as_ever(capfd):
    heard, before = [], signal.getsignal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    try:
        with SignalHandler(["USR1", "USR2"]) as watch:
            assert watch.received is None and watch.received_flags() == [False, False]
            os.kill(os.getpid(), signal.SIGUSR1)
            assert watch.received == signal.SIGUSR1 and watch.received_flags() == [True, False] and heard == []
            os.kill(os.getpid(), signal.SIGUSR1)
            assert heard == [signal.SIGUSR1]
        assert "oneloop: SIGUSR1: finishing this step, then saving and exiting." in capfd.readouterr().err
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_the_handler_of_the_script_is_called_when_the_run_leaves():
    heard, before = [], signal.getsignal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    try:
        with SignalHandler(["USR1"]) as watch:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert heard == []
            with pytest.raises(Preempted, match="SIGUSR1"):
                watch.exit("Checkpoint saved.")
        assert heard == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_the_signal_that_processes_have_agreed_on_stays():
    with SignalHandler(["USR1", "USR2"]) as watch:
        watch.agree_on(signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR2)
        assert watch.received == signal.SIGUSR1 and watch.received_flags() == [True, False]


def test_a_watch_leaves_the_handlers_as_they_were():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)]
    with SignalHandler(["TERM", "USR1"]):
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)] != before
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)] == before


def test_in_another_thread_nothing_is_watched():
    """Python lets only the main thread have handlers."""
    before, seen = signal.getsignal(signal.SIGUSR1), []

    def run():
        with SignalHandler(["USR1"]):
            seen.append(signal.getsignal(signal.SIGUSR1))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.parametrize(("number", "error"), [(signal.SIGTERM, Preempted), (signal.SIGINT, KeyboardInterrupt)])
def test_what_is_said_on_leaving(number, error):
    watch = SignalHandler([])
    watch.received = number
    with pytest.raises(error) as caught:
        watch.exit("Checkpoint saved to out/checkpoint-3.")
    assert str(caught.value) == f"training interrupted ({number.name}). Checkpoint saved to out/checkpoint-3."
    if error is Preempted:
        assert isinstance(caught.value, SystemExit) and caught.value.code == EXIT_STATUS == 75


WORKER = """
import os, signal, subprocess, sys
from multiprocessing import get_context
from oneloop.distributed.preemption import SignalHandler, ignore_job_signals

def work(pipe):
    ignore_job_signals()
    pipe.send("ready")
    while True:
        pipe.send(pipe.recv())

def answers(pipe):
    pipe.send("there?")
    return pipe.poll(30) and pipe.recv() == "there?"

with SignalHandler(["SIGTERM", "SIGUSR1"]):
    here, there = get_context("fork").Pipe()
    worker = get_context("fork").Process(target=work, args=(there,))
    worker.start()
    there.close()
    assert here.recv() == "ready"
    for number in (signal.SIGUSR1, signal.SIGUSR1, signal.SIGINT, signal.SIGINT):
        os.kill(worker.pid, number)
        assert answers(here), number
    subprocess.run(["kill", "-TERM", str(worker.pid)], check=True)  # by another process than its main one
    worker.join(0.5)
    assert worker.is_alive() and answers(here), "SIGTERM"
    worker.terminate()
    worker.join(30)
    print("ended with", worker.exitcode)
"""


@pytest.mark.skipif(not hasattr(signal, "sigtimedwait"), reason="needs sigtimedwait")
def test_a_worker_leaves_signals_to_its_main_process_and_ends_on_its_word(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "ended with 0\n", done.stdout + done.stderr
    assert "finishes this step" not in done.stderr, "the workers of a run say nothing"
