"""Layers of the package: a module imports only from its own layer and from those above it in the list.

A name stands for a module or a package; the longest one that fits decides. Imports inside functions, for type checkers,
and by import_module with a constant name count like all others.
"""

from collections import defaultdict

from tests.structure.figures import imports, module_name, trees

LAYERS = (
    (
        *("errors", "enums", "outputs", "protocols", "secrets", "behaviour", "extension", "introspect", "libraries"),
        "writers",
    ),
    ("formats", "parser"),
    (
        *("distributed.world", "distributed.collectives", "distributed.mesh", "distributed.preemption", "converters"),
        *("backends.registry", "backends.loading", "backends.late_seeding", "backends.base", "backends.step_memory"),
    ),
    ("randomness", "optim", "data", "arguments"),
    ("steps", "state"),
    ("distributed", "backends"),
    ("checkpoint",),
    ("callbacks", "trainer", "loop"),
    ("storage", "integrations", "report", "plan", "divergence"),
    ("compat",),
    ("cli", "recipes", "accept", "public", "__main__", "__init__"),
)
# Imports against this order that are left, for type checkers alone: to become fewer, never more.
FOR_TYPES = {
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
