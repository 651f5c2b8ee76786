"""Checks and settings before MindSpore is used: each known problem is avoided or raises an error message."""

import atexit
import contextlib
import functools
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...errors import MissingPackageError, UnsupportedError

_LEVEL = "GLOG_v"  # MindSpore reads it once, when it is imported
_ERRORS_ONLY = _LEVEL not in os.environ
if _ERRORS_ONLY:
    os.environ[_LEVEL] = "3"

try:
    import mindspore
except ImportError as failed:
    if "paddle" in sys.modules:
        raise UnsupportedError(
            f"MindSpore cannot be imported after PaddlePaddle ({failed}): their libraries conflict in this order. Move "
            "`import mindspore` before `import paddle`."
        ) from failed
    raise MissingPackageError(
        f"MindSpore cannot be imported: {failed}. Run pip install mindspore 'numpy<2'"
    ) from failed
finally:
    if _ERRORS_ONLY:  # for Paddle, in this process or in a child process, the same number means maximum verbosity
        del os.environ[_LEVEL]


def check_numpy(version: str, probe: Any) -> None:
    """MindSpore's wheels are built for NumPy 1; with NumPy 2 its first scalar operation crashes in C code."""
    if int(version.partition(".")[0]) < 2:
        return
    try:
        probe()
    except SystemError as error:
        raise UnsupportedError(
            f"MindSpore {mindspore.__version__} does not work with NumPy {version}: {error}. Install NumPy 1: "
            "pip install 'numpy<2'."
        ) from error


check_numpy(np.__version__, lambda: mindspore.Tensor(1.0) + 1)


@functools.cache
def scratch() -> str:
    """A directory for the failure dumps of the graph compiler, which would use the current directory."""
    folder = tempfile.mkdtemp(prefix="oneloop-mindspore-")
    owner = os.getpid()
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
    return folder


@functools.cache
def configure_execution(target: str) -> None:
    """Once per process: set how operations are run. On a CPU asynchronous launches only add overhead."""
    os.environ.setdefault("MS_OM_PATH", scratch())
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    if target == "CPU":
        mindspore.runtime.launch_blocking()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """A context without MindSpore's warnings, which it emits when a device is merely not available."""
    logger = mindspore.log._get_logger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
