"""`oneloop check`: what would happen to a script under oneloop, determined from its syntax tree."""

import json
from collections.abc import Sequence
from pathlib import Path

from ...errors import ArgumentError
from ...formats.terminal import printable
from ...secrets import clean, clean_text
from .arguments import Arguments
from .classes import Classes
from .code import Reader
from .findings import Finding, as_data, as_text
from .parsers import parsed_classes
from .syntax import imported, libraries_of, sources


def run(script: str, words: Sequence[str], library: str | None = None, as_json: bool = False) -> int:
    """Print the findings; returns 1 if anything is refused, otherwise 0."""
    found, libraries, framework = check(script, words, library)
    if as_json:
        print(json.dumps(clean(as_data(found, libraries, framework)), indent=2))
    else:
        print(printable(clean_text(as_text(found, libraries, framework))))
    return int(any(each.answer == "refused" for each in found))


def check(script: str, words: Sequence[str] = (), library: str | None = None) -> tuple[list[Finding], list[str], str]:
    """The findings, the libraries that the script seems to be written for, and the framework."""
    path = Path(script)
    if not path.is_file():
        raise ArgumentError(f"script {script} not found; pass its path before -- and its arguments.")
    files = list(sources(path))
    modules = {name for source in files for name in imported(source.tree)}
    libraries = [library] if library else libraries_of(path)
    framework = _framework(modules, libraries)
    classes = Classes(files)
    arguments = Arguments(framework, classes, parsed_classes(files, classes))
    found: list[Finding] = []
    for source in files:
        found += Reader(source, classes, arguments).findings()
    if not classes.trainer_is_built(files):
        text = "the files that were read create no Trainer: none of their code would run on oneloop"
        found.append(Finding(str(path), 0, "class", "Trainer", "unseen", text))
    found += arguments.of_command_line(list(words))
    return sorted(set(found), key=lambda each: (each.file != str(path), each)), libraries, framework


def _framework(modules: set[str], libraries: list[str]) -> str:
    """The framework of a script, as named in the tables of supported arguments."""
    roots = {name.partition(".")[0] for name in modules}
    # mindnlp.transformers is transformers on mindtorch.
    if "mindnlp" in libraries and ("transformers" in roots or "mindnlp.transformers" in modules):
        return "mindtorch"
    for name, signs in (("paddle", {"paddle", "paddlenlp", "paddleformers"}), ("mindspore", {"mindspore", "mindnlp"})):
        if signs & roots:
            return name
    return {"paddlenlp": "paddle", "paddleformers": "paddle", "mindnlp": "mindspore"}.get(libraries[0], "torch")
