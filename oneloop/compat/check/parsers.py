"""The classes that a script's parser is built from, if they can be determined: then an unknown option is an error."""

import ast

from .classes import Classes
from .syntax import Source

# Calls after which the parser may accept options of no class.
OPEN = {"add_argument", "add_argument_group", "parse_known_args"}
# Methods of the parsers, and their argument with which unknown options are not an error.
READING = {
    "parse_args_into_dataclasses": "return_remaining_strings",
    "parse_json_file_and_cmd_lines": "return_remaining_strings",
    "parse_json_file": "allow_extra_keys",
    "parse_yaml_file": "allow_extra_keys",
    "parse_dict": "allow_extra_keys",
}


def parsed_classes(files: list[Source], classes: Classes) -> set[str] | None:
    """Names of all classes that the command line is parsed into; None if other options may be accepted too."""
    calls = [node for source in files for node in ast.walk(source.tree) if isinstance(node, ast.Call)]
    methods = {_method(call) for call in calls}
    parsers = [call for call in calls if classes.role(call.func) == "Parser"]
    if not parsers or OPEN & methods or not READING.keys() & methods or any(map(_keeps_the_rest, calls)):
        return None
    found: set[str] = set()
    for node in (each for call in parsers for each in _types(call)):
        names = _names(node, classes)
        if names is None:
            return None
        found |= names
    return found or None


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _keeps_the_rest(call: ast.Call) -> bool:
    """Whether it parses options, and unknown ones are, or may be, accepted."""
    name = READING.get(_method(call))
    if name is None:
        return False
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    value = call.args[-1] if len(call.args) > 1 else given.get(name)
    return None in given or not (value is None or (isinstance(value, ast.Constant) and not value.value))


def _types(call: ast.Call) -> list[ast.expr]:
    """The classes that are passed to a parser."""
    given = call.args[:1] or [each.value for each in call.keywords if each.arg == "dataclass_types"]
    return list(given[0].elts) if given and isinstance(given[0], (ast.Tuple, ast.List)) else given


def _names(node: ast.AST, classes: Classes) -> set[str] | None:
    """A class and its bases, if the fields of all are known."""
    name = classes.library_name(node)
    if name is not None:
        return {name}
    own = classes.nodes.get(classes.origin(node).rpartition(".")[2])
    if own is None:
        return None
    found = {own.name}
    for base in own.bases:
        above = {"object"} if classes.origin(base) == "object" else _names(base, classes)
        if above is None:
            return None
        found |= above
    return found
