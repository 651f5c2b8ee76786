"""One filter for everything that is written, pushed or printed: what is a secret, and text and data without any.

A name decides (`openai_key`, `db_password`, `hub_tokens`), at any depth of dictionaries, lists and objects; so does a
value that is known to be a secret: one that was given under such a name, one of the environment's, the password of a
URL, or one in the format of a well-known service.
"""

import os
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from .names import hides, is_secret
from .text import looks_random, mask, passwords, scrub

__all__ = [
    "clean",
    "clean_text",
    "hides",
    "is_mask",
    "is_secret",
    "looks_random",
    "mask",
    "public",
    "remember",
    "restored",
]

_SHORTEST = 8  # of a known secret that is looked for in text: shorter ones would hide ordinary words
_SHORTEST_OWN = 4  # of a secret of an object, looked for in the text of this object
_DEEPEST = 6  # levels of objects in objects that are searched for secrets
_MOST = 500  # values in an object that are looked at
_PLAIN = (str, bytes, bytearray, int, float, complex, type(None))

Known = list[tuple[str, str]]  # secrets and their names
_known: dict[str, str] = {}  # secret -> the name under which it was given


def is_mask(name: str, text: str) -> bool:
    """Whether a value that was read back is such a mask, so that the secret has to be given anew."""
    return is_secret(name) and text == text.upper() and re.fullmatch(r"<[\w.-]+>", text) is not None


def remember(name: str, value: Any) -> None:
    """What is a secret in a value that was given: from now on it is hidden in every text."""
    if value is None or isinstance(value, (bool, int, float)):
        return
    for inner, text in _secrets_in(value, name):
        if len(text) >= _SHORTEST and not is_mask(inner, text):
            _known[text] = inner


def clean_text(text: str) -> str:
    """Text without any known secret, passwords of URLs, tokens in a well-known format, or what is named like a
    secret."""
    return _without(_all_known(), text)


def clean(value: Any, name: str = "") -> Any:
    """Data without secrets: a mask stands for each, at any depth. An object that has one becomes text."""
    return _clean(value, name, _all_known())  # looked up once: each save cleans the arguments of the run


def public(values: Mapping[str, Any]) -> dict[str, Any]:
    """Data without secrets, and without the names of those at the top."""
    return {name: value for name, value in clean(values).items() if not _is_masked(name, value)}


def _is_masked(name: Any, value: Any) -> bool:
    return is_secret(name) if value is None else isinstance(value, str) and is_mask(str(name), value)


def restored(stored: Any, current: Any, name: str = "") -> Any:
    """What was stored without secrets, with those of the current value: a mask is not a value to continue with."""
    if isinstance(stored, Mapping) and isinstance(current, Mapping):
        return {key: restored(value, current.get(key), str(key)) for key, value in stored.items()}
    if isinstance(stored, str) and current is not None and stored == clean(current, name):
        return current
    return current if isinstance(stored, str) and name and is_mask(name, stored) else stored


# -- data


def _clean(value: Any, name: str, known: Known) -> Any:
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, Mapping):
        return _clean_mapping(value, name, known)
    if name and hides(name, value):
        return mask(name)
    if isinstance(value, (list, tuple, set, frozenset)) and not hasattr(value, "_fields"):
        return _clean_sequence(list(value), name, known)
    if isinstance(value, Enum):
        text = value.value if isinstance(value.value, str) else ""
        return value if _without(known, text) == text else _without(known, text)
    if isinstance(value, str):
        return _without(known, value)
    return _clean_object(value, known)


def _clean_mapping(values: Mapping[Any, Any], name: str, known: Known) -> dict[Any, Any]:
    outer = name if name and hides(name, values) else ""  # {"credentials": {"user": ..., "value": ...}}: all of it
    label = values.get("name", values.get("key"))  # {"name": "API_KEY", "value": ...}
    found = {}
    for key, item in values.items():
        own = str(key)
        if own == "value" and isinstance(label, str) and hides(label, item):
            own = label
        elif outer and not hides(own, item):
            own = outer
        found[_without(known, key) if type(key) is str else key] = _clean(item, own, known)
    return found


def _clean_sequence(values: list[Any], name: str, known: Known) -> list[Any]:
    found: list[Any] = []
    option = ""  # of a command line, whose value is the next word
    for item in values:
        found.append(_clean(item, option if option and isinstance(item, str) else name, known))
        is_option = isinstance(item, str) and re.fullmatch(r"--?[A-Za-z][\w.-]{0,80}", item) is not None
        option = item.lstrip("-") if is_option else ""
    return found


def _clean_object(value: Any, known: Known) -> Any:
    """The object itself, if neither its fields nor its text have a secret; otherwise its text without any."""
    if isinstance(value, (bool, int, float, complex, type(None), type)) or hasattr(value, "dtype"):
        return value
    own = [(text, name) for name, text in _secrets_in(value, "") if len(text) >= _SHORTEST_OWN]
    try:
        text, shown = str(value), repr(value)
    except Exception:  # of the object's own
        return value if not own else f"<{type(value).__name__}>"
    every = sorted(own + known, key=lambda item: -len(item[0])) if own else known
    cleaned = _without(every, text)
    return value if not own and cleaned == text and _without(known, shown) == shown else cleaned


def _secrets_in(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """Each text in a value that is a secret, with its name."""
    left = [_MOST]
    seen: set[int] = set()

    def walk(value: Any, name: str, outer: str, depth: int) -> Iterator[tuple[str, str]]:
        own = name if hides(name, value) else outer
        if isinstance(value, (str, bytes, bytearray)):
            text = value if isinstance(value, str) else value.decode("utf-8", "replace")
            if own:
                yield own, text
            else:
                yield from (("password", each) for each in passwords(text))
            return
        left[0] -= 1
        if depth > _DEEPEST or left[0] < 0 or id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, (list, tuple, set, frozenset)) and not hasattr(value, "_fields"):
            for item in value:
                yield from walk(item, name, own, depth + 1)
        else:
            for key, item in _fields(value):
                yield from (("password", each) for each in passwords(key))
                yield from walk(item, key, own, depth + 1)

    yield from walk(value, name, "", 0)


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Names and values of a mapping, or of the fields of an object: a dataclass, a named tuple, any other."""
    if isinstance(value, (*_PLAIN, type)) or hasattr(value, "dtype"):
        return
    if isinstance(value, Mapping):
        yield from ((str(key), item) for key, item in value.items())
    elif hasattr(value, "_fields"):
        yield from zip(value._fields, value)
    else:
        yield from getattr(value, "__dict__", {}).items()
        for cls in type(value).__mro__:
            slots = cls.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else tuple(slots):
                if hasattr(value, name):
                    yield name, getattr(value, name)


# -- text


def _without(known: Known, text: str) -> str:
    for value, name in known:
        if value in text:
            text = text.replace(value, mask(name))
        elif not value.isprintable() or "\\" in value or "'" in value or '"' in value:
            escaped = repr(value)[1:-1]  # as an error or JSON quotes it
            text = text.replace(escaped, mask(name)) if escaped in text else text
    return scrub(text)


def _all_known() -> Known:
    """Secrets that were given or are in the environment, each with its name."""
    environment: dict[str, str] = {}
    for name, value in os.environ.items():
        if len(value) < _SHORTEST:
            continue
        if hides(name, value) and not value.startswith(("/", "~")):
            environment[value] = name
        elif "://" in value:
            environment |= {each: "password" for each in passwords(value) if len(each) >= _SHORTEST}
    # The longest first: one may begin with another.
    return sorted({**environment, **_known}.items(), key=lambda item: -len(item[0]))
