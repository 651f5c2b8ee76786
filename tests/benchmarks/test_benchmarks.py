"""The benchmarks run. What they measure is not tested: a busy machine would make it fail."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def table_of(script: str, *arguments: str) -> dict[str, list[str]]:
    """The first cell of each row of a benchmark's tables, and its other cells."""
    command = [sys.executable, str(FOLDER / script), "--quick", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in cells[2:]}


def test_step_times_both_loops():
    table = table_of("step.py", "--model", "mlp", "--variants", "oneloop")
    assert set(table) == {"hand-written", "oneloop"}
    assert all(int(row[0]) > 0 and row[1].endswith("x") for row in table.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "script", ["data.py", "evaluation.py", "imports.py", "memory.py", "scaling.py", "layouts.py", "token_budget.py"]
)
def test_the_others_print_a_row_for_oneloop(script):
    assert any("oneloop" in name for name in table_of(script))


@pytest.mark.slow
def test_steps_of_two_source_trees():
    table = table_of("step_trees.py", f"same={FOLDER.parent}", "--model", "norms", "--nonfinite", "skip")
    assert set(table) == {"same", "now"}
    assert all(int(row[0]) > 0 and row[1].endswith("x") for row in table.values())


@pytest.mark.slow
def test_steps_that_are_recorded_or_verified():
    pytest.importorskip("transformers")
    (row,) = table_of("tracing.py").values()
    assert all(float(seconds) > 0 for seconds in row[0:5:2][:1] + row[1:4:2]) and row[2].endswith("x")


@pytest.mark.slow
def test_a_long_run_leaves_no_files_or_threads_behind():
    first, last = table_of("soak.py").values()
    assert int(last[1]) <= int(first[1]) + 1 and int(last[2]) <= int(first[2]) + 1  # those of a save under way


@pytest.mark.slow
@pytest.mark.parametrize(("script", "framework"), [("step_paddle.py", "paddle"), ("step_mindspore.py", "mindspore")])
def test_steps_of_the_other_frameworks(script, framework):
    pytest.importorskip(framework)
    table = table_of(script, "--model", "mlp", "--variants", "oneloop")
    assert set(table) == {"hand-written", "oneloop"}
    assert all(int(row[0]) > 0 and row[1].endswith("x") for row in table.values())
