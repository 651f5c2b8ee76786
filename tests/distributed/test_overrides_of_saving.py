"""Overrides of the methods that save and load parts of a checkpoint, on two processes that both write files."""

from pathlib import Path

import pytest

from tests.backends.support import names
from tests.distributed import launch

JOB = Path(__file__).with_name("override_job.py")
FILES = [f"{what}.{rank}" for what in ("after", "optimizer", "rng") for rank in (0, 1)]


@pytest.mark.parametrize(
    "framework", [name if name == "torch" else pytest.param(name, marks=pytest.mark.slow) for name in names()]
)
def test_both_processes_add_files(framework, tmp_path, monkeypatch):
    """They are committed, or added to the manifest before on_save is called in any process, and resumes are exact."""
    monkeypatch.setattr(launch, "CASES", JOB)
    cases = ("by_main", "in_parts") if framework == "torch" else ("by_main",)
    launch.run_cases(framework, 2, tmp_path, *cases)
    for found in launch.results(tmp_path, 2):
        for case in cases:
            assert found[case]["listed"] == [FILES, FILES]
            assert found[case]["found"] == ["2", "2", "2"]
            assert found[case]["again"] == found[case]["whole"]
