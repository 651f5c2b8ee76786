"""Plans against measured growth of the peak memory of processes, on models of 300 MB and more (benchmarks/plan.py)."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.launch import environment

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def benchmark():
    pytest.importorskip("torch")
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location("plan", FOLDER / "plan.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def planned():
    found = {}

    def peaks(name, recompute=False, saves=False):
        key = name, recompute, saves
        if key not in found:
            code = f"import plan; plan.planned_run({name!r}, {recompute}, False, {saves})"
            paths = environment(PYTHONPATH=f"{FOLDER}:{FOLDER.parent}")
            done = subprocess.run([sys.executable, "-c", code], env=paths, capture_output=True, text=True, check=True)
            found[key] = json.loads(done.stdout.splitlines()[-1])["peaks"]
        return found[key]

    return peaks


def is_near(name, strategy, benchmark, planned, monkeypatch, **given):
    if name != "mlp":
        pytest.importorskip("transformers")
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent))
    measured = benchmark.measure(name, strategy, quick=False, **{"recompute": False} | given)
    return abs(planned(name, **given)[strategy] / measured - 1) <= 0.1


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["one process", "DDP", "stage 1", "stage 2", "stage 3"])
@pytest.mark.parametrize("name", ["mlp", "bert", "gpt"])
def test_the_peak_is_within_a_tenth_of_what_is_measured(name, strategy, benchmark, planned, monkeypatch):
    assert is_near(name, strategy, benchmark, planned, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("llama", "tensor 2"),
        ("llama", "sequence 2"),
        ("moe", "expert 2"),
        ("llama", "DDP x tensor 2"),
        ("llama", "stage 3 x tensor 2"),
        ("llama", "stage 3 x sequence 2"),
        ("moe", "DDP x expert 2"),
    ],
)
def test_the_peak_along_axes_is_within_a_tenth_on_two_and_four_processes(
    name, strategy, benchmark, planned, monkeypatch
):
    assert is_near(name, strategy, benchmark, planned, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "gpt"])
def test_the_peak_with_recompute_is_within_a_tenth(name, benchmark, planned, monkeypatch):
    assert planned(name, recompute=True)["one process"] < planned(name)["one process"]
    assert is_near(name, "one process", benchmark, planned, monkeypatch, recompute=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "bert"])
def test_the_peak_with_the_copy_of_a_save_is_within_a_tenth(name, benchmark, planned, monkeypatch):
    assert planned(name, saves=True)["one process"] > 1.5 * planned(name)["one process"]
    assert is_near(name, "one process", benchmark, planned, monkeypatch, saves=True)
