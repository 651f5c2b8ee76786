"""The loss without whole logits is not supported on MindSpore."""

from typing import Any, NoReturn

from ...errors import UnsupportedError


def head_of(model: Any, name: str | None) -> NoReturn:
    """Raise an error."""
    raise UnsupportedError("MindSpore has whole logits in this release")
