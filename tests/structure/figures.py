"""Figures of the package's structure: python -m tests.structure.figures [CHECKOUT ...]

Without an argument, those of this tree; with paths of other checkouts, theirs beside it. They are there to see by: what
has to hold is asserted in the tests beside this module.
"""

import argparse
import ast
import io
import json
import os
import re
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Packages and modules that are no part of the core: they stand on top of it.
ON_TOP = (
    "storage",
    "integrations",
    "report",
    "plan",
    "compat",
    "cli",
    "recipes",
    "accept",
    "public",
    "__main__",
    "__init__",
)
LIBRARIES = re.compile(
    r"transformers|accelerate\b|\btrl\b|\bpeft\b|paddlenlp|paddleformers|mindnlp|llama.?factory|\bswift\b|setfit", re.I
)
# A part of a run -> its own modules (and those where its words mean something else), and the words by which the code of
# other modules mentions it; the argument of that name is none.
PARTS = {
    "mixture losses": (
        r"trainer/(source_meter|packing)|checkpoint/from_other|parts/(source|mixture)",
        r"Source\w*Meter|source_meter|\bsources\b",
    ),
    "loss spikes": (r"trainer/loss_spikes|parts/(loss_)?spikes", r"SpikeGuard|loss_spikes|\bspikes\b|RolledBack"),
    "nonfinite": (r"trainer/nonfinite|parts/nonfinite", r"NonfiniteUpdates|(?<!args\.)\bnonfinite\b(?!=)"),
    "averages": (
        r"trainer/(averages|logged_metrics)|parts/averages",
        r"WeightAverage|\baverages\b|(?<!losses)\.average\b",
    ),
    "loss curve": (r"trainer/(loss_curve|losses)|parts/(loss_)?curve", r"LossCurve|loss_curve|\bcurve\b"),
    "meters": (r"trainer/(meter|losses)|parts/meters?", r"LossMeter|WorkMeter|\bmeter\.(losses|work)\b"),
    "storage": (
        r"storage/",
        r"RunStor(ag)?e|run_stor(ag)?e|\.storage\b|MirroredDirectory|extensions\.output_directory|ObjectStorage",
    ),
}
WIRED = ("trainer/", "checkpoint/", "distributed/", "formats/", "storage/", "loop.py", "public.py")


def package(root=ROOT):
    return Path(root) / "oneloop"


@cache
def sources(root=ROOT):
    """File, relative to the package -> its text."""
    base = package(root)
    return {path.relative_to(base).as_posix(): path.read_text("utf-8") for path in sorted(base.rglob("*.py"))}


@cache
def trees(root=ROOT):
    return {file: ast.parse(text) for file, text in sources(root).items()}


def unit(file):
    """The package, or the module at the root, to which a file belongs."""
    return file.split("/")[0].removesuffix(".py")


def module_name(file):
    name = file.removesuffix(".py").replace("/", ".").removesuffix(".__init__").removesuffix("__init__")
    return name or "__init__"


def imports(file, tree, root=ROOT):
    """(module, line, whether it is for type checkers only) of each import of a module of oneloop: imports inside
    functions and import_module with a constant name count like all others."""
    modules = {module_name(each) for each in trees(root)}
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
        above = parts[: len(parts) - node.level] if node.level else []
        module = node.module.split(".") if node.module else []
        if not node.level and module[:1] != ["oneloop"]:
            return []
        base = [*above, *module] if node.level else module[1:]
        return [".".join([*base, each.name]) for each in node.names]
    if isinstance(node, ast.Import):
        return [each.name.removeprefix("oneloop.") for each in node.names if each.name.startswith("oneloop.")]
    if not (isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args):
        return []
    name = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
    if not isinstance(name, str):
        return []
    if name.startswith("."):
        level = len(name) - len(name.lstrip("."))
        return [".".join([*parts[: len(parts) - level], name.lstrip(".")])]
    return [name.removeprefix("oneloop.")] if name.startswith("oneloop.") else []


