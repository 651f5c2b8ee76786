"""Decisions made by looking at a user's code: what a function takes, what its body reads, what a callback asks for.

Everything that oneloop finds out this way is found out here. A decision that can be wrong can be overruled by a class
attribute of the Trainer or of the callback, which is looked at first:

| attribute | of | overrules |
|---|---|---|
| `loss_is_divided` | the Trainer | whether `compute_loss` has divided by num_items_in_batch |
| `step_divides` | the Trainer | whether `training_step` divides by num_items_in_batch itself |
| `calls_collectives` | the Trainer | whether its methods exchange values between processes |
| `logs_metrics` | the Trainer | whether its methods, the model or callbacks call log_metric |
| `shards_itself` | an iterable data set | whether it gives each process its own samples |
| `may_change_control` | a callback | whether its events may change `control`, so that processes have to compare it |

A decision is logged once for a class. A guess on which something depends is a warning of the main process, which names
the attribute; what a class declares, and what makes no difference, is logged at debug level.
"""

import dis
import inspect
import logging
from collections.abc import Callable, Iterable
from functools import partial, partialmethod
from typing import Any
from weakref import WeakKeyDictionary

from .errors import ModelInitError

logger = logging.getLogger(__name__)

NUM_ITEMS = "num_items_in_batch"
PACKAGE = __name__.partition(".")[0]
_PROCESS_NAMES = {"num_processes", "world_size", "get_world_size", "dataset_world_size"}


def declared(owner: Any, name: str) -> bool | None:
    """An explicit class attribute that settles a question; None where there is none."""
    value = getattr(type(owner), name, None)
    return value if isinstance(value, bool) else None


_logged: WeakKeyDictionary[type, set[tuple[str, bool, int]]] = WeakKeyDictionary()
_guess_level = logging.WARNING


def show_guesses(is_main_process: bool) -> None:
    """Only the main process shows what was guessed: all processes guess the same."""
    global _guess_level
    _guess_level = logging.WARNING if is_main_process else logging.DEBUG


def log_decision(question: str, owner: Any, answer: bool, why: str = "", matters: bool = True) -> bool:
    """Log a decision, unless the same has been logged for this class, and return it.

    `why`: what in the code has led to it. `matters`: whether another answer would change anything.
    """
    is_guess = declared(owner, question) is None
    level = _guess_level if is_guess and matters and why else logging.DEBUG
    logged = _logged.setdefault(type(owner), set())
    if (question, answer, level) in logged:
        return answer
    logged.add((question, answer, level))
    name = type(owner).__name__
    if is_guess:
        reason = f"its code: {why}" if why else "its code"
        hint = f"To overrule it, set a class attribute: {question} = {not answer}."
        logger.log(level, "%s of %s: %s (by %s). %s", question, name, answer, reason, hint)
    else:
        logger.log(level, "%s of %s: %s (by its class attribute)", question, name, answer)
    return answer


# -- functions


def _called(function: Any) -> Any:
    """What a call ends in: of a layer, whose own __call__ takes anything, it is forward, or construct on MindSpore."""
    forward = getattr(function, "forward", None) or getattr(function, "construct", None)
    return forward if callable(forward) else function


def _code_of(function: Any) -> Any:
    function = _called(function)
    function = inspect.unwrap(getattr(function, "__func__", function))
    while isinstance(function, (partial, partialmethod)):
        function = inspect.unwrap(function.func)
    if not hasattr(function, "__code__"):
        function = type(function).__call__
    return getattr(function, "__code__", None)


def accepts(function: Callable | None, name: str) -> bool:
    """Whether a function takes an argument of that name, by itself or through **kwargs."""
    try:
        parameters = inspect.signature(_called(function)).parameters
    except (TypeError, ValueError):
        return False
    return name in parameters or any(p.kind == p.VAR_KEYWORD for p in parameters.values())


