"""Who owns which state of a Trainer or a run, read off the syntax trees.

Who writes which attribute is found by the last name before it: `self` in a method is its class; `trainer` is the
Trainer; the other names are those under which the objects of a run are known (OWNERS).
"""

import ast
from collections import defaultdict
from functools import cache

from tests.structure.figures import package, trees

PACKAGE = package()
# The classes that make the Trainer: methods by concern, and names of other Trainers.
PARTS = ("MetricsMethods", "OverridableMethods")  # of the core's Trainer; those on top of it:
ON_TOP = ("HubMethods", "SearchMethods", "PlanMethods", "TransformersNames", "PaddleNLPNames")
TRAINER = ("Trainer", "Seq2SeqTrainer", "CheckpointMethods", *PARTS, *ON_TOP)
# The objects that hold state for a Trainer or a run, by the names under which other modules reach them.
OWNERS = {
    "core": "Core",
    "_oneloop": "Core",
    "run": "Run",
    "update": "Update",
    "sync": "StepSync",
    "meter": "Meter",
    "losses": "LossMeter",
    "curve": "LossCurve",
    "sources": "SourceMeter",
    "spikes": "SpikeGuard",
    "checkpointer": "Checkpointer",
    "writer": "SaveWriter",
    "capture": "Capture",
    "directory": "OutputDirectory",
    "mirror": "Mirror",
    "lease": "Lease",
    "_references": "References",
    "loose": "LooseFiles",
    "model_files": "ModelFiles",
    "best": "BestModel",
    "epochs": "Epochs",
    "resume": "ResumePoint",
    "data": "DataStates",
    "events": "RunEvents",
    "history": "LogHistory",
    "step_end": "StepEnd",
    "seeds": "WorkerSeeds",
    "hub": "HubPushes",
    "search": "SearchState",
    "memory": "MemoryTracker",
    "user_optimizers": "UserOptimizers",
    "model_info": "ModelInfo",
    "signals": "SignalHandler",
    "contract": "LossContract",
    "counting": "ItemCounting",
    "weights": "MicroBatchWeights",
    "modes": "Modes",
    "average": "WeightAverage",
    "nonfinite": "NonfiniteUpdates",
    "finite_values": "FiniteValues",
    "shared": "SharedUpdate",
    "stored": "RunState",
}
HOMES = {"Trainer": "trainer/trainer.py", "Seq2SeqTrainer": "trainer/seq2seq.py", "Run": "trainer/run.py"}


@cache
def classes():
    """name -> (file, its node); HOMES settles names that two files have."""
    return {
        node.name: (file, node)
        for file, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and HOMES.get(node.name, file) == file
    }


@cache
def _targets(node):
    """Attributes that are assigned anywhere below a node."""
    return [
        each
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, (ast.Store, ast.Del))
    ]


def _owner_name(attribute):
    """The last name before the attribute: `b` in a.b.c."""
    value = attribute.value
    return value.id if isinstance(value, ast.Name) else value.attr if isinstance(value, ast.Attribute) else None


def fields(name):
    """The fields of a class: those declared in its body, and those that its methods assign to self."""
    _, node = classes()[name]
    declared = {
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    return declared | {each.attr for each in _targets(node) if _owner_name(each) == "self"}


def written_elsewhere(name):
    """Fields of a class that modules other than its own assign: "field in file"."""
    home, _ = classes()[name]
    names, known = {key for key, owner in OWNERS.items() if owner == name}, fields(name)
    return sorted(
        f"{each.attr} in {file}"
        for file, tree in trees().items()
        if file != home
        for each in _targets(tree)
        if _owner_name(each) in names and each.attr in known
    )


def private_attributes():
    """Private attributes of the Trainer -> the files that assign them."""
    found = defaultdict(set)
    for name in TRAINER:
        file, node = classes()[name]
        for each in _targets(node):
            if _owner_name(each) == "self" and each.attr.startswith("_"):
                found[each.attr].add(file)
    for file, tree in trees().items():
        for each in _targets(tree):
            if _owner_name(each) in ("trainer", "_trainer") and each.attr.startswith("_"):
                found[each.attr].add(file)
    return dict(found)


def touched_by_others():
    """Private names of a Trainer that modules other than those of its classes read or call, and where."""
    homes = {classes()[name][0] for name in TRAINER}
    found = defaultdict(set)
    for file, tree in trees().items():
        if file in homes:
            continue
        for each in ast.walk(tree):
            of_trainer = isinstance(each, ast.Attribute) and _owner_name(each) in ("trainer", "_trainer")
            if of_trainer and each.attr.startswith("_") and not each.attr.startswith("__"):
                found[each.attr].add(file)
    return dict(found)


def root_files():
    return sorted(path.name for path in PACKAGE.glob("*.py"))


def any_escapes():
    """Classes with a __getattr__ for type checkers, which makes every misspelt name type-check."""
    return sorted(
        f"{file}: {node.name}"
        for file, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(isinstance(each, ast.FunctionDef) and each.name == "__getattr__" for each in ast.walk(node))
    )


def bases_of_trainer(file="trainer/trainer.py"):
    nodes = [node for node in trees()[file].body if isinstance(node, ast.ClassDef) and node.name == "Trainer"]
    names = [ast.unparse(base).removesuffix("[Args_co]") for base in nodes[0].bases]
    return [name for name in names if name != "TrainerBase"]  # what makes it subscriptable


def public_methods(classes_of_trainer=("Trainer", *PARTS, *ON_TOP)):
    """Public methods and properties of the Trainer -> whether they have a docstring."""
    found = {}
    for name in classes_of_trainer:
        for each in classes()[name][1].body:
            if isinstance(each, ast.FunctionDef) and not each.name.startswith("_"):
                found[each.name] = found.get(each.name, False) or ast.get_docstring(each) is not None
    return found


def frameworks_imported_by_core():
    names = {"torch", "paddle", "mindspore", "mindtorch"}
    found = []
    for file, tree in trees().items():
        if file.startswith("backends/"):
            continue
        for node in ast.walk(tree):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            if any(module.split(".")[0] in names for module in modules):
                found.append(f"{file}:{node.lineno}")
    return found
