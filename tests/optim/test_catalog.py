"""The table of optimizers: complete, and the only one."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import oneloop
from oneloop.errors import ArgumentError, MissingPackageError
from oneloop.optim.catalog import ADAMW_NAMES, OPTIMIZERS, OptimizerNames, families_with_targets

PACKAGE = Path(oneloop.__file__).parent


def test_every_name_has_a_row():
    assert set(OPTIMIZERS) == {member.value for member in OptimizerNames}
    assert all(row.source or row.builder for row in OPTIMIZERS.values())
    assert all(row.instead in OPTIMIZERS and not OPTIMIZERS[row.instead].unsupported for row in OPTIMIZERS.values())


def test_what_follows_from_the_rows():
    assert ADAMW_NAMES == ("adamw", "adamw_torch", "adamw_hf", "adamw_torch_fused")
    assert families_with_targets() == "GaLore, APOLLO and Muon"
    assert OPTIMIZERS["adamw_torch_8bit"].module == "torchao" and OPTIMIZERS["sgd"].module == ""


def test_an_optimizer_is_named_in_the_table_alone():
    """One more of them costs its row, and a module in backends/torch if it is built in a way of its own."""
    others = {  # Adafactor has an argument of its own, a class in transformers, and no equal on MindSpore
        "adafactor": {
            "arguments/aliases.py",
            "arguments/capabilities.py",
            "backends/mindspore/unsupported.py",
            "compat/mode.py",
        },
        "galore_adamw": {"backends/torch/projectors.py"},  # an option that its sisters do not take
    }
    texts = {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in PACKAGE.rglob("*.py")}
    for name, row in OPTIMIZERS.items():
        if row.everywhere:
            continue
        quoted = re.compile(f"[\"']{name}[\"']")
        found = {file for file, text in texts.items() if quoted.search(text)}
        own = f"backends/torch/{row.builder}.py"
        allowed = {"optim/catalog.py", own, *others.get(name, ())}
        assert found <= allowed, name


@pytest.mark.parametrize("name", ["adamw_torch_xla", "galore_adamw_layerwise", "apollo_adamw_layerwise"])
def test_one_without_a_class_is_not_built(name):
    pytest.importorskip("torch")
    from oneloop.backends.torch import optimizers

    targets = "all-linear" if OPTIMIZERS[name].targets else None
    args = oneloop.TrainingArguments(optim=name, optim_target_modules=targets, report_to="none")
    with pytest.raises(ArgumentError, match=f"optim='{name}' is not supported on torch"):
        optimizers.class_and_options(args)


def test_a_missing_package_is_named():
    pytest.importorskip("torch")
    if find_spec("lomo_optim"):
        pytest.skip("it is installed")
    from oneloop.backends.torch import optimizers

    with pytest.raises(MissingPackageError, match="optim='lomo' needs the package lomo-optim: pip install lomo-optim"):
        optimizers.class_and_options(oneloop.TrainingArguments(optim="lomo", report_to="none"))


def test_what_cannot_be_sharded_is_refused_by_row():
    pytest.importorskip("torch")
    from oneloop.backends.torch.unsupported import UNSUPPORTED

    shown = [
        unsupported.value_text
        for unsupported in UNSUPPORTED
        if unsupported.argument == "optim" and " with " in unsupported.value_text
    ]
    assert shown == [
        "galore_adamw, galore_adafactor, apollo_adamw, with tensor_parallel_size",
        "muon, with deepspeed",
        "galore_adamw, galore_adafactor, apollo_adamw, with sharding or deepspeed",
    ]


@pytest.mark.parametrize(("name", "copies"), [("adamw", 2), ("adagrad", 1), ("sgd", 0), ("rmsprop", None)])
def test_the_plan_knows_the_size_of_the_state(name, copies):
    from oneloop.plan import optimizer_state

    assert optimizer_state.copies(oneloop.TrainingArguments(optim=name, report_to="none")) == copies


def test_the_state_of_a_librarys_optimizer_is_checked(monkeypatch):
    torch = pytest.importorskip("torch")
    from oneloop import libraries
    from oneloop.backends.torch import optimizer_fields
    from oneloop.errors import CheckpointError

    class Other(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

    name = f"{Other.__module__}.{Other.__qualname__}"
    monkeypatch.setitem(libraries.OPTIMIZER_STATES, name, lambda shape, group: {"step": None, "mean": shape[:1]})
    p = torch.nn.Parameter(torch.zeros(2, 3))
    check = optimizer_fields.check_states
    check(Other([p]), Other, {"p": {"step": 1, "mean": torch.zeros(2)}}, {"p": p}, "here")
    with pytest.raises(CheckpointError, match="mean"):
        check(Other([p]), Other, {"p": {"step": 1, "mean": torch.zeros(3)}}, {"p": p}, "here")


def test_prompt_encoders_are_put_back_into_training_mode(monkeypatch):
    torch = pytest.importorskip("torch")
    from oneloop.backends.torch import adapters
    from oneloop.errors import MissingPackageError as Missing

    model = torch.nn.Module()
    model.prompt_encoder = torch.nn.ModuleDict({"default": torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Dropout())})
    frozen = model.prompt_encoder["default"][1].eval()
    with adapters.encoders_in_eval_mode(model):
        assert not any(module.training for module in model.prompt_encoder["default"].modules())
    assert model.prompt_encoder["default"][0].training and not frozen.training
    monkeypatch.setattr(adapters, "find_spec", lambda name: None)
    with pytest.raises(Missing, match="needs peft"):
        adapters.check_installed("here")