def takes_arguments(function: Callable) -> bool:
    """Whether a function takes any argument."""
    try:
        return bool(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return True


def reads(function: Callable, name: str = NUM_ITEMS) -> bool:
    """Whether the body of a function uses that argument, or hands its **kwargs on."""
    code = _code_of(function)
    if code is None or not accepts(function, name):
        return False
    names = {name}
    if code.co_flags & inspect.CO_VARKEYWORDS and name not in code.co_varnames:
        count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
        names.add(code.co_varnames[count])
    return _loads(code, names)


def mentions(function: Callable, names: set[str]) -> bool:
    """Whether the body of a function uses any of these names, as a variable, an attribute or a method."""
    code = _code_of(function)
    return code is not None and _loads(code, names)


def reads_world_size(function: Callable) -> bool:
    """Whether a function asks how many processes there are: what it returns is then meant for several."""
    return mentions(function, _PROCESS_NAMES)


def _loads(code: Any, names: set[str]) -> bool:
    for instruction in dis.get_instructions(code):
        if instruction.opname.startswith("LOAD_"):
            value = instruction.argval
            if value in names or (isinstance(value, tuple) and names & set(value)):
                return True
    return any(_loads(inner, names) for inner in code.co_consts if inspect.iscode(inner))


def takes_trial(model_init: Callable[..., Any]) -> bool:
    """Whether model_init accepts the trial of a search; raises an error if it requires more than that."""
    parameters = list(inspect.signature(model_init).parameters.values())
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if len(needed) > 1:
        raise ModelInitError(
            f"model_init needs {', '.join(needed)}; expected no required parameters, or only the trial of a search"
        )
    return bool(needed) or (len(parameters) == 1 and parameters[0].name == "trial")


def returns_loss_by_default(forward: Any) -> bool:
    """Models such as CLIP have no labels and return a loss when `return_loss` is set."""
    try:
        parameter = inspect.signature(forward).parameters.get("return_loss")
    except (TypeError, ValueError, AttributeError):
        return False
    return parameter is not None and parameter.default is True


# -- the methods of a Trainer


def is_overridden(trainer: Any, name: str) -> bool:
    """Whether the method of that name is not oneloop's: a subclass has its own, or one was assigned to the object or to
    the class."""
    return name in vars(trainer) or class_overrides(type(trainer), name)


def class_overrides(trainer_class: type, name: str) -> bool:
    """Whether a class overrides the method; see is_overridden."""
    owner = next((cls for cls in trainer_class.__mro__ if name in vars(cls)), None)
    return owner is not None and not (_is_own(owner) and _is_own(vars(owner)[name]))


def _is_own(value: Any) -> bool:
    """Whether a class or a method is oneloop's; plain values, which have no module, are those of their class."""
    function = getattr(value, "fget", None) or getattr(value, "__func__", value)
    module = getattr(function, "__module__", None)
    return not isinstance(module, str) or module.partition(".")[0] == PACKAGE


def replaces(trainer: Any, name: str) -> bool:
    """Whether a subclass has its own method of that name, which does not call the Trainer's."""
    return is_overridden(trainer, name) and not mentions(getattr(trainer, name), {name})


_COLLECTIVES = {"gather", "gather_for_metrics", "pad_across_processes", "reduce", "wait_for_everyone", "_nested_gather"}
_COLLECTIVES |= {"all_gather", "all_reduce", "all_gather_object", "gather_object", "broadcast_object_list", "barrier"}


def calls_collectives(trainer: Any) -> bool:
    """Whether methods of a subclass exchange values with other processes, so that all have to call them equally often.

    A class attribute `calls_collectives` of the Trainer overrules this.
    """
    found, why = declared(trainer, "calls_collectives"), ""
    if found is None:
        own = [cls for cls in type(trainer).__mro__ if cls.__module__.partition(".")[0] not in (PACKAGE, "builtins")]
        methods = [value for cls in own for name, value in vars(cls).items() if name != "__init__"]
        calling = [m.__name__ for m in methods if inspect.isfunction(m) and mentions(m, _COLLECTIVES)]
        found, why = bool(calling), f"{', '.join(calling)} may exchange values between processes" if calling else ""
    return log_decision("calls_collectives", trainer, found, why)


def logs_metrics(trainer: Any) -> bool:
    """Whether methods of a subclass or of the model call log_metric, so that processes have to add up at each log.

    A class attribute `logs_metrics` of the Trainer overrules this.
    """
    found = declared(trainer, "logs_metrics")
    if found is None:
        classes = (*type(trainer).__mro__, *type(trainer.model).__mro__)
        own = [cls for cls in classes if cls.__module__.partition(".")[0] not in (PACKAGE, "builtins")]
        methods = [value for cls in own for value in vars(cls).values() if inspect.isfunction(value)]
        found = any(mentions(method, {"log_metric"}) for method in methods)
    return log_decision("logs_metrics", trainer, found)


# -- callbacks


def may_change_control(callback: Any, events: Iterable[str]) -> bool:
    """Whether any method uses `control`, or a Trainer, which has one; True if the code cannot be inspected.

    oneloop's own callbacks depend only on what is the same in all processes, so they set the same flags everywhere.
    """
    found, why = declared(callback, "may_change_control"), ""
    if found is None:
        found = _touches_control(callback, tuple(events))
        if type(callback).__module__.partition(".")[0] != PACKAGE:
            why = "it uses control or a Trainer" if found else "it uses neither control nor a Trainer"
    return log_decision("may_change_control", callback, found, why)


def _touches_control(callback: Any, events: tuple[str, ...]) -> bool:
    for cls in type(callback).__mro__:
        if cls.__module__.partition(".")[0] == PACKAGE or cls.__name__ == "TrainerCallback" or cls is object:
            continue
        for name, member in vars(cls).items():
            function = inspect.unwrap(getattr(member, "__func__", member)) if callable(member) else None
            function = getattr(member, "fget", function)
            if name in events and not inspect.isfunction(function):
                return True
            if not inspect.isfunction(function):
                continue
            control = _names_of_control(function, name in events)
            if _touches(function.__code__, control) or (
                name in events and _returns_another(function.__code__, control)
            ):
                return True
    attributes = getattr(callback, "__dict__", {})
    return any(name in events or hasattr(value, "callback_handler") for name, value in attributes.items())


def _names_of_control(function: Any, is_event: bool) -> set[str]:
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
