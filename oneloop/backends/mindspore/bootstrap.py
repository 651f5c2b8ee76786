"""What MindSpore needs around it, looked at before it is used: each trap is an error in words or is out of the way."""

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

from ...errors import MissingPackageError, RefusedError

_LEVEL = "GLOG_v"  # MindSpore reads it once, when it is imported
_ERRORS_ONLY = _LEVEL not in os.environ
if _ERRORS_ONLY:
    os.environ[_LEVEL] = "3"

try:
    import mindspore
except ImportError as failed:
    if "paddle" in sys.modules:
        raise RefusedError(
            f"MindSpore cannot be imported after PaddlePaddle ({failed}): their libraries clash in this order. Put "
            "`import mindspore` before `import paddle`."
        ) from failed
    raise MissingPackageError(f"MindSpore cannot be imported: {failed}. pip install mindspore 'numpy<2'") from failed
finally:
    if _ERRORS_ONLY:  # to Paddle, in this process or in one that it starts, the same number means "say everything"
        del os.environ[_LEVEL]


def check_numpy(version: str, probe: Any) -> None:
    """MindSpore's wheels are built for NumPy 1; with NumPy 2 its first scalar operation dies inside of C code."""
    if int(version.partition(".")[0]) < 2:
        return
    try:
        probe()
    except SystemError as error:
        raise RefusedError(
            f"MindSpore {mindspore.__version__} does not work with NumPy {version}: {error}. Install NumPy 1: "
            "pip install 'numpy<2'."
        ) from error


check_numpy(np.__version__, lambda: mindspore.Tensor(1.0) + 1)


@functools.cache
def scratch() -> str:
    """A directory for what the graph compiler writes about its failures: it would use the current one."""
    folder = tempfile.mkdtemp(prefix="oneloop-mindspore-")
    owner = os.getpid()
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
    return folder


@functools.cache
def settle(target: str) -> None:
    """Once a process: how operations are run. On a CPU the threads of asynchronous launches only get in the way."""
    os.environ.setdefault("MS_OM_PATH", scratch())
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    if target == "CPU":
        mindspore.runtime.launch_blocking()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without MindSpore's warnings: it has many for questions whose answer is no."""
    logger = mindspore.log._get_logger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
