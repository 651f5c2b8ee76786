"""One filter for everything that is written, pushed or printed: what is a secret, and text and data without any.

A name decides (`openai_api_key`, `db_password`, `token`), at any depth; so does a value that is known to be a secret:
one that was given under such a name, one of the environment's, or one in the format of a well-known service.
"""

import os
import re
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import Any

# Words of a name, such as aws_secret_access_key, that make its value a secret.
_WORDS = frozenset(
    "password passwd passphrase pwd secret secrets credential credentials apikey authorization bearer cookie webhook "
    "jwt".split()
)
# The same for two words that follow each other: an access key, but not the key of a column.
_PAIRS = frozenset(
    f"{kind}_{noun}"
    for noun in ("key", "keys")
    for kind in "api access private account encryption signing ssh auth license service deploy storage".split()
) | {"connection_string", "auth_header"}
# A token is a secret unless these words say that it is a piece of text.
_TEXT_TOKENS = frozenset(
    "pad padding eos bos unk sep cls mask image audio video vision speech text decoder encoder start end stop begin "
    "special additional extra new next first last max min per prompt response instruction user assistant system tool "
    "boi eoi boa eoa think query document class target source label chat message role space word sub input output "
    "suffix prefix middle fill blank newline mem memory placeholder separator".split()
)
_SPLIT = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
# Formats of tokens that services give out, and a password inside a URL.
_FORMATS = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|gh[opsur]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}"
    r"|AKIA[0-9A-Z]{16}|xox[abprs]-[A-Za-z0-9-]{10,}|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+)"
)
_URL = re.compile(r"(?P<before>\b[a-z][a-z0-9+.-]*://[^\s/:@]*:)[^\s/@]+(?P<after>@)", re.IGNORECASE)
_SHORTEST = 8  # of a known secret that is looked for in text: shorter ones would hide ordinary words

Known = list[tuple[str, str]]  # secrets and their names
_known: dict[str, str] = {}  # secret -> the name under which it was given


def is_secret(name: Any) -> bool:
    """Whether a value of this name is a secret: hub_token, db_password, but not pad_token, tokenizer_name."""
    return _is_secret(str(name))


@lru_cache(maxsize=4096)
def _is_secret(name: str) -> bool:
    words = [word.lower() for word in _SPLIT.split(name) if word]
    if not words:
        return False
    if _WORDS.intersection(words) or _PAIRS.intersection(map("_".join, zip(words, words[1:]))):
        return True
    return words[-1] == "token" and not _TEXT_TOKENS.intersection(words[:-1])


def looks_random(text: str) -> bool:
    """Whether this is one long word of letters and digits, as keys are, and no path, name or number: paged_adamw_32bit
    has short words alone."""
    longest = max(re.findall(r"[A-Za-z0-9]+", text), key=len, default="")
    one = re.fullmatch(r"[A-Za-z0-9+=_-]{20,}", text) is not None
    return one and len(longest) >= 16 and re.search(r"\d", longest) is not None and not longest.isdigit()


def mask(name: Any) -> str:
    """What is written instead of a secret."""
    return f"<{str(name).upper()}>"


def is_mask(name: str, text: str) -> bool:
    """Whether a value that was read back is such a mask, so that the secret has to be given anew."""
    return is_secret(name) and re.fullmatch(r"<[A-Z0-9_.-]+>", text) is not None


def remember(name: str, value: Any) -> None:
    """A value that was given under the name of a secret: from now on it is hidden in every text."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            remember(str(key) if is_secret(key) or not is_secret(name) else name, inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            remember(name, inner)
    elif isinstance(value, str) and len(value) >= _SHORTEST and is_secret(name) and not is_mask(name, value):
        _known[value] = name


def clean_text(text: str) -> str:
    """Text without any known secret, passwords of URLs, or tokens in a well-known format."""
    return _without(_all_known(), text)


def _without(known: Known, text: str) -> str:
    for value, name in known:
        if value in text:
            text = text.replace(value, mask(name))
    return _URL.sub(r"\g<before><PASSWORD>\g<after>", _FORMATS.sub("<TOKEN>", text))


def clean(value: Any, name: str = "") -> Any:
    """Plain data without secrets: a mask stands for each, at any depth."""
    return _clean(value, name, _all_known())  # looked up once: each save cleans the arguments of the run


def _clean(value: Any, name: str, known: Known) -> Any:
    if name and is_secret(name) and not isinstance(value, (bool, type(None), Mapping)):
        return mask(name)
    if isinstance(value, Mapping):
        inner = name if is_secret(name) else ""  # {"credentials": {"user": ..., "value": ...}}: all of it
        return {
            key: _clean(item, str(key) if is_secret(key) or not inner else inner, known) for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_clean(item, name, known) for item in value]
    if isinstance(value, str) and not isinstance(value, Enum):
        return _without(known, value)
    return value


def _all_known() -> Known:
    """Secrets that were given or are in the environment, each with its name."""
    environment = {
        value: name
        for name, value in os.environ.items()
        if len(value) >= _SHORTEST and is_secret(name) and not value.startswith(("/", "~"))
    }
    # The longest first: one may begin with another.
    return sorted({**environment, **_known}.items(), key=lambda item: -len(item[0]))
