"""The scripts in examples/: each is run as a user would, with few steps here and as it stands with -m slow."""

import re
import runpy
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
QUICK = ["--max_steps", "4", "--logging_steps", "2", "--report_to", "none"]
BY_STEPS = ["--eval_strategy", "steps", "--eval_steps", "2"]
# What a short run needs to be short, and the packages without which there is none.
SHORT = {
    "image_classification": ([*QUICK, *BY_STEPS], "torch sklearn"),
    "language_model_stream": ([*QUICK, "--save_steps", "2"], "torch transformers"),
    "lora": (QUICK, "torch transformers peft"),
    "sharded_resume": (QUICK, "torch"),
    "text_classification": ([*QUICK, *BY_STEPS], "torch transformers"),
    "three_frameworks": (["--steps", "2"], "torch paddle mindspore"),
    "token_classification": ([*QUICK, *BY_STEPS], "torch transformers"),
    "translation": ([*QUICK, "--eval_steps", "4"], "torch transformers"),
}
# What a whole run prints, and the least or greatest value of the number in it.
WHOLE = {
    "image_classification": (r"accuracy on 397 test images: ([\d.]+)%", 96, 100),
    "language_model_stream": (r"'train_loss': '([\d.]+)'", 0, 3.2),
    "lora": (r"loss of the merged model on the first question: ([\d.]+)", 0, 1.5),
    "text_classification": (r"accuracy on 200 test sentences: ([\d.]+)%", 97, 100),
    "three_frameworks": (r"mindspore: step 120, evaluation loss ([\d.]+)", 0, 0.3),
    "token_classification": (r"accuracy on the tokens of 100 test sentences: ([\d.]+)%", 98, 100),
    "translation": (r"translated exactly: ([\d.]+)%", 80, 100),
}


def test_every_script_is_here_and_short():
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted(SHORT)
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 80, path.name


def test_every_script_is_listed():
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert [name for name in SHORT if f"({name}.py)" not in page] == []


@pytest.fixture(scope="module", autouse=True)
def mindspore_first():
    if find_spec("mindspore"):  # it cannot be imported after Paddle
        import_module("mindspore")


@pytest.mark.parametrize("name", SHORT)
def test_a_few_steps(name, tmp_path, monkeypatch, capsys):
    words, packages = SHORT[name]
    for package in packages.split():
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *words])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert list(tmp_path.glob("outputs/**/log.jsonl"))
    printed = capsys.readouterr().out
    if name in WHOLE and name != "language_model_stream":
        assert re.search(WHOLE[name][0].replace("120", "6"), printed), printed[-500:]


def run(*words, cwd, module=()):
    command = [sys.executable, *module, *map(str, words)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_as_it_stands(name, tmp_path):
    printed = run(EXAMPLES / f"{name}.py", cwd=tmp_path)
    pattern, least, most = WHOLE[name]
    (value,) = re.findall(pattern, printed)
    assert least <= float(value) <= most


@pytest.mark.slow
def test_two_processes_resumed_on_one(tmp_path):
    """The losses of a run on two processes that goes on with one are those of one process, up to rounding."""
    script, launcher = EXAMPLES / "sharded_resume.py", ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    losses = {}
    for part, words, module in (
        ("first", ["--max_steps", "30"], launcher),
        ("second", ["--resume_from_checkpoint", "true"], ()),
        ("whole", ["--output_dir", "outputs/whole", "--gradient_accumulation_steps", "2"], ()),
    ):
        printed = run(script, *words, cwd=tmp_path, module=module)
        losses[part] = re.search(r"step (\d+) on (\d) process\(es\): evaluation loss ([\d.]+)", printed).groups()
    assert losses["first"][:2] == ("30", "2")
    assert losses["second"][:2] == losses["whole"][:2] == ("60", "1")
    assert float(losses["second"][2]) == pytest.approx(float(losses["whole"][2]), abs=2e-5)


@pytest.mark.slow
def test_a_stream_goes_on_where_it_was(tmp_path):
    script, options = EXAMPLES / "language_model_stream.py", ["--lr_scheduler_type", "constant", "--save_steps", "5"]
    run(script, *options, "--max_steps", "10", "--output_dir", "whole", cwd=tmp_path)
    run(script, *options, "--max_steps", "5", "--output_dir", "parts", cwd=tmp_path)
    run(
        script, *options, "--max_steps", "10", "--output_dir", "parts", "--resume_from_checkpoint", "true", cwd=tmp_path
    )
    weights = [(tmp_path / part / "checkpoint-10" / "model.safetensors").read_bytes() for part in ("whole", "parts")]
    assert weights[0] == weights[1]
