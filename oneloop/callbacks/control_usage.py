"""Which callbacks may set flags of TrainerControl: to stop, save or log. Processes synchronize these flags after a
step, and callbacks that only observe, as most do, should not cost a collective."""

import dis
import inspect
from typing import Any

OWN = __name__.split(".")[0]


def may_ask(callback: Any, events: tuple[str, ...]) -> bool:
    """Whether any method uses `control`, or a Trainer, which has one; True if the code cannot be inspected.

    oneloop's own callbacks depend only on what is the same in all processes, so they set the same flags everywhere.
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
    """The names under which a function receives the control: (self, args, state, control), or *args and **kwargs."""
    names = {"control", "trainer", "_trainer", "callback_handler"}
    if is_event:
        code = function.__code__
        given = code.co_varnames[: code.co_argcount]
        names |= set(given[3:4])
        if len(given) < 4 and code.co_flags & inspect.CO_VARARGS:
            names.add(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
    return names


def _touches(code: Any, names: set[str]) -> bool:
    """Whether the code uses any of the names, other than to return it unchanged."""
    instructions = list(dis.get_instructions(code))
    for instruction, following in zip(instructions, [*instructions[1:], None]):
        value = instruction.argval
        used = set(value) & names if isinstance(value, tuple) else {value} & names if isinstance(value, str) else None
        if used and not (instruction.opname.startswith("LOAD_FAST") and _returns(following)):
            return True
    return any(_touches(inner, names) for inner in code.co_consts if inspect.iscode(inner))


def _returns_another(code: Any, names: set[str]) -> bool:
    """Whether an event may return another control than the one passed to it."""
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
