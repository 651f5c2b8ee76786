"""Libraries that are built on transformers' Trainer: what is known of them, and their classes, read from the source."""

import ast
import importlib.metadata
import importlib.util
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..redirected_names import LIBRARIES, REWRITING

ROLES = {
    "Trainer": "Trainer",
    "Seq2SeqTrainer": "Trainer",
    "TrainingArguments": "TrainingArguments",
    "Seq2SeqTrainingArguments": "TrainingArguments",
    "CompressionArguments": "TrainingArguments",
    "TrainerCallback": "TrainerCallback",
    "HfArgumentParser": "Parser",
    "PdArgumentParser": "Parser",
}


@dataclass(frozen=True)
class Library:
    """A library that runs on oneloop under `oneloop run`; tested: the series of versions that the tests use."""

    package: str
    tested: str
    how: str


_DERIVED = "its trainers derive from oneloop's Trainer"
_WITHIN = "it trains through the Trainer of sentence-transformers, which derives from oneloop's"
BUILT_ON = {
    "trl": Library("trl", "1.16", _DERIVED),
    "sentence_transformers": Library("sentence-transformers", "6.2", _DERIVED),
    "setfit": Library("setfit", "1.2", _WITHIN),
    "peft": Library("peft", "0.21", "adapters are trained, saved and resumed"),
}


def answer(root: str) -> tuple[str, str] | None:
    """(answer, reason) for an import of this package, if it is one of these."""
    if root in REWRITING:
        return "refused", REWRITING[root]
    if root not in BUILT_ON:
        return None
    library = BUILT_ON[root]
    try:
        version = importlib.metadata.version(library.package)
    except importlib.metadata.PackageNotFoundError:
        return "unseen", f"{library.package} is not installed; {library.tested} is tested: {library.how}"
    if f"{version}.".startswith(f"{library.tested}."):
        return "works", f"{library.how} (tested with {library.package} {library.tested})"
    return "unseen", f"{library.package} {version} is not tested, {library.tested} is: {library.how}"


@dataclass(frozen=True)
class LibraryClass:
    """A class of such a library, with what it inherits inside the library."""

    name: str
    role: str | None  # as in ROLES
    fields: frozenset[str]  # annotated names: the options of a dataclass
    names: frozenset[str]  # methods, class attributes and what is set on self
    parameters: frozenset[str]  # of __init__


@cache
def library_class(origin: str) -> LibraryClass | None:
    """The class with this dotted name, such as trl.SFTConfig, read from the installed source without importing it."""
    root, name = origin.partition(".")[0], origin.rpartition(".")[2]
    path = _places(root).get(name) if root in BUILT_ON else None
    if path is None:
        return None
    tree = ast.parse(path.read_text(encoding="utf-8"))
    node = next(each for each in ast.walk(tree) if isinstance(each, ast.ClassDef) and each.name == name)
    imported = _imports(tree)
    fields, names, parameters = _fields(node), own_names(node), init_parameters(node)
    role = None
    for base in node.bases:
        above = _dotted(base, imported, root)
        last = above.rpartition(".")[2]
        if above.partition(".")[0] in LIBRARIES:
            role = role or ROLES.get(last)
        elif last != name and (parent := library_class(above)) is not None:
            role, fields, names = role or parent.role, fields | parent.fields, names | parent.names
            parameters |= parent.parameters
    return LibraryClass(name, role, frozenset(fields), frozenset(names), frozenset(parameters))


@cache
def _places(root: str) -> dict[str, Path]:
    """The file in which each class of a package is defined."""
    spec = importlib.util.find_spec(root)
    found: dict[str, Path] = {}
    for folder in (spec.submodule_search_locations if spec is not None else None) or ():
        for path in sorted(Path(folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8", errors="replace")
            for name in re.findall(r"^class (\w+)", text, re.MULTILINE):
                found.setdefault(name, path)
    return found


def _imports(tree: ast.Module) -> dict[str, str]:
    """Local name -> dotted origin; relative imports without their dots."""
    return {
        each.asname or each.name: f"{node.module}.{each.name}" if node.level == 0 else each.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for each in node.names
    }


def _dotted(base: ast.expr, imported: dict[str, str], root: str) -> str:
    first, _, rest = ast.unparse(base).partition(".")
    name = ".".join(filter(None, (imported.get(first, first), rest)))
    return name if name.partition(".")[0] in (*LIBRARIES, *BUILT_ON) else f"{root}.{name}"


def _fields(node: ast.ClassDef) -> set[str]:
    return {
        item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }


def init_parameters(node: ast.ClassDef) -> set[str]:
    """The named parameters of a class's __init__."""
    found = (item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__")
    return {each.arg for item in found for each in (*item.args.args, *item.args.kwonlyargs)}


def own_names(node: ast.ClassDef) -> set[str]:
    """Methods, class attributes and what is set on self."""
    names = {item.name for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)}
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
            names.add(each.attr)
        elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            names.add(each.id)
    return names
