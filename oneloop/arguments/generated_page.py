"""Files generated from data in the code, such as pages of docs/: write them, or check that they are up to date."""

import sys
from pathlib import Path


def write_or_check(page: Path, text: str, module: str, words: list[str]) -> int:
    """The command of a module that generates a page: write it, or with --check, only check that it is up to date."""
    if "--check" in words:
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            print(f"{page.parent.name}/{page.name} is out of date: run python -m {module}", file=sys.stderr)
            return 1
        return 0
    page.write_text(text, encoding="utf-8")
    print(f"wrote {page.parent.name}/{page.name}")
    return 0
