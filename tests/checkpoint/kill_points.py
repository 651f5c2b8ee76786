"""Where a child process can be killed: functions that a save, a rotation, a resume or a step goes through.

A point is wrapped so that its N-th call ends the process with SIGKILL: before it does anything, after it, or inside,
when half of its work is on the disk.
"""

import os
import shutil
import signal
from pathlib import Path

from oneloop.callbacks.json_log import NAME, JsonLinesCallback
from oneloop.checkpoint import capture, store
from oneloop.checkpoint.reader import Checkpoint
from oneloop.formats import safetensors_io
from oneloop.trainer.update import Update

WHEN = ("before", "inside", "after")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def half_of_file(path, parts):
    """Half of the bytes that write_bytes was given."""
    data = b"".join(bytes(memoryview(part)) for part in parts)
    Path(path).write_bytes(data[: len(data) // 2])


def half_of_tree(path, *args, **kwargs):
    """Half of the files that rmtree was to remove."""
    files = sorted(p for p in Path(path).rglob("*") if p.is_file())
    for file in files[: (len(files) + 1) // 2]:
        os.unlink(file)


def half_of_line(callback, args, *rest, **kwargs):
    """Half of a line of log.jsonl."""
    with open(Path(args.output_dir) / NAME, "a") as f:
        f.write('{"run": "torn')


def points(framework):
    """name -> (the objects that hold the function, its name there, what `inside` does)."""
    from importlib import import_module

    import oneloop.randomness as randomness
    from oneloop.checkpoint import checkpointer

    weights = import_module(f"oneloop.backends.{framework}.weights")
    return {
        "write": ([safetensors_io, capture, store], "write_bytes", half_of_file),
        "fsync": ([os], "fsync", None),
        "rename": ([os], "rename", None),
        "replace": ([os], "replace", None),
        "commit": ([store], "commit", None),
        "room": ([checkpointer], "check_free_space", None),
        "delete": ([store], "delete", None),
        "rmtree": ([shutil], "rmtree", half_of_tree),
        "leftovers": ([store], "remove_leftovers", None),
        "verify": ([Checkpoint], "problems", None),
        "load": ([weights], "load_tensors", None),
        "load_state": ([Checkpoint], "trainer_state", None),
        "load_optimizer": ([weights], "load_optimizer", None),
        "load_random": ([randomness], "set_state", None),
        "log": ([JsonLinesCallback], "on_log", half_of_line),
        "log_begin": ([JsonLinesCallback], "on_train_begin", None),
        "update": ([Update], "apply", None),
        "copy": ([capture.Capture], "checkpoint", None),
    }


def arm(specs, framework):
    """Wrap all points; the counts of their calls, which go on while the run does."""
    wanted = {(name, when): int(number) for name, when, number in (spec.split(":") for spec in specs)}
    counts = {}
    for name, (owners, attribute, inside) in points(framework).items():
        counts[name] = 0
        wrapped = _wrapper(name, getattr(owners[0], attribute), inside, wanted, counts)
        for owner in owners:
            setattr(owner, attribute, wrapped)
    return counts


def _wrapper(name, function, inside, wanted, counts):
    armed = os.getpid()

    def wrapped(*args, **kwargs):
        if os.getpid() != armed:  # a loader's worker, forked from here
            return function(*args, **kwargs)
        counts[name] += 1
        number = counts[name]
        if wanted.get((name, "before")) == number:
            die()
        if wanted.get((name, "inside")) == number:
            inside(*args, **kwargs)
            die()
        value = function(*args, **kwargs)
        if wanted.get((name, "after")) == number:
            die()
        return value

    return wrapped
