"""The recipes of docs/architecture.md, carried out on a copy of the package: python -m tests.structure.recipes

An argument, an optimizer, a callback event and a writer are added to the copy one after the other. The files that each
changes are counted, those that are generated apart; then one run uses all four. A part of a run, an axis of parallelism
and a backend need no line in the package: their recipes are toys in tests/, whose files are counted.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
GENERATORS = ("arguments.typing_stub", "arguments.page", "integrations.writers.typing_stub")
TOYS = {  # recipe -> the test that carries it out, and the files of the toy
    "part": ("tests/distributed/test_own_part.py", "tests/distributed/test_own_part.py"),
    "axis": ("tests/distributed/test_toy_axis.py", "tests/distributed/toy_axis.py"),
    "backend": ("tests/backends/test_toy_backend.py", "tests/backends/toy/*.py"),
}


class Tree:
    """A copy of the package, and of the page that is generated from it."""

    def __init__(self, folder):
        self.folder = Path(folder)
        shutil.copytree(ROOT / "oneloop", self.folder / "oneloop", ignore=shutil.ignore_patterns("__pycache__"))
        (self.folder / "docs").mkdir()
        shutil.copy(ROOT / "docs" / "arguments.md", self.folder / "docs")

    def contents(self):
        paths = [path for path in self.folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        return {path.relative_to(self.folder).as_posix(): path.read_bytes() for path in paths}

    def after(self, anchor, added, file="**/*.py"):
        """Add text after the only place that matches, in the only file that has it."""
        found = [path for path in (self.folder / "oneloop").glob(file) if re.search(anchor, path.read_text("utf-8"))]
        assert len(found) == 1, f"{anchor!r} is in {[path.name for path in found]}"
        text, count = re.subn(anchor, lambda match: match[0] + added, found[0].read_text("utf-8"))
        assert count == 1, f"{anchor!r} is {count} times in {found[0].name}"
        found[0].write_text(text, "utf-8")

    def write(self, file, text):
        path = self.folder / "oneloop" / file
        assert not path.exists()
        path.write_text(text, "utf-8")

    def python(self, *words):
        """Run Python on the copy; what it printed."""
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *words], cwd=self.folder, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def generate(self):
        imports = "; ".join(f"import oneloop.{module}" for module in GENERATORS)
        self.python("-c", f"{imports}; " + "; ".join(f"oneloop.{module}.main([])" for module in GENERATORS))


def argument(tree):
    """loss_offset is added to every logged loss."""
    tree.after(
        r'    logging_strategy: str = arg\("steps", [^\n]*\n',
        '    loss_offset: float = arg(0.0, "Is added to every logged loss.", low=0)\n',
        "arguments/*.py",
    )
    tree.after(
        r'(?s)\n    def log\(.*?""".*?"""\n',
        '        if "loss" in logs:\n            logs["loss"] += self.args.loss_offset\n',
        "trainer/trainer.py",
    )


def optimizer(tree):
    tree.after(r'\n    MUON = "muon"\n', '    ADAMAX = "adamax"\n', "optim/catalog.py")
    tree.after(r'\n    Optimizer\("muon", [^\n]*\n', '    Optimizer("adamax", "torch.optim:Adamax", betas=True),\n')


def event(tree):
    """on_data_ready, before each update, with a number."""
    tree.after(r'\n    "on_push_begin",\n', '    "on_data_ready",\n', "callbacks/base.py")
    tree.after(
        r'(?s)\n    def on_push_begin\(.*?""".*?"""\n',
        "\n    def on_data_ready(self, args, state, control, **kwargs: Any) -> TrainerControl | None:\n"
        '        """The micro-batches of an update are there: a `number`."""\n',
        "callbacks/base.py",
    )
    tree.after(r"\n        on_push_begin = _called\n", "        on_data_ready = _called\n", "callbacks/base.py")
    tree.after(
        r'\n            run\.call\("on_step_begin"\)\n', '            run.call("on_data_ready", number=1)\n', "loop.py"
    )


def writer(tree):
    tree.write(
        "integrations/writers/jsonfile.py",
        '''"""A file of JSON lines, named by JSONFILE."""

import os
from typing import Any

from ...arguments import TrainingArguments
from ...state import TrainerState
from .base import Writer


class JSONFileCallback(Writer):
    """JSONFILE (path): the file that is appended to."""

    name = "jsonfile"

    def open(self, args: TrainingArguments, state: TrainerState) -> None:
        self.run = {"path": os.environ["JSONFILE"]}

    def write(self, values: dict[str, Any], step: int) -> None:
        with open(self.run["path"], "a", encoding="utf-8") as file:
            print(self.package().dumps([step, values]), file=file)

    def close(self) -> None:
        pass
''',
    )
    tree.after(
        r'\n    "mlflow": [^\n]*\n',
        '    "jsonfile": WriterSpec("JSONFileCallback", "json", "python", account=False),\n',
    )


RECIPES = {"argument": argument, "optimizer": optimizer, "callback event": event, "writer": writer}
USE = """
import json, os, sys
import torch
import oneloop

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x, labels):
        return {"loss": torch.nn.functional.cross_entropy(self.layer(x), labels)}

