"""Roles: what a column is to a task. Each has the names by which it is recognised, and the values that it accepts."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_ROLES_OF_SPEAKERS = {"human": "user", "gpt": "assistant", "bot": "assistant", "chatgpt": "assistant"}


class BadValueError(ValueError):
    """A value that a role does not accept; the message is the reason."""


@dataclass(frozen=True)
class Role:
    """`names`: of columns that are taken for it, in order. `convert`: the value, or BadValueError."""

    names: tuple[str, ...]
    convert: Callable[[Any], Any]
    says: str  # what it is, for the comments of a recipe


def to_text(value: Any) -> str:
    """A text that a tokenizer accepts."""
    if not isinstance(value, str):
        raise BadValueError(f"expected text, found {_kind(value)}")
    if not value.strip():
        raise BadValueError("it is empty")
    return _unicode(value)


def _unicode(value: str) -> str:
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise BadValueError("it has characters that are not valid Unicode")
    return value


def to_word(value: Any) -> str:
    """A label: a word, or a number of a class."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        raise BadValueError(f"expected a class, found the number {value} (regression is for numbers)")
    return to_text(value).strip()


def to_words(value: Any) -> list[str]:
    """Several labels, in a list; in text, as a JSON list or between semicolons. There may be none."""
    if isinstance(value, str):
        value = _listed(value, ";")
    if not isinstance(value, (list, tuple)):
        raise BadValueError(f"expected a list of labels, found {_kind(value)}")
    return list(dict.fromkeys(to_word(each) for each in value))


def to_tokens(value: Any) -> list[str]:
    """A sentence as a list of words; in text, as a JSON list or between spaces."""
    if isinstance(value, str):
        value = _listed(value, None)
    if not isinstance(value, (list, tuple)) or not value:
        raise BadValueError(f"expected a list with one item per word, found {_kind(value)}")
    return [to_word(each) for each in value]


def _listed(text: str, separator: str | None) -> Any:
    if not text.lstrip().startswith("["):
        return [part.strip() for part in text.split(separator) if part.strip()]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise BadValueError("it is not a valid JSON list") from None


def to_number(value: Any) -> float:
    """A finite number."""
    try:
        number = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise BadValueError(f"expected a finite number, found {_short(value)}")
    return number


def to_messages(value: Any) -> list[dict[str, str]]:
    """A chat: [{"role": ..., "content": ...}], or [{"from": ..., "value": ...}]."""
    if isinstance(value, str):
        value = _listed(value, None) if value.lstrip().startswith("[") else None
    if not isinstance(value, (list, tuple)) or not value:
        raise BadValueError("expected a list of messages with role and content")
    messages = [_message(each) for each in value]
    if not any(message["role"] == "assistant" for message in messages):
        raise BadValueError("no message has the role assistant, so there is nothing to learn")
    return messages


def to_open_messages(value: Any) -> list[dict[str, str]]:
    """The start of a chat, to be continued by the model."""
    if isinstance(value, str):
        value = _listed(value, None) if value.lstrip().startswith("[") else [{"role": "user", "content": value}]
    if not isinstance(value, (list, tuple)) or not value:
        raise BadValueError("expected a list of messages with role and content")
    return [_message(each) for each in value]


def _message(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise BadValueError(f"expected a message with role and content, found {_kind(value)}")
    role, content = value.get("role", value.get("from")), value.get("content", value.get("value"))
    if not isinstance(role, str) or not isinstance(content, str) or not role.strip():
        raise BadValueError("a message has no role, or no content that is text")
    return {"role": _ROLES_OF_SPEAKERS.get(_unicode(role), role), "content": _unicode(content)}


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {_short(value)}"


def _short(value: Any) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**18 else "a long number"
    return text if len(text) <= 60 else text[:60] + "…"


_FIRST = ("text", "sentence1", "premise", "question1", "text1", "text_a", "query")
ROLES = {
    "text": Role(
        (*_FIRST, *"sentence review content comment body document question tweet message article title".split()),
        to_text,
        "the text",
    ),
    "text_pair": Role(
        ("text_pair", "sentence2", "hypothesis", "question2", "text2", "text_b", "passage"),
        to_text,
        "the second text of a pair",
    ),
    "label": Role(
        tuple("label labels class category target sentiment intent topic y".split()), to_word, "the label, as a word"
    ),
    "labels": Role(tuple("labels label tags categories classes topics".split()), to_words, "several labels"),
    "number": Role(tuple("score label labels target value rating stars y".split()), to_number, "the number to predict"),
    "words": Role(tuple("words tokens sentence text".split()), to_tokens, "the words of a sentence"),
    "tags": Role(tuple("tags ner_tags labels label pos_tags".split()), to_tokens, "a tag for each word"),
    "prompt": Role(tuple("prompt instruction question input query".split()), to_text, "what the model is asked"),
    "completion": Role(tuple("completion response output answer".split()), to_text, "what it should answer"),
    "messages": Role(tuple("messages conversations conversation chat".split()), to_messages, "a chat"),
    "source": Role(tuple("source input document article text".split()), to_text, "the input text"),
    "target": Role(tuple("target output summary translation label".split()), to_text, "the text to write"),
    "chosen": Role(("chosen",), to_text, "the better answer"),
    "rejected": Role(("rejected",), to_text, "the worse answer"),
}
