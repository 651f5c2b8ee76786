"""Whatever function of a run fails, train() leaves nothing behind, and the next train() works.

A run is traced once. Then it is repeated, and fails in the first call of one of the functions that it has called.
"""

import gc
import logging
import os
import random
import signal
import sys
import threading
import warnings
from pathlib import Path

import pytest

import oneloop
from oneloop import Trainer, TrainerCallback
from tests.backends.support import rows, same_bytes

PACKAGE = str(Path(oneloop.__file__).parent)
RUN = {"max_steps": 4, "per_device_train_batch_size": 4, "logging_steps": 1, "optim": "sgd", "seed": 3}
RUN |= {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2, "save_total_limit": 1}
# What differs from a plain run is there to be undone.
MORE = {"neftune_noise_alpha": None, "load_best_model_at_end": True, "ema_decay": 0.5, "eval_with_average": True}
TRIED = 16  # functions, in the default suite
CLEANING = ("release", "close", "stop", "restore", "remove", "__exit__", "drain", "unlock", "undo")


class Planted(Exception):
    pass


class Watches(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        return control


def build(backend, arguments, where):
    args = arguments(where, **RUN | MORE)
    return Trainer(backend.classifier(dropout=0.2), args, train_dataset=rows(16), eval_dataset=rows(8, 1))


def functions_of(run):
    """The functions of the package that this calls in this thread, in their order."""
    found = {}

    def note(frame, event, arg):
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            found.setdefault(frame.f_code, len(found))

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return [code for code in found if not code.co_name.startswith("<") and not is_cleaning(code)]


def qualified_name(code):
    return getattr(code, "co_qualname", code.co_name)  # since Python 3.11


def is_cleaning(code):
    """Whether a function is itself what cleans up: where it fails, nothing else does."""
    return any(word in code.co_name for word in CLEANING)


def fails_in(code, run):
    """Whether it raises an error when the first call of a function fails; False if that is of no importance to it."""
    done = []

    def trace(frame, event, arg):
        if frame.f_code is code and not done:
            done.append(frame)
            raise Planted(qualified_name(code))

    sys.settrace(trace)
    try:
        run()
    except BaseException:
        return True  # without the error, which would keep frames and their files
    finally:
        sys.settrace(None)
    assert done, f"{qualified_name(code)} was not called"
    return False


def surroundings(trainer):
    """What a run may change for a while."""
    return {
        "handlers": [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)],
        "threads": sorted(t.name for t in threading.enumerate() if t.name.startswith("oneloop")),
        "directory": os.getcwd(),
        "variables": dict(os.environ),
        "streams": (sys.stdout, sys.stderr, sys.excepthook),
        "loggers": [list(logging.getLogger(name).handlers) for name in ("", "oneloop")],
        "filters": len(warnings.filters),
        "is in train": trainer.is_in_train,
    }


def open_files(folder):
    """The files of a directory that this process has open, such as its lock."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue
    return [name for name in found if name.startswith(str(folder))]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """By backend: the functions of a run, and its weights."""
    return {}


def prepared(reference, backend, arguments, tmp_path):
    if backend.name not in reference:
        build(backend, arguments, tmp_path / "first").train()  # what is done once in a process
        trainer = build(backend, arguments, tmp_path / "whole")
        reference[backend.name] = functions_of(trainer.train), backend.weights(trainer.model)
    return reference[backend.name]


def check(code, backend, arguments, folder, weights):
    trainer = build(backend, arguments, folder)
    before = surroundings(trainer)
    has_failed = fails_in(code, trainer.train)
    name = f"{Path(code.co_filename).relative_to(PACKAGE)}: {qualified_name(code)}"
    assert surroundings(trainer) == before, name
    gc.collect()  # files that are mapped into memory belong to frames of the error
    assert open_files(folder) == [], name
    if not has_failed:  # it was told, and the run went on
        assert trainer.state.global_step == RUN["max_steps"], name
    again = build(backend, arguments, folder)
    again.train()
    assert again.state.global_step == RUN["max_steps"], name
    assert same_bytes(backend.weights(again.model), weights), name


def chosen(codes, count, seed):
    codes = sorted(codes, key=lambda code: (code.co_filename, code.co_firstlineno))
    return random.Random(seed).sample(codes, min(count, len(codes)))


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc")
@pytest.mark.once_on("mindspore", "paddle")
def test_some_calls(backend, arguments, tmp_path, reference):
    codes, weights = prepared(reference, backend, arguments, tmp_path)
    assert len(codes) > 300
    for number, code in enumerate(chosen(codes, TRIED if backend.name == "torch" else TRIED // 8, 5)):
        check(code, backend, arguments, tmp_path / str(number), weights)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc")
def test_every_call(backend, arguments, tmp_path, reference):
    codes, weights = prepared(reference, backend, arguments, tmp_path)
    wrong = []
    for number, code in enumerate(codes):
        try:
            check(code, backend, arguments, tmp_path / str(number), weights)
        except Exception as error:
            wrong.append(f"{qualified_name(code)}: {str(error)[:300]}")
    assert not wrong, "\n".join(wrong)
