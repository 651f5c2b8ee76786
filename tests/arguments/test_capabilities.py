"""What docs/frameworks.md says is what happens."""

import functools
import importlib
import json
import shutil
import sys
from contextlib import redirect_stdout
from io import StringIO

import pytest

from oneloop import Trainer, TrainingArguments
from oneloop.arguments import capabilities
from oneloop.cli.main import main
from oneloop.errors import UnsupportedError
from tests.backends.support import kit_module, names, tagged
from tests.stacks import STACKS

ONE_PROCESS = [feature for feature in capabilities.FEATURES if feature.processes == 1]
COMPILED = [feature for feature in ONE_PROCESS if feature.title.startswith("compiled")]


@pytest.mark.parametrize("feature", ONE_PROCESS, ids=lambda feature: feature.title)
def test_every_feature_trains_or_refuses_as_the_page_says(backend, feature, tmp_path, monkeypatch):
    if backend.name == "torch":  # inductor compiles C++ for a quarter of a minute
        models = importlib.import_module("oneloop.backends.torch.models")
        compiled = models.compiled
        monkeypatch.setattr(models, "compiled", lambda model, name, mode: compiled(model, name or "aot_eager", mode))
    check_feature(backend, feature, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif("torch" not in names() or shutil.which("g++") is None, reason="inductor is torch's, and needs g++")
@pytest.mark.parametrize("feature", COMPILED, ids=lambda feature: feature.title)
def test_features_with_the_compiler_that_torch_chooses(feature, tmp_path):
    check_feature(kit_module("torch").Kit(), feature, tmp_path)


def test_torch_chooses_the_compiler_if_no_argument_does(monkeypatch):
    torch = pytest.importorskip("torch")
    from oneloop.backends.torch import models

    asked = []
    monkeypatch.setattr(torch, "compile", lambda model, **options: asked.append(options))
    for given in ((None, None), ("eager", None), (None, "max-autotune")):
        models.compiled(torch.nn.Linear(1, 1), *given)
    assert asked == [{}, {"backend": "eager"}, {"mode": "max-autotune"}]


def check_feature(backend, feature, tmp_path):
    args = TrainingArguments(
        output_dir=str(tmp_path), report_to="none", max_steps=2, save_strategy="no", per_device_train_batch_size=4,
        disable_tqdm=True, device="cpu", **feature.arguments,
    )  # fmt: skip
    why = capabilities.first_reason(feature, backend.name, "cpu", args)
    model, data = STACKS[backend.name](), tagged([5, 3, 4, 5, 2, 5, 4, 3])
    if why is not None:
        with pytest.raises(UnsupportedError) as caught:
            Trainer(model, args, train_dataset=data, eval_dataset=data[:4])
        assert why in str(caught.value) and "Instead: " in str(caught.value)
        return
    with backend.undone_determinism():
        before = backend.weights(model)
        trainer = Trainer(model, args, train_dataset=data, eval_dataset=data[:4])
        assert trainer.train().global_step == 2
        after = backend.weights(trainer.model)
        assert any(before[name].tobytes() != after[name].tobytes() for name in before)
        assert trainer.evaluate()["eval_loss"] > 0


def test_the_page_is_up_to_date():
    assert capabilities.main(["--check"]) == 0


def test_the_doctor_names_versions_devices_and_what_is_missing(capsys, monkeypatch):
    from oneloop.cli import doctor

    alone = functools.cache(doctor.ask)  # a new process takes seconds to answer: for one framework, and once

    def ask(name):
        if name == names()[0]:
            return alone(name)
        with redirect_stdout(StringIO()) as said:
            doctor.answer(name)
        return json.loads(said.getvalue())

    monkeypatch.setattr(doctor, "ask", ask)
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["python"] == sys.version.split()[0]
    for name in names():
        facts = found["frameworks"][name]
        assert facts["version"] and facts["devices"]["cpu"] == 1
    assert "bf16" in found["frameworks"]["paddle"]["cannot"]
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "PyTorch" in text and "devices: cpu (1)" in text and "not supported on cpu: bf16" in text


def test_the_doctor_reports_a_framework_that_breaks(monkeypatch, capsys):
    from oneloop.cli import doctor

    monkeypatch.setattr(doctor, "ask", lambda name: {"error": "ImportError: no such symbol"})
    assert doctor.run() == 1
    assert "not usable: ImportError: no such symbol" in capsys.readouterr().out
    monkeypatch.setattr(doctor, "installed", lambda name: None)
    assert doctor.run() == 1
    assert "not installed (pip install 'oneloop[paddle]')" in capsys.readouterr().out
