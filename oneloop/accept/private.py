"""Results are posted in public: they have no paths, no names of hosts and users, no secrets."""

import contextlib
import getpass
import os
import re
import socket
from pathlib import Path
from typing import Any

from .. import secrets

LONGEST = 400  # characters of a reason
_PATH = re.compile(r"(?<![\w.])(?:~|[A-Za-z]:)?[\\/][\w.+@-]+(?:[\\/][\w.+@ -]*[\w.+@-])*[\\/]?")
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b|\b[\w.+-]+@[\w-]+\.[\w.]+\b|\b\w+://\S+")


def cleaned(value: Any, folder: Path | None = None) -> Any:
    """The value without what is private; numbers stay."""
    if isinstance(value, dict):
        return {key: cleaned(inner, folder) for key, inner in value.items()}
    if isinstance(value, list):
        return [cleaned(inner, folder) for inner in value]
    return _text(value, folder) if isinstance(value, str) else value


def _text(text: str, folder: Path | None) -> str:
    text = secrets.clean_text(text)
    if folder is not None:
        text = text.replace(str(folder), "DIR")
    text = _PATH.sub("PATH", _ADDRESS.sub("ADDRESS", text))
    for name in filter(None, _names()):
        text = re.sub(rf"(?<![\w]){re.escape(name)}(?![\w])", "NAME", text)
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def _names() -> set[str]:
    """Names of this user and this host. Those of one or two letters would hit words."""
    found = {socket.gethostname(), socket.gethostname().partition(".")[0], os.environ.get("USER", "")}
    with contextlib.suppress(OSError, KeyError):
        found.add(getpass.getuser())
    return {name for name in found if len(name) > 2 and name not in ("root", "localhost", "user")}
