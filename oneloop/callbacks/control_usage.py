"""Which callbacks may ask the Trainer for something: to stop, to save, to log. Several processes compare that after a
step, and a callback that only looks on, as most do, should not cost a message."""

import dis
import inspect
from typing import Any

OWN = __name__.split(".")[0]


def may_ask(callback: Any, events: tuple[str, ...]) -> bool:
    """Whether any of its methods touches `control`, or a Trainer, which has one; so too when that cannot be read.

    oneloop's own callbacks decide by what all processes know alike, so they ask for the same everywhere.
    """
    for cls in type(callback).__mro__:
        if cls.__module__.split(".")[0] == OWN or cls.__name__ == "TrainerCallback" or cls is object:
            continue
        for name, member in vars(cls).items():
            function = inspect.unwrap(getattr(member, "__func__", member)) if callable(member) else None
            function = getattr(member, "fget", function)
            if name in events and not inspect.isfunction(function):
                return True
            if not inspect.isfunction(function):
                continue
            control = _control_of(function, name in events)
            if _touches(function.__code__, control) or (
                name in events and _returns_another(function.__code__, control)
            ):
                return True
    return any(name in events or hasattr(value, "callback_handler") for name, value in _attributes(callback).items())


def _attributes(callback: Any) -> dict[str, Any]:
    return getattr(callback, "__dict__", {})


def _control_of(function: Any, is_event: bool) -> set[str]:
    """The names under which a function has the control: (self, args, state, control), or what collects them."""
    names = {"control", "trainer", "_trainer", "callback_handler"}
    if is_event:
        code = function.__code__
        given = code.co_varnames[: code.co_argcount]
        names |= set(given[3:4])
        if len(given) < 4 and code.co_flags & inspect.CO_VARARGS:
            names.add(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
    return names


def _touches(code: Any, names: set[str]) -> bool:
    """Whether code uses any of the names, other than to return it as it is."""
    instructions = list(dis.get_instructions(code))
    for instruction, following in zip(instructions, [*instructions[1:], None]):
        value = instruction.argval
        used = set(value) & names if isinstance(value, tuple) else {value} & names if isinstance(value, str) else None
        if used and not (instruction.opname.startswith("LOAD_FAST") and _returns(following)):
            return True
    return any(_touches(inner, names) for inner in code.co_consts if inspect.iscode(inner))


def _returns_another(code: Any, names: set[str]) -> bool:
    """Whether an event may return a control other than the one that it was given."""
    instructions = list(dis.get_instructions(code))
    for before, instruction in zip([None, *instructions], instructions):
        if instruction.opname == "RETURN_CONST" and instruction.argval is not None:
            return True
        if _returns(instruction) and before is not None:
            nothing = before.opname == "LOAD_CONST" and before.argval is None
            if not nothing and before.argval not in names:
                return True
    return False


def _returns(instruction: Any) -> bool:
    return instruction is not None and instruction.opname == "RETURN_VALUE"
