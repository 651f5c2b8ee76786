"""Scripts written for other trainers: run unmodified (`oneloop run`) and read beforehand (`oneloop check`)."""

from ..redirect import redirect

__all__ = ["redirect"]
