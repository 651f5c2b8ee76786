"""Which names and classes of a script are a Trainer, training arguments or a callback."""

import ast
from collections.abc import Iterator

from ..redirected_names import LIBRARIES, REFUSED, TRAINER_NAMES
from .libraries import BUILT_ON, ROLES, LibraryClass, library_class
from .syntax import Source

OWN = frozenset([*TRAINER_NAMES.split(), *ROLES])
KNOWN = OWN | REFUSED.keys()


class Classes:
    """The classes of all files of a script, by name, with their inherited role."""

    def __init__(self, files: list[Source]) -> None:
        self.nodes: dict[str, ast.ClassDef] = {}
        self.names: dict[str, str] = {}  # local name -> its origin
        self.set_on_arguments: set[str] = set()  # attributes that the script sets on training arguments
        for source in files:
            for node in ast.walk(source.tree):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    if ast.unparse(node.value).endswith("args"):
                        self.set_on_arguments.add(node.attr)
                elif isinstance(node, ast.ClassDef):
                    self.nodes[node.name] = node
                elif isinstance(node, ast.Import):
                    for each in node.names:
                        self.names[each.asname or each.name.partition(".")[0]] = (
                            each.name if each.asname else each.name.partition(".")[0]
                        )
                elif isinstance(node, ast.ImportFrom) and node.module:
                    for each in node.names:
                        self.names[each.asname or each.name] = f"{node.module}.{each.name}"

    def origin(self, node: ast.AST) -> str:
        """A dotted name with imports resolved: tf.Trainer -> transformers.Trainer."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            return f"{self.origin(node.value)}.{node.attr}"
        return ""

    def library_name(self, node: ast.AST) -> str | None:
        """The Trainer-related name that an expression refers to, or None."""
        origin = self.origin(node)
        root, _, last = origin.partition(".")[0], None, origin.rpartition(".")[2]
        return last if root in (*LIBRARIES, "oneloop") and last in OWN else None

    def derived_name(self, node: ast.AST) -> str | None:
        """The name of a library's own Trainer subclass, such as PaddleNLP's PromptTrainer or TRL's SFTTrainer, or
        None."""
        origin = self.origin(node)
        root, last = origin.partition(".")[0], origin.rpartition(".")[2]
        if not last.endswith("Trainer"):
            return None
        return last if root in BUILT_ON or (root in LIBRARIES and last not in KNOWN) else None

    def of_library(self) -> list[LibraryClass]:
        """The classes that the script imports from libraries that are built on transformers' Trainer."""
        origins = [origin for origin in self.names.values() if origin.partition(".")[0] in BUILT_ON]
        return [found for origin in origins if (found := library_class(origin)) is not None]

    def library_fields(self) -> list[str]:
        """The options of all these classes."""
        return sorted({name for each in self.of_library() for name in each.fields})

    def library_field(self, name: str) -> str | None:
        """The library's class, such as SFTConfig, that has this option and that the script imports."""
        return next((each.name for each in self.of_library() if name in each.fields), None)

    def derived_arguments(self) -> list[str]:
        """Libraries' own subclasses of TrainingArguments that the script imports."""
        origins = [origin.split(".") for origin in self.names.values()]
        derived = {parts[-1] for parts in origins if parts[0] in LIBRARIES and parts[-1].endswith("Arguments")}
        return sorted(derived - KNOWN)

    def library_names(self) -> set[str]:
        """The Trainer-related names that the script imports."""
        origins = [origin.split(".") for origin in self.names.values()]
        return {parts[-1] for parts in origins if parts[0] in (*LIBRARIES, "oneloop") and parts[-1] in OWN}

    def role(self, node: ast.AST) -> str | None:
        """Trainer, TrainingArguments, TrainerCallback or Parser, for the name of a class or what derives from it."""
        name = self.library_name(node)
        if name is not None:
            return ROLES.get(name)
        if self.origin(node).partition(".")[0] in BUILT_ON:
            found = library_class(self.origin(node))
            return None if found is None else found.role
        own = self.nodes.get(self.origin(node).rpartition(".")[2])
        return self.role_of_class(own) if own is not None else None

    def role_of_class(self, node: ast.ClassDef, seen: frozenset[str] = frozenset()) -> str | None:
        for base in node.bases:
            name = self.library_name(base)
            if name is not None and ROLES.get(name):
                return ROLES[name]
            above = library_class(self.origin(base))
            if above is not None and above.role:
                return above.role
            own = self.nodes.get(self.origin(base).rpartition(".")[2])
            if own is not None and own is not node and own.name not in seen:
                role = self.role_of_class(own, seen | {node.name})
                if role:
                    return role
        return None

    def family(self, node: ast.ClassDef) -> Iterator[ast.ClassDef]:
        """A class and those of the script that it derives from."""
        waiting, seen = [node], set()
        while waiting:
            each = waiting.pop()
            if each.name in seen:
                continue
            seen.add(each.name)
            yield each
            waiting += [
                own for base in each.bases if (own := self.nodes.get(self.origin(base).rpartition(".")[2])) is not None
            ]

    def library_bases(self, node: ast.ClassDef) -> list[LibraryClass]:
        """What a class of the script derives from in libraries that are built on transformers' Trainer."""
        bases = [library_class(self.origin(base)) for each in self.family(node) for base in each.bases]
        return [each for each in bases if each is not None]

    def fields(self, beside: bool = False) -> set[str]:
        """The annotated names of all classes of the script: the options of its dataclasses. beside: only of classes
        that are not training arguments."""
        return {
            item.target.id
            for node in self.nodes.values()
            for item in node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            if not beside or self.role_of_class(node) != "TrainingArguments"
        }

    def trainer_is_built(self, files: list[Source]) -> bool:
        calls = (node for source in files for node in ast.walk(source.tree) if isinstance(node, ast.Call))
        return any(self.role(call.func) == "Trainer" or self.derived_name(call.func) for call in calls)