def code_lines(text):
    """Line number -> its code, without comments and without strings that are statements (docstrings)."""
    found, last = defaultdict(str), tokenize.INDENT
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        starts_statement = last in (tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE)
        if token.type not in skipped and not (token.type == tokenize.STRING and starts_statement):
            line = found[token.start[0]]
            found[token.start[0]] = line + " " * (token.start[1] - len(line)) + token.string
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            last = token.type
    return found


# -- the rows of the table


def compat_imports(root=ROOT):
    """Imports of compat by the core and by what stands beside it: all but compat, the command line and the root."""
    return [
        f"{file}:{line}"
        for file, tree in trees(root).items()
        if unit(file) not in ("compat", "cli", "public", "__init__", "__main__")
        for line in sorted({line for module, line, _ in imports(file, tree, root) if unit_of(module) == "compat"})
    ]


def unit_of(module):
    return module.split(".")[0]


# Files outside of compat, converters and arguments that may name another library, and why.
ABOUT_A_LIBRARY = {
    "backends/mindtorch/external_checkpoint.py": "reads checkpoints of MindNLP's Trainer, not those of transformers",
    "backends/torch/adapters.py": "reads and writes adapters of PEFT",
    "backends/torch/expert_parallel.py": "divides experts as MoE models of transformers have them",
    "backends/torch/external_checkpoint.py": "reads checkpoints of transformers' Trainer",
    "backends/torch/sequence_model.py": "messages name the AttentionInterface that a model has to call",
    "backends/paddle/adapters.py": "reads and writes adapters of PaddleNLP",
    "backends/paddle/external_checkpoint.py": "reads checkpoints of PaddleNLP's and PaddleFormers' Trainers",
    "data/transformers_order.py": 'data_order="transformers"',
    "integrations/hub/": "the model card names the library of a model",
    "trainer/map_function.py": "a message names the class of MindNLP to derive from",
}
# Values of an argument, and names that go with them, are no names of a library.
_ARGUMENT_VALUES = re.compile(r"""order\b.{0,4}["']transformers["']|\b(in_)?transformers_order\b""")
_MINDTORCH = re.compile(r"\bmindnlp(\.\w+)*", re.I)  # the distribution that this framework is installed with


def files_naming_libraries(root=ROOT):
    """Files in whose code, comments or messages another library of this kind is named.

    Not counted are compat and what is made for a library: converters, arguments. Nor is what stands on top of compat:
    the command line, recipes and the acceptance kit, which train models of these libraries, and the public names. The
    core, which must know nobody, and all that stands beside it are counted. Frameworks are no such libraries, nor is
    MindNLP in the backend of mindtorch, which is installed by that name."""
    apart = ("compat/", "converters/", "checkpoint/convert/", "arguments/")
    on_top = ("cli/", "recipes/", "accept/", "public.py", "__init__.py", "__main__.py")
    return [
        file
        for file, text in sources(root).items()
        if not file.startswith(apart + on_top)
        and LIBRARIES.search(_ARGUMENT_VALUES.sub("", _MINDTORCH.sub("", text) if "/mindtorch/" in file else text))
    ]


def core_naming_libraries(root=ROOT):
    """Those of them that are not about a library."""
    return [file for file in files_naming_libraries(root) if not file.startswith(tuple(ABOUT_A_LIBRARY))]


def asks_who_is_calling(root=ROOT):
    """Lines outside of compat that ask which library's behaviour is wanted: `mode.emulates`, `as_paddlenlp`."""
    asks = re.compile(r"\bmode\.follow|\bfollows\(|as_paddlenlp|as_transformers|\bis_mindnlp\b")
    return [
        f"{file}:{line}"
        for file, text in sources(root).items()
        if unit(file) != "compat"
        for line, code in code_lines(text).items()
        if asks.search(code)
    ]


