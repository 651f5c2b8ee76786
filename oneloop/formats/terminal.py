"""Text from files and directories that a terminal can show: names and contents of others may have control sequences,
which would move its cursor, hide lines or change its title."""

import unicodedata


def printable(text: str, keep: str = "\n\t") -> str:
    """The text with control characters, and those that reverse the direction of writing, as escapes: \\x1b."""
    if text.isprintable():
        return text
    return "".join(
        c if c in keep or not _is_control_character(c) else c.encode("unicode_escape").decode() for c in text
    )


def _is_control_character(character: str) -> bool:
    """Whether it is a control (Cc), format (Cf), or surrogate (Cs) character, or separates lines."""
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
