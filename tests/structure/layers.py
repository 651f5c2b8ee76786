"""Layers of the package: a module imports only from its own layer and from those above it in the list.

A name stands for a module or a package; the longest one that fits decides. Imports inside functions, for type checkers,
and by import_module with a constant name count like all others.
"""

import ast
from collections import defaultdict

from tests.structure.figures import trees

LAYERS = (
    ("errors", "enums", "outputs", "secrets", "behaviour", "extension", "introspect", "writers"),
    ("formats", "parser"),
    (
        *("distributed.world", "distributed.collectives", "distributed.preemption", "converters"),
        *("backends.registry", "backends.loading", "backends.late_seeding", "backends.base", "backends.step_memory"),
    ),
    ("randomness", "optim", "data", "arguments"),
    ("steps", "state"),
    ("distributed", "backends"),
    ("checkpoint",),
    ("callbacks", "trainer", "loop"),
    ("storage", "integrations", "report", "plan"),
    ("compat",),
    ("cli", "public", "__main__", "__init__"),
)
# Imports against this order that are left, for type checkers alone: to become fewer, never more.
FOR_TYPES = {
    ("checkpoint", "trainer"): 16,
    ("distributed", "trainer"): 1,
    ("backends", "backends"): 1,
    ("backends", "data"): 1,
    ("backends", "distributed"): 1,
}


def layer(module):
    """The number of the layer of a module."""
    found = [(len(name), i) for i, names in enumerate(LAYERS) for name in names if f"{module}.".startswith(f"{name}.")]
    assert found, f"{module} is in no layer"
    return max(found)[1]


def module_name(file):
    name = file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    return name or "__init__"


def imports(file, tree):
    """(module, line, whether it is for type checkers only) of each import of a module of oneloop."""
    modules = {module_name(each) for each in trees()}
    checking = {
        node
        for each in ast.walk(tree)
        if isinstance(each, ast.If) and "TYPE_CHECKING" in ast.unparse(each.test)
        for part in each.body
        for node in ast.walk(part)
    }
    parts = file.removesuffix(".py").split("/")
    for node in ast.walk(tree):
        for name in _names(node, parts):
            known = name if name in modules else name.rpartition(".")[0]
            if known in modules:
                yield known, node.lineno, node in checking


def _names(node, parts):
    if isinstance(node, ast.ImportFrom):
        package = parts[: len(parts) - node.level] if node.level else []
        module = node.module.split(".") if node.module else []
        if not node.level and module[:1] != ["oneloop"]:
            return []
        base = [*package, *module] if node.level else module[1:]
        return [".".join([*base, each.name]) for each in node.names]
    if isinstance(node, ast.Import):
        return [each.name.removeprefix("oneloop.") for each in node.names if each.name.startswith("oneloop.")]
    is_call = isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args
    if is_call and isinstance(node.args[0], ast.Constant) and str(node.args[0].value).startswith("oneloop."):
        return [node.args[0].value.removeprefix("oneloop.")]
    return []


def against_the_order():
    """(for type checkers only) -> {(package, package imported): [places]}."""
    found = {True: defaultdict(list), False: defaultdict(list)}
    for file, tree in trees().items():
        importer = module_name(file)
        for module, line, for_types in imports(file, tree):
            if layer(module) > layer(importer):
                pair = (importer.split(".")[0], module.split(".")[0])
                found[for_types][pair].append(f"{file}:{line} imports {module}")
    return found


def importers_of(package):
    """Places outside of a package that import it."""
    return [
        f"{file}:{line}"
        for file, tree in trees().items()
        if not file.startswith(f"{package}/")
        for module, line, _ in imports(file, tree)
        if module.split(".")[0] == package
    ]
