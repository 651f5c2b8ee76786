"""What the arguments of a run do on its framework: works, maps, refused or without effect."""

from typing import TYPE_CHECKING, Any

from ..arguments.fields import declared, was_given
from ..arguments.support import refusals_of
from ..arguments.values import show
from ..trainer import idle_arguments
from .results import Effect

if TYPE_CHECKING:
    from ..trainer.internals import Internals

_PLACES = ("output_dir", "logging_dir", "run_name")


def of(core: "Internals", steps: int) -> list[Effect]:
    """Every argument that was given, in the order of the groups."""
    args, backend = core.trainer.args, core.backend
    kind = backend.devices.kind(args.device)
    refused = {
        refusal.argument: refusal for refusal in refusals_of(backend.NAME) if refusal.applies(args, backend.NAME, kind)
    }
    idle = list(idle_arguments.found(args, steps, core.trainer.compute_metrics is not None))
    said = args.__dict__.get("_said", {})
    found = []
    cls: Any = type(args)
    for name in declared(cls):
        if name in _PLACES or not was_given(args, name):
            continue
        value = show(name, getattr(args, name))
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
