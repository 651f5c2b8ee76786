"""What the README shows is run as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
READMES = [*ROOT.glob("README*.md"), *(ROOT / "examples").rglob("README*.md")]


def python_blocks(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)


def test_the_quick_start_runs_and_learns(tmp_path):
    (block,) = python_blocks("README.md")
    check = "\nassert trainer.evaluate()['eval_accuracy'] > 0.85\n"
    done = subprocess.run(
        [sys.executable, "-c", block + check], capture_output=True, text=True, cwd=tmp_path, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "outputs" / "circle").is_dir()


def test_both_languages_and_the_home_page_show_the_same_code():
    assert python_blocks("README.md") == python_blocks("README.zh.md") == python_blocks("docs/index.md")


@pytest.mark.parametrize("name", [path.relative_to(ROOT).as_posix() for path in READMES])
def test_links_lead_to_files(name):
    page = ROOT / name
    links = re.findall(r"\]\((?!https://)([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    assert links and [link for link in links if not (page.parent / link).exists()] == []


def test_figures_of_the_table_are_those_of_the_benchmarks():
    """Each was copied from benchmarks/README.md: step times as ratios, the rest as they stand there."""
    measured = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    for figure in ("0.814x", "1.867x", "1.964x", "0.956x", "1.069x", "1.037x", "0.997x", "1.075x", "482.5", "482.8"):
        assert figure in measured
    for figure in (
        "482.4",
        "17 to 32 MB",
        "0.157",
        "3.217",
        "0.076 |",
        "1.322 |",
        "0.012 |",
        "2.197 |",
        "1.13x",
        "40.8x",
    ):
        assert figure in measured
    for name in ("README.md", "README.zh.md", "docs/index.md"):
        table = (ROOT / name).read_text(encoding="utf-8")
        for shown in (
            "| 1 | 0.81 | 1.87 | 1.96 |",
            "| 1 | 0.96 | 1.07 | 1.04 |",
            "| 1 | 1.00 | 1.08 |",
            "0.16 s | 3.2 s",
        ):
            assert shown in table
        for shown in ("482.5 MB | 482.8 MB | 482.4 MB", "0.08 s | 1.3 s", "0.01 s | 2.2 s", "| 1 | 1.13 | 40.8 |"):
            assert shown in table
    evidence = (ROOT / "docs" / "evidence" / "reliability.md").read_text(encoding="utf-8")
    assert "583 kills on PyTorch, all runs equal" in evidence
