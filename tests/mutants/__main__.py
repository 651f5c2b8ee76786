"""Plants seeded faults in the package, one at a time, and runs the tests that call the function with the fault.

    bash scripts/mutants map [TESTS ...]             which test calls which function; made once
    bash scripts/mutants run PACKAGE ... [--count N] [--seed S]

The map is kept in the cache of the user (--store). Faults: faults.py. A fault that no test notices is printed with its
place: some are equivalent to the code, the others show what no test looks at. Tests run in a fork of a process that
has imported the frameworks (--warm), the shortest tests first, until one fails or --budget seconds of them have run.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from tests.mutants import recording, warm
from tests.mutants.faults import Fault, faults
from tests.mutants.tree import Tree

ROOT = Path(__file__).resolve().parents[2]
STORE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "oneloop" / "mutants.json"


class Map:
    """{file of tests: {"shared": functions, "tests": {name: [seconds, functions]}}}"""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.files = json.loads(store.read_text()) if store.exists() else {}

    def save(self) -> None:
        self.store.parent.mkdir(parents=True, exist_ok=True)
        part = self.store.with_suffix(".part")
        part.write_text(json.dumps(self.files))
        part.replace(self.store)

    def tests_of(self, fault: Fault, budget: float) -> list[str]:
        """Those that call its function, the shortest first; one in any case."""
        name, found = f"{fault.file}:{fault.function}", []
        for each in self.files.values():
            shared = name in each["shared"]
            found += [(seconds, test) for test, (seconds, names) in each["tests"].items() if shared or name in names]
        chosen, total = [], 0.0
        for seconds, test in sorted(found):
            if chosen and total + seconds > budget:
                break
            chosen.append(test)
            total += seconds
        return chosen


def record(tree: Tree, tests: list[str], store: Map, seconds: float) -> None:
    """Add files of tests to the map. Each is run in a fork of its own."""
    package = str(tree.place / "oneloop")
    tree.write("sitecustomize.py", (Path(recording.__file__)).read_text())
    for number, file in enumerate(files_of(tests), 1):
        with tempfile.TemporaryDirectory() as scratch:
            result, others, log = (Path(scratch) / name for name in ("result", "others", "log"))
            names = {recording.PACKAGE: package, recording.OTHERS: str(others), recording.RESULT: str(result)}
            status = warm.in_fork(
                lambda names=names, file=file: warm.pytest_in(
                    tree.place, [file, "--maxfail=100"], lambda: [recording.Plugin()], **names
                ),
                seconds,
                log,
            )
            if result.exists():
                store.files[file] = json.loads(result.read_text())
                store.save()
            count = len(store.files.get(file, {"tests": ()})["tests"])
            print(f"{number}: {file}: {count} tests" + ("" if status in (0, 1) else f", status {status}"), flush=True)


def files_of(tests: list[str]) -> list[str]:
    found = []
    for each in tests or ["tests"]:
        path = ROOT / each
        found += [path] if path.is_file() else sorted(path.rglob("test_*.py"))
    return [path.relative_to(ROOT).as_posix() for path in found]


def draw(package: str, count: int, seed: int) -> list[Fault]:
    """So many faults of a package: a kind is drawn first, so that rare kinds come too."""
    path, by_kind = ROOT / package, defaultdict(list)
    for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
        for fault in faults(file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")):
            by_kind[fault.kind].append(fault)
    source, found = random.Random(f"{package} {seed}"), []
    while by_kind and len(found) < count:
        kind = source.choice(sorted(by_kind))
        found.append(by_kind[kind].pop(source.randrange(len(by_kind[kind]))))
        if not by_kind[kind]:
            del by_kind[kind]
    return found


def outcome(tree: Tree, fault: Fault, tests: list[str], seconds: float) -> str:
    """caught, survived, or uncovered: no test calls the function."""
    if not tests:
        return "uncovered"
    planted = fault.planted((ROOT / fault.file).read_text(encoding="utf-8"))
    try:
        compile(planted, fault.file, "exec")
    except SyntaxError:
        return "invalid"
    tree.write(fault.file, planted)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            status = warm.in_fork(lambda: warm.pytest_in(tree.place, tests), seconds, Path(scratch) / "log")
    finally:
        tree.restore(fault.file)
    return "survived" if status == 0 else "caught"  # it hangs, or the tests cannot even be collected


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("action", choices=("map", "run"))
    parser.add_argument("paths", nargs="*", help="map: files or folders of tests; run: packages or files of oneloop")
    parser.add_argument("--count", type=int, default=20, help="faults for each package")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=30.0, help="seconds of tests for each fault")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds after which tests are taken to hang")
    parser.add_argument("--warm", default="torch", help="frameworks that are imported once")
    parser.add_argument("--store", type=Path, default=STORE, help="the map")
    given = parser.parse_args()
    store, scratch = Map(given.store), tempfile.mkdtemp(prefix="mutants", dir=_memory())
    os.environ["MUTANTS_ROOT"] = str(ROOT)
    try:
        tree = Tree(ROOT, Path(scratch) / "tree")
        warm.import_frameworks([name for name in given.warm.split(",") if name])
        if given.action == "map":
            record(tree, given.paths, store, 10 * given.limit)
            return 0
        return run(tree, store, given)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def run(tree: Tree, store: Map, given: argparse.Namespace) -> int:
    table: dict[str, Counter] = {}
    for package in given.paths or packages():
        table[package] = Counter()
        for fault in draw(package, given.count, given.seed):
            tests = store.tests_of(fault, given.budget)
            found = outcome(tree, fault, tests, given.limit)
            table[package][found] += 1
            print(f"{found:9} {fault} ({len(tests)} tests)", flush=True)
    print(f"\n{'package':28} caught survived uncovered  share")
    for package, counts in table.items():
        total = counts["caught"] + counts["survived"] + counts["uncovered"]
        share = f"{counts['caught'] / total:6.0%}" if total else "     -"
        print(f"{package:28} {counts['caught']:6} {counts['survived']:8} {counts['uncovered']:9} {share}")
    return 0


def packages() -> list[str]:
    return [f"oneloop/{each.name}" for each in sorted((ROOT / "oneloop").iterdir()) if (each / "__init__.py").exists()]


def _memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


if __name__ == "__main__":
    sys.exit(main())
