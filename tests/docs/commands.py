"""Whether a command that a page shows exists, with its options."""

import re
import shlex
from contextlib import redirect_stderr
from io import StringIO

from tests.docs.pages import ROOT

# Programs that pages name; `oneloop`, `pip install`, `bash` and `python` are looked at more closely.
PROGRAMS = {
    *(
        "accelerate",
        "bash",
        "cd",
        "conda",
        "docker",
        "export",
        "git",
        "jupyter",
        "mkdocs",
        "mpirun",
        "msrun",
        "nvidia-smi",
    ),
    *("oneloop", "pip", "pytest", "python", "scp", "ssh", "tail", "tee", "torchrun", "trl", "uv"),
}


def commands(code: str) -> list[list[str]]:
    """The commands of a shell block, as words: without comments, prompts and variables set in front."""
    joined = code.replace("\\\n", " ")
    found = []
    for line in joined.splitlines():
        for part in re.split(r"\s(?:&&|\|\|?|;)\s", line.removeprefix("$ ")):
            words = shlex.split(part, comments=True)
            while words and re.match(r"\w+=", words[0]):
                words = words[1:]
            if words:
                found.append(words)
    return found


def problem(words: list[str]) -> str:
    """What is wrong with a command; "" if nothing is."""
    program, *rest = words
    program = program.rpartition("/")[2]
    if program not in PROGRAMS:
        return f"{program} is no known program"
    if program == "oneloop" or rest[:2] == ["-m", "oneloop"]:
        return _problem_of_oneloop(rest if program == "oneloop" else rest[2:])
    if "oneloop" in rest and program in ("torchrun", "accelerate"):
        return _problem_of_oneloop(rest[rest.index("oneloop") + 1 :])
    if program == "pip":
        return _problem_of_extras(" ".join(rest))
    if program == "bash":
        return "" if (ROOT / rest[0]).is_file() else f"there is no {rest[0]}"
    return _problem_of_scripts(rest)


def _problem_of_oneloop(words: list[str]) -> str:
    from oneloop.cli import main

    said = StringIO()
    try:
        with redirect_stderr(said):
            main.parser().parse_args([word for word in words if word != "..."])
    except SystemExit as end:
        return said.getvalue() if end.code else ""
    return ""


def _problem_of_extras(text: str) -> str:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = project.partition("[project.optional-dependencies]")[2].partition("[project.")[0]
    known = re.findall(r"^(\w+) = \[", section, re.MULTILINE)
    named = [extra.strip() for group in re.findall(r"(?:oneloop|\.)\[([\w, ]+)\]", text) for extra in group.split(",")]
    unknown = sorted(set(named) - set(known))
    return f"oneloop has no extra {', '.join(unknown)}" if unknown else ""


def _problem_of_scripts(words: list[str]) -> str:
    """Files of the repository that are named have to be there."""
    named = [word for word in words if word.startswith(("examples/", "tests/", "benchmarks/", "scripts/"))]
    missing = [word for word in named if not (ROOT / word.partition("::")[0]).exists()]
    return f"there is no {missing[0]}" if missing else ""
