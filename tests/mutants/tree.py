"""A private copy of the repository, in which faults are planted."""

import os
import subprocess
from pathlib import Path

LEFT_OUT = {".git", ".venv", "node_modules", ".mypy_cache", ".ruff_cache", ".pytest_cache", "site", "dist", "build"}


class Tree:
    def __init__(self, root: Path, place: Path) -> None:
        self.root, self.place = root, place
        for name in sorted(os.listdir(root)):
            if name in LEFT_OUT or name.startswith(".venv"):
                continue
            self._copy(root / name, place / name)

    def _copy(self, source: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", str(source), str(target)], check=True)

    def write(self, name: str, text: str) -> None:
        """Put another text in the place of a file, which stays as it is in the repository."""
        file = self.place / name
        file.unlink(missing_ok=True)
        file.write_text(text, encoding="utf-8")
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            compiled.unlink()

    def restore(self, name: str) -> None:
        self.write(name, (self.root / name).read_text(encoding="utf-8"))
