"""Imports Paddle, and undoes the side effects of its import. An import by the user is not affected."""

import logging
import os
import sys
import warnings


def import_paddle() -> None:
    """Import Paddle without side effects: a warning about ccache, a root logger that prints every library's INFO, and
    OMP_NUM_THREADS=1.

    The variable is read before it is written, so Paddle itself computes as it would; but child processes, which may
    run another framework, would inherit it.
    """
    if "paddle" in sys.modules:
        return
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    threads = os.environ.get("OMP_NUM_THREADS")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="No ccache found")
        import paddle  # noqa: F401
    root.setLevel(level)
    root.handlers[:] = handlers
    if threads is None:
        os.environ.pop("OMP_NUM_THREADS", None)


import_paddle()
