"""`oneloop check`: check scripts written for other trainers before running them with `oneloop run`."""

from ..redirect import redirect

__all__ = ["redirect"]