# Modules that are a layer of their own: plain Python that everything else in their package stands on.
FOUNDATIONS = (
    *("backends.base", "backends.registry", "backends.loading", "backends.late_seeding", "backends.step_memory"),
    *("distributed.world", "distributed.collectives", "distributed.mesh", "distributed.preemption"),
)


def mutual_imports(root=ROOT):
    """Pairs of packages, or modules at the root, that import each other at run time. FOUNDATIONS are not counted to the
    packages that they are in."""

    def owner(module):
        return module if module in FOUNDATIONS else unit_of(module)

    found = {
        (owner(module_name(file)), owner(module))
        for file, tree in trees(root).items()
        for module, _, for_types in imports(file, tree, root)
        if not for_types
    }
    return sorted((a, b) for a, b in found if a < b and (b, a) in found)


def imports_inside_functions(root=ROOT):
    """Relative imports inside functions, which hide a cycle or save time at the start."""
    return sorted(
        {
            f"{file}:{node.lineno}"
            for file, tree in trees(root).items()
            for function in ast.walk(tree)
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
            for node in ast.walk(function)
            if isinstance(node, ast.ImportFrom) and node.level
        }
    )


def long_chains(root=ROOT):
    """Attribute chains of five or more names that begin with a name: run.core.trainer.args.device. A path in an
    imported module, torch.backends.cuda.matmul.allow_tf32, is none: that is how a framework names its own."""
    found = []
    for file, tree in trees(root).items():
        modules = {
            (name.asname or name.name).split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for name in node.names
        }
        inner = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or node in inner:
                continue
            names, value = 1, node
            while isinstance(value, ast.Attribute):
                names, value = names + 1, value.value
            if names >= 5 and isinstance(value, ast.Name) and value.id not in modules:
                found.append(f"{file}:{node.lineno} {ast.unparse(node)}")
    return found


def touch_points(root=ROOT):
    """Part of a run -> lines of code outside of its own modules, where a run is wired, which mention it."""
    found = {}
    for name, (own, words) in PARTS.items():
        found[name] = [
            f"{file}:{line}"
            for file, text in sources(root).items()
            if file.startswith(WIRED) and not re.match(own, file)
            for line, code in sorted(code_lines(text).items())
            if re.search(words, code)
        ]
    return found


def files_knowing_ranks(root=ROOT):
    """Files that read a `.rank` or a `.stage`: where another axis of parallelism would have to be known."""
    return [
        file
        for file, tree in trees(root).items()
        if any(isinstance(node, ast.Attribute) and node.attr in ("rank", "stage") for node in ast.walk(tree))
    ]


def trainer_parameters(root=ROOT):
    """Parameters and returns of the methods of the core's Trainer class: (those whose annotation has an Any or is
    missing, all)."""
    (node,) = [each for each in trees(root)["trainer/trainer.py"].body if getattr(each, "name", "") == "Trainer"]
    loose, count = [], 0
    for method in node.body:
        if not isinstance(method, ast.FunctionDef):
            continue
        given = method.args
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        for each in every:
            if each is None or each.arg in ("self", "cls"):
                continue
            count += 1
            if each.annotation is None or re.search(r"\bAny\b", ast.unparse(each.annotation)):
                loose.append(f"{method.name}({each.arg})")
    return loose, count


def lines(root=ROOT):
    """Package -> lines of its Python files, blank ones too."""
    found = Counter()
    for file, text in sources(root).items():
        found[unit(file) if "/" in file else "(root)"] += len(text.splitlines())
    return found


def core_lines(root=ROOT):
    return sum(len(text.splitlines()) for file, text in sources(root).items() if unit(file) not in ON_TOP)


