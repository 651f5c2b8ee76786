"""What the arguments of a run do on its framework: works, maps, refused or without effect."""

from typing import TYPE_CHECKING, Any

from ..arguments.fields import declared, was_set_by_user
from ..arguments.support import unsupported_by
from ..arguments.values import format_value
from ..trainer import unused_arguments
from .results import Effect

if TYPE_CHECKING:
    from ..trainer.core import Core

_PLACES = ("output_dir", "logging_dir", "run_name")


def of(core: "Core", steps: int) -> list[Effect]:
    """Every argument that was given, in the order of the groups."""
    args, backend = core.trainer.args, core.backend
    kind = backend.devices.kind(args.device)
    refused = {
        unsupported.argument: unsupported
        for unsupported in unsupported_by(backend.NAME)
        if unsupported.applies(args, backend.NAME, kind)
    }
    idle = list(unused_arguments.find_unused(args, steps, core.trainer.compute_metrics is not None))
    said = args.__dict__.get("_spelling_of", {})
    found = []
    cls: Any = type(args)
    for name in declared(cls):
        if name in _PLACES or not was_set_by_user(args, name):
            continue
        value = format_value(name, getattr(args, name))
        words = said.get(name, name)
        if name in refused:
            text = f"{refused[name].why}. Instead: {refused[name].instead}"
            found.append(Effect(words, value, "refused", text))
        elif text := next((text for text in idle if text.startswith((f"{name}=", f"{name} "))), ""):
            found.append(Effect(words, value, "no effect", text))
        elif words != name:
            found.append(Effect(words, value, "maps", name))
        else:
            found.append(Effect(words, value, "works"))
    return found
