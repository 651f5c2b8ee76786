"""The wheel and the sdist: built, installed into empty environments and tried there (scripts/package)."""

import os
import re
import subprocess
import sys

import pytest

from oneloop.cli import main
from tests.packaging import contents


def test_the_version_is_written_once(capsys):
    import oneloop

    assert contents.version() == oneloop.__version__
    assert "version" in (contents.ROOT / "pyproject.toml").read_text().partition("dynamic = ")[2].partition("\n")[0]
    with pytest.raises(SystemExit) as end:
        main.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"oneloop {oneloop.__version__}\n"


def test_metadata_that_lacks_something():
    good = (
        f"Name: oneloop\nVersion: {contents.version()}\nProject-URL: Documentation, https://a\n"
        "Project-URL: Source, https://a\nProject-URL: Issues, https://a\nProject-URL: Changelog, https://a\n"
        "\n# oneloop\n[docs](https://a/docs.md) [below](#below)\n"
    )
    assert contents.problems_of_metadata(good) == []
    assert contents.problems_of_metadata(good.replace("https://a/docs.md", "docs/page.md")) == [
        "the long description has the relative link docs/page.md"
    ]
    assert len(contents.problems_of_metadata(good.replace("Source", "Home"))) == 1
    assert len(contents.problems_of_metadata(good.replace("Version: ", "Version: 9"))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("torch", ["no", "yes"])
def test_wheel_and_sdist_work_in_empty_environments(tmp_path, torch):
    done = subprocess.run(
        ["bash", "scripts/package", str(tmp_path)],
        cwd=contents.ROOT,
        env={**os.environ, "PYTHON": sys.executable, "TORCH": torch},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("works with Python") == (2 if torch == "yes" else 1)


@pytest.mark.parametrize("name", [".pre-commit-config.yaml", ".github/workflows/test.yml", "mkdocs.yml"])
def test_scripts_that_configurations_call_are_there(name):
    yaml = pytest.importorskip("yaml")
    text = (contents.ROOT / name).read_text(encoding="utf-8")
    assert yaml.safe_load(text)
    for script in re.findall(r"bash (scripts/\w+)", text):
        assert (contents.ROOT / script).is_file()


def test_the_linter_of_pre_commit_is_that_of_the_tests():
    pinned = re.search(r"^ruff==(.+)$", (contents.ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]
    assert f"rev: v{pinned}\n" in (contents.ROOT / ".pre-commit-config.yaml").read_text()
