"""The docstrings of the arguments' constructors, for help() and notebooks.

They come from the same declarations as docs/arguments.md and signatures.pyi, which editors read.
"""

from typing import Any

from .fields import declared


def describe(cls: Any) -> None:
    """Give the constructor of a class of arguments its docstring."""
    cls.__init__.__doc__ = _constructor(cls)


def _constructor(cls: Any) -> str:
    """Every argument with its default, what it does and its other names, in Google's style."""
    others: dict[str, list[str]] = {}
    for alias in cls.__aliases__.values():
        others.setdefault(alias.target, []).append(alias.name)
    lines = ["Arguments are passed by name, in any spelling. docs/arguments.md says what each framework supports.", ""]
    lines.append("Args:")
    for name, (_, rules) in declared(cls).items():
        shown = rules["public"] or name
        aliases = [each for each in others.get(name, []) if each != shown]
        also = f" Also: {', '.join(aliases)}." if aliases else ""
        lines.append(f"    {shown} (default: {_default(rules)}): {rules['help']}{also}")
    return "\n".join(lines)


def _default(rules: Any) -> str:
    if rules["shown"] is not None:
        return str(rules["shown"])
    value = rules["default"]
    return repr(value() if callable(value) else value)
