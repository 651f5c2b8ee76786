"""Argument files: command-line words (`.args`), JSON and YAML."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ArgumentError, MissingPackageError
from .options import spellings
from .strict_json import read_json as read_json_text


class Source(NamedTuple):
    """Words, and the file that holds them ("" for the command line)."""

    path: str
    words: list[str]


def read_sources(
    words: Sequence[str], beside_script: bool, filename: str | os.PathLike[str] | None, flag: str | None
) -> list[Source]:
    """The args files, then the command line, without the flags that name args files."""
    paths = []
    rest = list(words)
    if filename is not None:
        paths.append(Path(filename))
    elif beside_script and sys.argv and Path(sys.argv[0]).name:
        beside = Path(sys.argv[0]).with_suffix(".args")
        paths += [beside] if beside.is_file() else []
    if flag:
        finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False, usage=argparse.SUPPRESS)
        finder.add_argument(*spellings(flag.lstrip("-").replace("-", "_")), dest="files", action="append", default=[])
        named, rest = finder.parse_known_args(rest)
        paths += [Path(name) for name in named.files]
    return [*(Source(str(path), read_args_file(path)) for path in paths), Source("", rest)]


def read_args_file(path: Path) -> list[str]:
    """The words in an args file: quotes group, lines starting with # are comments, backslashes are literal."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"the args file {path} cannot be read ({error}). Pass the path of a text file.") from error
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    lexer = shlex.shlex("\n".join(lines), posix=True)
    lexer.whitespace_split = True
    lexer.commenters = lexer.escape = ""
    try:
        return list(lexer)
    except ValueError as error:
        raise ArgumentError(f"the args file {path} has an unclosed quote ({error}). Close it.") from error


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The object in a JSON file."""
    text = _text(path)
    try:
        return _object(read_json_text(text), path)
    except ValueError as error:
        raise ArgumentError(f"{os.fspath(path)} is not valid JSON: {error}. Fix the file.") from error


def read_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The mapping in a YAML file."""
    try:
        import yaml
    except ImportError as error:
        raise MissingPackageError(
            f"reading {os.fspath(path)} requires the package PyYAML, which is not installed. "
            "Run `pip install pyyaml`, or write the arguments as JSON and use parse_json_file."
        ) from error

    class Loader(yaml.SafeLoader):
        """Reads booleans as YAML 1.2 does: true and false only. `save_strategy: no` stays the string "no"."""

    resolvers = {first: list(pairs) for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()}
    for first in "yYnNoO":
        resolvers[first] = [pair for pair in resolvers.get(first, []) if pair[0] != "tag:yaml.org,2002:bool"]
    Loader.yaml_implicit_resolvers = resolvers
    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping_without_repeats)
    text = _text(path)
    try:
        return _object(yaml.load(text, Loader) or {}, path)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        words = " ".join(str(error).split())
        raise ArgumentError(f"{os.fspath(path)} is not valid YAML: {words}. Fix the file.") from error


def _mapping_without_repeats(loader: Any, node: Any) -> dict[Any, Any]:
    """A mapping whose keys are given once; those of a merge (<<) may be given again."""
    seen: set[Any] = set()
    for key, _ in node.value:
        if key.tag == "tag:yaml.org,2002:merge":
            continue
        if (key.tag, key.value) in seen:
            raise ValueError(f"the key {key.value!r} occurs twice, in line {key.start_mark.line + 1}")
        seen.add((key.tag, key.value if isinstance(key.value, str) else id(key)))
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


def _text(path: str | os.PathLike[str]) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{os.fspath(path)} is not UTF-8: {error}. Save it as UTF-8.") from error


def _object(value: Any, path: str | os.PathLike[str]) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise ArgumentError(
        f"{os.fspath(path)} contains {type(value).__name__}; expected a mapping from argument names to values. "
        "Write the arguments as one mapping."
    )
