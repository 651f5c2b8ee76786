"""What the README shows is run as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


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


def test_both_languages_show_the_same_code():
    assert python_blocks("README.md") == python_blocks("README.zh.md")


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_links_of_the_readme_lead_to_files(name):
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / name).read_text(encoding="utf-8"))
    assert links and [link for link in links if not (ROOT / link).exists()] == []
