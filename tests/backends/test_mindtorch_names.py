"""The backend for mindnlp runs in an environment of its own (tests/mindnlp); what can be read off its files is here."""

import ast
import sys
from pathlib import Path
from types import ModuleType

import pytest

from oneloop import TrainingArguments, backends
from oneloop.arguments import support
from oneloop.backends import loading, registry
from oneloop.errors import UnsupportedError

FOLDER = Path(backends.__file__).parent
OWN = (
    "devices",
    "engine",
    "external_checkpoint",
    "loaders",
    "models",
    "optimizers",
    "randomness",
    "tensors",
    "weights",
)
NOT_ASKED = {
    "devices": {"recorded_event"},
    "external_checkpoint": {"read", "Loaded", "SAFE_SINCE", "External", "from_raw"},
    "loaders": {"Loader", "Stream"},
    "optimizers": {"class_of", "fused_works", "step_optimizer"},
    "weights": {"checked_states", "plain_options"},
}


def public(path):
    """Names that a module defines, lists in __all__, or hands on (import x as x)."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            found |= {each.name for each in node.names if each.asname == each.name}
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            found |= set(ast.literal_eval(node.value)) if name == "__all__" else {name}
    return {name for name in found if not name.startswith("_")} - {"logger"}


@pytest.mark.parametrize("name", OWN)
def test_it_has_the_names_of_the_torch_backend(name):
    missing = public(FOLDER / "torch" / f"{name}.py") - public(FOLDER / "mindtorch" / f"{name}.py")
    assert missing == NOT_ASKED.get(name, set()) & missing


def test_its_engine_has_the_methods_of_the_torch_engine():
    def methods(path, name):
        (engine,) = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.ClassDef) and n.name == name]
        own = {node.name for node in engine.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"}
        return own.union(*(methods(FOLDER / "_common/engines.py", base.id) for base in engine.bases))

    missing = methods(FOLDER / "torch" / "engine.py", "Engine") - methods(FOLDER / "mindtorch" / "engine.py", "Engine")
    assert missing == set()


def test_a_module_of_mindtorch_is_recognised_without_importing_it():
    module = type("Module", (), {"__module__": "mindtorch.nn.modules.module"})
    assert loading.name_of(type("Bert", (module,), {})()) == "mindtorch"
    assert "mindtorch" not in sys.modules


def test_under_mindnlp_torch_and_mindspore_mean_mindtorch(monkeypatch):
    assert registry.active() is None
    monkeypatch.setitem(sys.modules, "mindtorch", ModuleType("mindtorch"))
    assert loading.guess() == "mindtorch"
    found = [registry.replacing(name).name for name in ("torch", "mindspore", "paddle")]
    assert found == ["mindtorch", "mindtorch", "paddle"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"bf16": True}, "bf16=True cannot be used on mindtorch"),
        ({"jit_mode_eval": True}, "jit_mode_eval=True cannot be used on mindtorch"),
        ({"dataloader_num_workers": 1}, "dataloader_num_workers=1 cannot be used on mindtorch"),
        ({"optim": "rmsprop"}, "optim='rmsprop' cannot be used on mindtorch"),
        ({"save_safetensors": False}, "save_safetensors=False cannot be used on mindtorch"),
    ],
)
def test_refusals(given, words, tmp_path):
    arguments = TrainingArguments(output_dir=str(tmp_path), **given)
    with pytest.raises(UnsupportedError) as unsupported:
        arguments.check_backend("mindtorch", "cpu")
    assert words in str(unsupported.value)


def test_arguments_that_work(tmp_path):
    given = {"fp16": True, "gradient_checkpointing": True, "optim": "sgd", "report_to": "none"}
    arguments = TrainingArguments(output_dir=str(tmp_path), **given)
    refusals = support.unsupported_by("mindtorch")
    assert refusals and not [each.argument for each in refusals if each.applies(arguments, "mindtorch", "cpu")]


def test_a_model_of_mindnlp_0_4_is_refused_in_words():
    module = type("Module", (), {"__module__": "mindnlp.core.nn.modules.module"})
    with pytest.raises(UnsupportedError, match=r"Bert is a model of MindNLP 0\.4.*Use MindNLP 0\.5"):
        loading.of_model(type("Bert", (module,), {})())
