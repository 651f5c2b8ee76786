"""`oneloop check` on scripts for libraries that are built on transformers' Trainer, and on those that rewrite it."""

import importlib.metadata
import subprocess
import sys

import pytest

from oneloop.compat.check import libraries
from oneloop.compat.check.script import check

SCRIPT = """\
import inspect
import unsloth
from transformers import Trainer
from peft import LoraConfig
from trl import ScriptArguments, SFTConfig, SFTTrainer, TrlParser
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from setfit import Trainer as SetFitTrainer, TrainingArguments as SetFitArguments

class Mine(SFTTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        self._metrics["train"]["share"].append(1)
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
    def _prepare_dataset(self, *args, **kwargs):
        return super()._prepare_dataset(*args, **kwargs)
    def _not_of_trl(self):
        pass

source = inspect.getsource(Trainer.training_step)
parser = TrlParser((ScriptArguments, SFTConfig))
args = SFTConfig(output_dir="o", packing=True, packin=True, tf32=True)
pairs = SentenceTransformerTrainingArguments(output_dir="o", batch_sampler="no_duplicates", eval_strategy="no")
trainer = SFTTrainer(model="m", args=args, train_dataset=None, peft_config=LoraConfig())
mine = Mine(model="m", args=args, peft_config=None, peft_konfig=None)
print(args.packing, args.nothing, trainer._metrics, trainer.nothing)
few = SetFitTrainer(model=None, args=SetFitArguments(num_iterations=3), anything=1)
"""
EXPECTED = {
    (2, "unsloth"): ("refused", "rewrites the source text"),
    (4, "peft"): ("works", "adapters"),
    (5, "trl"): ("works", "derive from oneloop's Trainer"),
    (6, "sentence_transformers"): ("works", "derive from oneloop's Trainer"),
    (7, "setfit"): ("works", "through the Trainer of sentence-transformers"),
    (10, "compute_loss"): ("works", ""),
    (15, "_not_of_trl"): ("changes", "never called"),
    (18, "inspect.getsource"): ("refused", "Override the method"),
    (20, "output_dir"): ("works", ""),
    (20, "packing"): ("works", "a field of SFTConfig"),
    (20, "packin"): ("refused", "did you mean 'packing'?"),
    (20, "tf32"): ("depends", "on cpu"),
    (21, "batch_sampler"): ("works", "a field of SentenceTransformerTrainingArguments"),
    (22, "SFTTrainer"): ("works", "tested with trl"),
    (23, "peft_config"): ("works", ""),
    (23, "peft_konfig"): ("refused", "no such argument"),
    (24, "args.nothing"): ("refused", "no such attribute"),
    (24, "trainer.nothing"): ("refused", "no such attribute"),
    (25, "Trainer"): ("works", "tested with setfit"),
}
SILENT = {(12, "super().compute_loss"), (13, "_prepare_dataset"), (24, "args.packing"), (24, "trainer._metrics")}


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def test_every_line_of_a_script(script):
    found, *_ = check(str(script))
    seen = {(each.line, each.name): (each.answer, each.text) for each in found}
    for place, (answer, words) in EXPECTED.items():
        assert seen[place][0] == answer and words in seen[place][1], (place, seen[place])
    assert not SILENT & seen.keys()
    refused = {place for place, (answer, _) in seen.items() if answer == "refused"}
    assert refused == {place for place, (answer, _) in EXPECTED.items() if answer == "refused"}
    assert not any("create no Trainer" in text for _, text in seen.values())


def test_options_of_a_librarys_arguments_on_the_command_line(script):
    found, *_ = check(str(script), ["--packing", "true", "--seed", "3", "--no_dataset_streaming", "--bogus", "3"])
    said = {each.name: (each.answer, each.text) for each in found if each.file == "command line"}
    assert said["packing"] == ("works", "a field of SFTConfig")
    assert said["no_dataset_streaming"] == ("works", "a field of ScriptArguments")
    assert said["seed"] == ("works", "") and said["bogus"][0] == "unseen"


def test_another_version_than_the_tested_one_is_not_called_working(script, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "1.160.0")
    answers = {root: libraries.answer(root) for root in libraries.BUILT_ON}
    assert all(answer[0] == "unseen" and "1.160.0 is not tested" in answer[1] for answer in answers.values())


def test_a_library_that_is_not_installed(script, monkeypatch):
    def missing(package):
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert libraries.answer("trl")[0] == "unseen" and "not installed" in libraries.answer("trl")[1]
    assert libraries.answer("numpy") is None


def test_tested_versions_are_the_ones_installed_here():
    for library in libraries.BUILT_ON.values():
        assert importlib.metadata.version(library.package).startswith(f"{library.tested}."), library


def test_the_classes_are_read_and_not_imported(script):
    code = (
        "import sys; from oneloop.compat.check.script import check; check(sys.argv[1]);"
        "print(sorted({'trl', 'sentence_transformers', 'setfit', 'peft', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("package", ["unsloth", "axolotl"])
def test_importing_a_package_that_rewrites_the_trainer_is_refused(package, tmp_path):
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("print('imported')\n")
    script = tmp_path / "script.py"
    asks = f"import importlib.util\nprint(importlib.util.find_spec({package!r}) is not None)\n"
    script.write_text(asks + f"import {package}\n")
    done = subprocess.run(
        [sys.executable, "-m", "oneloop", "run", str(script)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode != 0 and done.stdout.split() == ["True"]
    assert f"{package} is not supported under oneloop: it rewrites the source text" in done.stderr
