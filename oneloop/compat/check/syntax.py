"""What can be determined without running a script: its syntax tree, its imports, and the modules beside it."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...errors import ArgumentError
from ..redirected_names import LIBRARIES
from .libraries import BUILT_ON


@dataclass(frozen=True)
class Source:
    """One file of the script: itself, or a module in its directory that it imports."""

    path: Path
    tree: ast.Module


def parse(path: Path, text: str | bytes | None = None) -> ast.Module:
    try:
        return ast.parse(path.read_bytes() if text is None else text, str(path))
    except SyntaxError as error:
        raise ArgumentError(f"{path} cannot be parsed as Python: {error}") from error


def sources(path: Path, text: str | bytes | None = None) -> Iterator[Source]:
    """The script, then every module that it imports, directly or not, from its directory."""
    folder, seen = path.parent, {path.resolve()}
    yield (first := Source(path, parse(path, text)))
    waiting = [first]
    while waiting:
        for name in sorted(imported(waiting.pop().tree)):
            found = _beside(folder, name)
            if found is not None and found.resolve() not in seen:
                seen.add(found.resolve())
                yield (next_one := Source(found, parse(found)))
                waiting.append(next_one)


def _beside(folder: Path, name: str) -> Path | None:
    where = folder.joinpath(*name.split("."))
    return next((each for each in (where.with_suffix(".py"), where / "__init__.py") if each.is_file()), None)


def imported(tree: ast.Module) -> set[str]:
    """The modules that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def libraries_of(path: Path, text: str | bytes | None = None) -> list[str]:
    """The libraries that a script and its modules import; all if none is found, since others may import them."""
    try:
        roots = {name.partition(".")[0] for source in sources(path, text) for name in imported(source.tree)}
    except ArgumentError:
        roots = set()  # Python reports what is wrong with the file
    if roots & BUILT_ON.keys():
        roots.add("transformers")
    return [library for library in LIBRARIES if library in roots] or list(LIBRARIES)


def imports_itself(path: Path, text: str | bytes | None, library: str) -> bool:
    """Whether a script or one of its modules has a plain `import LIBRARY`, for its side effects."""
    try:
        return any(library in imported(source.tree) for source in sources(path, text))
    except ArgumentError:
        return False
