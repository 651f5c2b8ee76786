"""Checks the code of one file: imports, calls, overrides and attributes."""

import ast
import inspect
from functools import cache
from pathlib import Path
from typing import Any

from ...callbacks import FINER_EVENTS, TrainerCallback
from ...trainer import Trainer as CoreTrainer
from ..accelerator import Accelerator
from ..accelerator_rest import UNSUPPORTED_METHODS
from ..redirected_names import LIBRARIES, MODULES, REFUSED, source_of
from ..transformers import UNUSED_LOOPS, UNUSED_OVERRIDES
from . import libraries
from .arguments import Arguments
from .classes import Classes
from .findings import Finding
from .libraries import init_parameters, own_names
from .syntax import Source

_SIGNATURE = inspect.signature(CoreTrainer.__init__).parameters
PARAMETERS = [name for name, each in _SIGNATURE.items() if each.kind is not each.VAR_POSITIONAL and name != "self"]
POSITIONAL = [name for name in PARAMETERS if _SIGNATURE[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
OPTIONAL = ("num_items_in_batch", "start_time", "_internal_call")  # passed to overrides that accept them
EVENTS = {*(name for name in dir(TrainerCallback) if name.startswith("on_")), *FINER_EVENTS}
# Libraries that a script may use to train without a Trainer.
OWN_LOOPS = {
    "accelerate": "the script's own Accelerator is not oneloop's: a training loop written with it is not redirected",
    "deepspeed": "use the argument deepspeed; the script's own engine is not redirected",
}


def _public_trainer() -> Any:
    import oneloop  # its classes stand on top of this package

    return oneloop.Trainer


@cache
def trainer_attributes() -> frozenset[str]:
    """All attributes of a Trainer: of its class, and set on self."""
    bases = _public_trainer().__mro__[:-1]
    names = {*dir(_public_trainer()), *(name for base in bases for name in inspect.get_annotations(base))}
    files = {Path(inspect.getfile(base)) for base in bases} | {*Path(inspect.getfile(CoreTrainer)).parent.glob("*.py")}
    for path in sorted(files):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
    return frozenset(names)


@cache
def accelerator_attributes() -> frozenset[str]:
    return frozenset(dir(Accelerator)) - UNSUPPORTED_METHODS.keys()


class Reader:
    """The findings of one file."""

    def __init__(self, source: Source, classes: Classes, arguments: Arguments) -> None:
        self.file, self.tree = str(source.path), source.tree
        self.classes, self.arguments = classes, arguments
        self.found: list[Finding] = []
        self.trainers, self.settings = self._variables()

    def findings(self) -> list[Finding]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                self._import_from(node)
            elif isinstance(node, ast.Import):
                self._import(node)
            elif isinstance(node, ast.Call):
                self._call(node)
            elif isinstance(node, ast.ClassDef):
                self._class(node)
            elif isinstance(node, ast.Attribute):
                self._attribute(node)
        return self.found

    def _add(self, node: ast.AST, kind: str, name: str, answer: str, text: str = "") -> None:
        self.found.append(Finding(self.file, getattr(node, "lineno", 0), kind, name, answer, text))

    def _variables(self) -> tuple[set[str], set[str]]:
        """Names of variables that hold a Trainer, and that hold training arguments."""
        trainers, settings = set(), {"training_args"}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                role = self.classes.role(node.value.func)
                names = {target.id for target in node.targets if isinstance(target, ast.Name)}
                if role == "Trainer":
                    trainers |= names
                elif role == "TrainingArguments":
                    settings |= names
        return trainers, settings

    # -- imports

    def _import_from(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        root = module.partition(".")[0]
        self._other_library(node, root)
        if root not in LIBRARIES:
            return
        for each in node.names:
            if each.name in REFUSED and any(module in modules for modules in MODULES.values()):
                self._add(each, "import", each.name, "refused", REFUSED[each.name])
            elif source_of(each.name, module) is not None:
                self._add(each, "import", each.name, "works", "from oneloop")
            elif each.name == "*":
                self._add(node, "import", f"{module}.*", "unseen", "the names used are not known")

    def _import(self, node: ast.Import) -> None:
        for each in node.names:
            self._other_library(node, each.name.partition(".")[0])

    def _other_library(self, node: ast.AST, root: str) -> None:
        if root in OWN_LOOPS:
            self._add(node, "import", root, "unseen", OWN_LOOPS[root])
        elif (found := libraries.answer(root)) is not None:
            self._add(node, "import", root, *found)

    # -- calls

    def _call(self, node: ast.Call) -> None:
        role = self.classes.role(node.func)
        if role == "TrainingArguments":
            plain = self.classes.library_name(node.func) == "TrainingArguments"
            self.found += self.arguments.of_call(self.file, node, plain)
        elif role == "Trainer" and self.classes.derived_name(node.func) is None:
            self._trainer_call(node)
        elif self._reads_source(node):
            text = "rewriting the Trainer's source text: oneloop's methods are written otherwise. Override the method"
            self._add(node, "call", ast.unparse(node.func), "refused", text)
        elif (name := self.classes.derived_name(node.func)) is not None:
            if (found := libraries.answer(self.classes.origin(node.func).partition(".")[0])) is not None:
                self._add(node, "class", name, *found)
                return
            text = "a subclass of the library's Trainer, and so of oneloop's here: its overrides are not checked"
            self._add(node, "class", name, "unseen", text)

    def _reads_source(self, node: ast.Call) -> bool:
        """inspect.getsource(Trainer.training_step), of which others make a method with another text."""
        if self.classes.origin(node.func) not in ("inspect.getsource", "inspect.getsourcelines") or not node.args:
            return False
        read = node.args[0]
        holder = read.value if isinstance(read, ast.Attribute) else read
        return self.classes.role(holder) == "Trainer" or self.classes.role(read) == "Trainer"

    def _trainer_call(self, node: ast.Call) -> None:
        own = self.classes.nodes.get(self.classes.origin(node.func).rpartition(".")[2])
        known = set(PARAMETERS)
        if own is not None:
            for cls in self.classes.family(own):
                known |= init_parameters(cls)
            known = known.union(*(base.parameters for base in self.classes.library_bases(own)))
        elif len(node.args) > len(POSITIONAL):
            text = f"positional arguments go up to {POSITIONAL[-1]}; pass the others by name"
            self._add(node, "argument", "Trainer(...)", "refused", text)
        for keyword in node.keywords:
            if keyword.arg is None:
                self._add(keyword.value, "argument", f"**{ast.unparse(keyword.value)}", "unseen", "a dict: not checked")
            elif keyword.arg == "tokenizer":
                self._add(keyword.value, "argument", "tokenizer", "maps", "processing_class")
            elif keyword.arg in known:
                self._add(keyword.value, "argument", keyword.arg, "works")
            else:
                self._add(keyword.value, "argument", keyword.arg, "refused", "Trainer has no such argument")

    # -- classes

    def _class(self, node: ast.ClassDef) -> None:
        role = self.classes.role_of_class(node)
        for base in node.bases:
            name = self.classes.origin(base).rpartition(".")[2]
            if name in REFUSED:
                self._add(node, "class", node.name, "refused", REFUSED[name])
        methods = [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
        if role == "Trainer":
            called = _called_on_self(node)
            known = called.union(*(base.names for base in self.classes.library_bases(node)))
            for method in methods:
                self._override(method, known)
        elif role == "TrainerCallback":
            for method in methods:
                if method.name.startswith("on_") and method.name not in EVENTS:
                    self._add(method, "event", method.name, "changes", "oneloop has no such event: it is never called")
                elif method.name in EVENTS:
                    self._add(method, "event", method.name, "works")

    def _override(self, method: ast.FunctionDef | ast.AsyncFunctionDef, known: set[str]) -> None:
        name = method.name
        if name.startswith("__"):
            return
        if name in UNUSED_LOOPS and not _mentions(method, name):
            self._add(method, "method", name, "changes", f"oneloop never calls it; override {UNUSED_LOOPS[name]}")
        elif name in UNUSED_OVERRIDES:
            text = f"oneloop never calls it; override {UNUSED_OVERRIDES[name]}"
            self._add(method, "method", name, "changes", text)
        elif hasattr(_public_trainer(), name):
            self._add(method, "method", name, "works", self._signature(method))
        elif name.startswith("_") and name not in known:
            text = "oneloop's Trainer has no such method: if it overrides one of the library, it is never called"
            self._add(method, "method", name, "changes", text)

    def _signature(self, method: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
        """The arguments that an override written for an older version does not accept."""
        own = inspect.signature(getattr(_public_trainer(), method.name)).parameters
        taken = [each.arg for each in (*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs)]
        missing = [name for name in OPTIONAL if name in own and name not in taken]
        if not missing or method.args.kwarg or method.args.vararg:
            return ""
        return f"called without {', '.join(missing)}"

    # -- attributes

    def _attribute(self, node: ast.Attribute) -> None:
        if not isinstance(node.ctx, ast.Load):
            return
        holder = node.value
        if isinstance(holder, ast.Attribute) and holder.attr == "accelerator" and self._is_trainer(holder.value):
            if node.attr not in accelerator_attributes():
                use = UNSUPPORTED_METHODS.get(node.attr, "use trainer.args, or the framework")
                text = f"oneloop's accelerator has no such attribute; {use}"
                self._add(node, "attribute", f"accelerator.{node.attr}", "refused", text)
        elif self._is_arguments(holder):
            self._argument_attribute(node)
        elif self._is_trainer(holder) and not self._known_to(holder, node.attr):
            instead = UNUSED_OVERRIDES.get(node.attr)
            text = "oneloop's Trainer has no such attribute" + (f". Instead: {instead}" if instead else "")
            self._add(node, "attribute", f"{ast.unparse(holder)}.{node.attr}", "refused", text)

    def _is_arguments(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Attribute):
            return node.attr == "args" and self._is_trainer(node.value)
        return isinstance(node, ast.Name) and node.id in self.settings

    def _argument_attribute(self, node: ast.Attribute) -> None:
        name = node.attr
        known = {*self.arguments.known, *self.arguments.compression, *self.classes.fields()}
        if hasattr(self.arguments.cls, name) or name in known | self.classes.set_on_arguments:
            return
        if any(name in each.names for each in self.classes.of_library() if each.role == "TrainingArguments"):
            return
        answer, text = "refused", "TrainingArguments has no such attribute"
        if derived := self.classes.derived_arguments():
            answer, text = "unseen", f"TrainingArguments has no such attribute; {' or '.join(derived)} may have it"
        self._add(node, "attribute", f"args.{name}", answer, text)

    def _is_trainer(self, node: ast.AST) -> bool:
        """A variable that holds a Trainer; self or super() in a subclass of one."""
        if isinstance(node, ast.Name):
            return node.id in self.trainers or (node.id == "self" and self._class_around(node) is not None)
        is_super = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
        return is_super and self._class_around(node) is not None

    def _class_around(self, node: ast.AST) -> ast.ClassDef | None:
        line = getattr(node, "lineno", 0)
        around = [
            each
            for each in ast.walk(self.tree)
            if isinstance(each, ast.ClassDef) and each.lineno <= line <= (each.end_lineno or line)
        ]
        inner = max(around, key=lambda each: each.lineno, default=None)
        return inner if inner is not None and self.classes.role_of_class(inner) == "Trainer" else None

    def _known_to(self, holder: ast.AST, name: str) -> bool:
        if name in trainer_attributes() or name.startswith("__"):
            return True
        around = self._class_around(holder)
        if isinstance(holder, ast.Call):  # super()
            mine = [each for each in self.classes.family(around) if each is not around] if around is not None else []
        elif isinstance(holder, ast.Name) and holder.id == "self":
            mine = list(self.classes.family(around)) if around is not None else []
        else:
            mine = [node for node in self.classes.nodes.values() if self.classes.role_of_class(node) == "Trainer"]
        if any(name in each.names for each in self.classes.of_library() if each.role == "Trainer"):
            return True
        return any(name in own_names(each) for each in mine)


def _mentions(method: ast.AST, name: str) -> bool:
    """Whether a method uses an attribute of that name, such as its own of super()."""
    return any(isinstance(each, ast.Attribute) and each.attr == name for each in ast.walk(method))


def _called_on_self(node: ast.ClassDef) -> set[str]:
    return {
        each.func.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and isinstance(each.func.value, ast.Name)
        and each.func.value.id == "self"
    }  # fmt: skip
