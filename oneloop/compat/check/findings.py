"""The findings of `oneloop check`: one line for each name, argument, method or attribute of a script."""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

ANSWERS = {
    "works": "works the same",
    "maps": "alias of an argument of oneloop",
    "changes": "accepted, but works differently or has no effect",
    "depends": "refused on some devices or without a package",
    "refused": "raises an error that says what to do",
    "unseen": "cannot be determined from the script",
}


@dataclass(frozen=True, order=True)
class Finding:
    """file and line, kind (import, argument, method, attribute, ...), name, result, and reason."""

    file: str
    line: int
    kind: str
    name: str
    answer: str
    text: str


def as_data(found: list[Finding], libraries: list[str], framework: str) -> dict[str, Any]:
    return {
        "libraries": libraries,
        "framework": framework,
        "counts": dict(Counter(each.answer for each in found)),
        "findings": [asdict(each) for each in found],
    }


def as_text(found: list[Finding], libraries: list[str], framework: str) -> str:
    lines = [f"checked as a script of {', '.join(libraries)} for {framework}; nothing was run"]
    width = max((len(each.name) for each in found), default=0)
    before = None
    for each in found:
        if each.file != before:
            before = each.file
            lines += ["", each.file]
        line = str(each.line) if each.line else "--"
        lines.append(f"{line:>6}  {each.answer:<8} {each.kind:<9} {each.name:<{width}}  {each.text}".rstrip())
    counts = Counter(each.answer for each in found)
    lines += ["", ", ".join(f"{counts[answer]} {answer}" for answer in ANSWERS if counts[answer]) or "nothing found"]
    return "\n".join(lines)
