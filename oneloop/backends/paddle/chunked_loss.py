"""The loss without whole logits is not supported on Paddle."""

from typing import Any, NoReturn

from ...errors import UnsupportedError


def head_of(model: Any, name: str | None) -> NoReturn:
    """Raise an error."""
    raise UnsupportedError("Paddle has whole logits in this release")
