"""Checkpoints, and copies of them on the Hub."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..distributed.preemption import parse
from ..enums import HubStrategy, SaveStrategy
from . import values
from .fields import Group, declare

if TYPE_CHECKING:
    from .given import Text

arg = declare("Saving")


def to_token(name: str, value: "Text") -> str | None:
    """A dumped `<HUB_TOKEN>` says only that there was one."""
    text = values.to_text(name, value)
    return None if values.MASK.fullmatch(text) else text


@dataclass
class Saving(Group):
    save_strategy: str = arg("steps", "When to save a checkpoint.", enum=SaveStrategy)
    save_steps: float = arg(
        500, "Steps between checkpoints; below 1 it is a ratio of all steps.", convert=values.to_steps
    )
    save_total_limit: int | None = arg(
        None, "How many checkpoints to keep, the best among them; with 1, the newest and the best.", low=1, shown="all"
    )
    save_interval_minutes: float | None = arg(
        None, "Also save when the last checkpoint is this old.", low=0, never=(0,), shown="off"
    )
    save_async: bool = arg(True, "Write checkpoints in the background while training goes on.")
    save_on_each_node: bool = arg(False, "With several machines: save on each, not on the first alone.")
    save_only_model: bool = arg(False, "Checkpoints without optimizer, schedule and random state; no exact resume.")
    save_safetensors: bool = arg(True, "Weights as safetensors, which is the only format written.")
    restore_callback_states_from_checkpoint: bool = arg(
        False, "On resume, give the callbacks the state they had in the checkpoint."
    )
    preemption_signals: list[str] = arg(
        lambda: ["SIGTERM", "SIGINT"],
        "Signals on which a run finishes its step, saves and leaves; SIGUSR1 and others can be added, [] turns it off.",
        none=True,
        shown="SIGTERM, SIGINT",
    )
    enable_jit_checkpoint: bool = arg(False, "True: SIGTERM is one of preemption_signals, as it is by default.")
    push_to_hub: bool = arg(False, "Push the model to the Hub each time it is saved.")
    hub_model_id: str | None = arg(
        None, "With push_to_hub: the repository.", aliases=("push_to_hub_model_id",), shown="output_dir's name"
    )
    hub_strategy: str = arg("every_save", "With push_to_hub: what is pushed when.", enum=HubStrategy)
    hub_token: str | None = arg(
        None,
        "With push_to_hub: the token. It is in no file and no log.",
        aliases=("push_to_hub_token",),
        convert=to_token,
        shown="the logged-in user's",
        repr=False,
    )
    hub_private_repo: bool | None = arg(False, "With push_to_hub: make the repository private.")
    hub_always_push: bool = arg(False, "With push_to_hub: push even while the last push is still under way.")
    hub_revision: str | None = arg(None, "With push_to_hub: the branch to push to.", shown="the main branch")

    def check(self) -> None:
        self.preemption_signals = [signal.name for signal in parse(self.preemption_signals)]
        if self.enable_jit_checkpoint and "SIGTERM" not in self.preemption_signals:
            self.preemption_signals.append("SIGTERM")
        if self.save_strategy == "steps" and self.save_steps == 0:
            raise values.wrong("save_steps", 0, "at least 1 with save_strategy='steps', or a ratio between 0 and 1")
