"""JSON in arguments: files and words of a command line."""

import json
from typing import Any


def read_json(text: str) -> Any:
    """JSON without keys that occur twice in an object, of which one would be ignored. Raises ValueError."""
    try:
        return json.loads(text, object_pairs_hook=_once)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise ValueError(f"the key {twice[:100]!r} occurs twice in an object")
    return found