def private_reaches(root=ROOT):
    """Lines of tests that reach into a Trainer's private object, `_oneloop`; those of this folder look for its name."""
    tests = Path(root) / "tests"
    return [
        f"{path.relative_to(tests)}:{number}"
        for path in sorted(tests.rglob("*.py"))
        if "structure" not in path.relative_to(tests).parts
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if re.search(r"\b_oneloop\b", line)
    ]


def words_of_the_page(root=ROOT):
    """Words of docs/architecture.md, separated by white space."""
    return len((Path(root) / "docs" / "architecture.md").read_text("utf-8").split())


@cache
def traced(root=ROOT):
    """What tests/structure/traced_run.py prints about a checkout: functions of an update, and of a step with a save;
    reads of run.json in a resume."""
    script = Path(__file__).with_name("traced_run.py")
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), str(root)], capture_output=True, text=True, env=environment, cwd=root, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def table(root=ROOT):
    """(row, value) of the whole table."""
    root = Path(root).resolve()
    run = traced(root)
    loose, parameters = trainer_parameters(root)
    naming = files_naming_libraries(root)
    knowing = files_knowing_ranks(root)
    apart = [file for file in knowing if not file.startswith(("distributed/", "backends/"))]
    yield "imports of compat by the core", len(compat_imports(root))
    yield "files that name another library", f"{len(naming)} of {len(sources(root))}"
    yield "  of them in backends/", sum(file.startswith("backends/") for file in naming)
    yield "  of them not about a library", len(core_naming_libraries(root))
    yield "lines that ask who is calling", len(asks_who_is_calling(root))
    yield "mutual imports of packages", len(mutual_imports(root))
    yield "relative imports inside functions", len(imports_inside_functions(root))
    yield "functions / files of one update", f"{len(run['update'])} / {files_of(run['update'])}"
    yield "the same, of a step with a save", f"{len(run['save'])} / {files_of(run['save'])}"
    yield "reads of run.json in a resume", run["reads"]
    yield "attribute chains of five names", len(long_chains(root))
    for name, places in touch_points(root).items():
        yield f"touch points: {name}", len(places)
    yield "files that know ranks or stages", len(knowing)
    yield "  outside distributed/, backends/", len(apart)
    yield "parameters of Trainer with Any", f"{len(loose)} of {parameters}"
    yield "tests that reach into _oneloop", len(private_reaches(root))
    yield "words of docs/architecture.md", words_of_the_page(root)
    yield "lines of the core", core_lines(root)
    yield "lines of the whole", sum(lines(root).values())
    yield "  blank lines", f"{blank_share(root):.0%}"
    for name, count in sorted(lines(root).items()):
        yield f"  {name}", count


def files_of(functions):
    return len({function.split(":")[0] for function in functions})


def blank_share(root=ROOT):
    every = [line for text in sources(root).values() for line in text.splitlines()]
    return sum(not line.strip() for line in every) / len(every)


def main():
    parser = argparse.ArgumentParser(description="Figures of the structure of checkouts, side by side.")
    parser.add_argument("checkouts", nargs="*", type=Path, help="paths of other checkouts; this tree comes last")
    parser.add_argument(
        "--list", metavar="ROW", help="the places behind a row: a function of this module, or update, save"
    )
    given = parser.parse_args()
    if given.list:
        root = (given.checkouts or [ROOT])[0].resolve()
        listed = traced(root)[given.list] if given.list in ("update", "save") else globals()[given.list](root)
        found = [f"{k}: {v}" for k, v in listed.items()] if isinstance(listed, dict) else listed
        print(*found, sep="\n")
        return
    columns = [dict(table(root)) for root in [*given.checkouts, ROOT]]
    names = list(dict.fromkeys(name for column in columns for name in column))
    heads = [*(path.name for path in given.checkouts), "this tree" if given.checkouts else "today"]
    for name, *values in [("", *heads), *((name, *(str(c.get(name, "–")) for c in columns)) for name in names)]:
        print(f"{name:36}" + "".join(f"{value:>14}" for value in values))


if __name__ == "__main__":
    main()
