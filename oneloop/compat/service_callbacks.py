"""Callbacks of transformers and PaddleNLP that upload the trained model to their service.

They save it with a Trainer of their own library, which they create at the end of training from the run's arguments.
"""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from ..extension import Extension

# The module of these callbacks, and the module from which they import the Trainer.
_WRITTEN = {"transformers.integrations": "transformers.trainer"} | {
    f"{library}.trainer.integrations": f"{library}.trainer" for library in ("paddlenlp", "paddleformers")
}


class ServiceCallbacks(Extension):
    """Lets these callbacks save the model of the run."""

    def models_requested(self) -> list[str]:
        return modules_asked_for_trainer(self.trainer.callback_handler.callbacks)

    def saving_models(
        self, requested: Iterable[str], save: Callable[[str], None]
    ) -> contextlib.AbstractContextManager[None]:
        return replacing_trainers(requested, save)


def modules_asked_for_trainer(callbacks: Iterable[Any]) -> list[str]:
    """The modules from which callbacks will import a Trainer to save the model with."""
    found = set()
    for callback in callbacks:
        kept = getattr(callback, "_log_model", None)  # a string or a bool, in transformers an enum
        if not getattr(kept, "is_enabled", kept not in (None, False, "", "false")):
            continue
        for base in type(callback).__mro__:
            found |= {trainer for place, trainer in _WRITTEN.items() if f"{base.__module__}.".startswith(f"{place}.")}
    return sorted(found)


@contextlib.contextmanager
def replacing_trainers(modules: Iterable[str], save: Callable[[str], None]) -> Iterator[None]:
    """Replaces the Trainer of these modules with one that saves the run's model with this function."""

    class Trainer:
        def __init__(self, *_: Any, **__: Any) -> None:
            self.name = None  # set by a callback

        def save_model(self, output_dir: Any) -> None:
            save(str(output_dir))

    before = {name: sys.modules.get(name) for name in modules}
    for name, module in before.items():
        stand_in = ModuleType(name)
        vars(stand_in).update({} if module is None else vars(module), Trainer=Trainer)
        sys.modules[name] = stand_in
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