class Listener(oneloop.TrainerCallback):
    def __init__(self):
        self.heard = []

    def on_data_ready(self, args, state, control, number=None, **kwargs):
        self.heard.append((state.global_step, number))

rows = [{"x": [float(i % 7)] * 4, "labels": i % 3} for i in range(32)]

def train(name, resume=None, **given):
    words = ["--output_dir", name, "--max_steps", "4", "--logging_steps", "1", "--save_steps", "2"]
    words += ["--optim", "adamax", "--device", "cpu", "--report_to", given.pop("report_to", "none")]
    words += ["--disable_tqdm", "true"]
    words += [word for key, value in given.items() for word in (f"--{key}", str(value))]
    args, = oneloop.HfArgumentParser(oneloop.TrainingArguments).parse_args_into_dataclasses(words)
    trainer = oneloop.Trainer(Model(), args, train_dataset=rows, callbacks=[listener := Listener()])
    trainer.train(resume_from_checkpoint=resume)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses, [p.tolist() for p in trainer.model.parameters()], listener.heard, type(trainer.optimizer).__name__

os.environ["JSONFILE"] = "lines"
plain, raised = train("plain"), train("raised", loss_offset=100, report_to="jsonfile")
resumed = train("resumed", resume="plain/checkpoint-2")
try:
    oneloop.TrainingArguments("other", loss_offset=-1)
    refused = ""
except ValueError as error:
    refused = str(error)
lines = [json.loads(line) for line in open("lines")]
print(json.dumps({"plain": plain, "raised": raised, "resumed": resumed, "refused": refused, "lines": lines}))
"""


def carried_out():
    """What each recipe changed, as recipe -> (files written by hand, files generated), and what a run of all shows."""
    changed = {}
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(folder)
        for name, recipe in RECIPES.items():
            before = tree.contents()
            recipe(tree)
            by_hand = {file for file, text in tree.contents().items() if before.get(file) != text}
            tree.generate()
            every = {file for file, text in tree.contents().items() if before.get(file) != text}
            changed[name] = sorted(by_hand), sorted(every - by_hand)
        return changed, json.loads(tree.python("-c", USE).splitlines()[-1])


def toys():
    """Recipe -> the files of its toy, for those that are there."""
    return {
        name: sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(files))
        for name, (test, files) in TOYS.items()
        if (ROOT / test).is_file()
    }


def main():
    changed, _ = carried_out()
    for name, (by_hand, generated) in changed.items():
        print(f"{name:16}{len(by_hand)} files: {', '.join(by_hand)}; generated: {', '.join(generated) or 'none'}")
    for name, files in toys().items():
        print(f"{name:16}{len(files)} files outside of the package, none in it: {', '.join(files)}")


if __name__ == "__main__":
    main()
