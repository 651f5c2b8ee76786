"""Tries an installed oneloop, in an environment that has nothing of the repository:
`python try_installed.py [--quick-start README.md]`."""

import os
import re
import subprocess
import sys
import tempfile
from importlib.metadata import distribution
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve()


def run(*words: str, status: int = 0) -> str:
    """The output of a command of this environment; another exit status ends the program."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PATH": path}, timeout=600)
    if done.returncode != status:
        sys.exit(f"{' '.join(words)[:200]} failed with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
    return done.stdout


def check(is_true: bool, what: str) -> None:
    if not is_true:
        sys.exit(f"not true: {what}")


def try_package() -> None:
    import oneloop

    installed = distribution("oneloop")
    check(HERE.parents[2] not in Path(oneloop.__file__).resolve().parents, "the installed package is imported")
    check(oneloop.__version__ == installed.version, "the version is that of the metadata")
    check(files("oneloop").joinpath("py.typed").is_file(), "py.typed is installed")
    check(
        files("oneloop").joinpath("report/assets/uplot/uPlot.iife.min.js").is_file(), "the page's scripts are installed"
    )
    check(run("oneloop", "--version").strip() == f"oneloop {oneloop.__version__}", "oneloop --version")
    for words in (["--help"], ["report", "--help"], ["check", str(HERE)]):
        run("oneloop", *words)
    doctor = run(sys.executable, "-m", "oneloop", "doctor", status=0 if find_spec("torch") else 1)
    check("PyTorch" in doctor and f"oneloop {oneloop.__version__}" in doctor, "the doctor says what is installed")
    for name in ("Trainer", "TrainingArguments", "ArgumentParser", "EarlyStoppingCallback"):
        getattr(oneloop, name)
    check("torch" not in sys.modules, "no framework is imported")


def try_quick_start(readme: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    run(sys.executable, "-c", code + "\nassert trainer.evaluate()['eval_accuracy'] > 0.85\n")
    (output,) = Path("outputs").iterdir()
    run("oneloop", "report", str(output))
    run("oneloop", "checkpoints", str(output), "verify")
    page = (output / "report.html").read_text(encoding="utf-8")
    check("uPlot" in page and "eval_accuracy" in page, "the page has its scripts and the metrics")


def main(words: list[str]) -> int:
    readme = HERE.parents[2] / words[1] if words[:1] == ["--quick-start"] else None
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try_package()
        if readme is not None:
            try_quick_start(readme)
        os.chdir("/")
    print(f"works with Python {sys.version.split()[0]}" + (", and so does the quick start" if readme else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
