"""MindSpore has to be imported before Paddle in a process that tests both."""

import contextlib

with contextlib.suppress(ImportError):
    import mindspore  # noqa: F401
