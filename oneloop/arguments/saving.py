"""Checkpoints, and uploads to the Hub."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import behaviour, secrets
from ..distributed.preemption import parse
from ..enums import HubStrategy, SaveStrategy
from ..errors import ArgumentError
from . import values
from .fields import Group, declare

if TYPE_CHECKING:
    from .given import Integer, Text

arg = declare("Saving")


def to_token(name: str, value: "Text") -> str | None:
    """A dumped `<HUB_TOKEN>` is a placeholder, not a token."""
    text = values.to_text(name, value)
    return None if secrets.is_mask(name, text) else text


def to_limit(name: str, value: "Integer") -> int | None:
    """A number of checkpoints; None is no limit."""
    number = values.to_int(name, value)
    return None if number <= 0 and behaviour.current().zero_is_no_save_limit else number


@dataclass
class Saving(Group):
    save_strategy: str = arg("steps", "When to save a checkpoint.", enum=SaveStrategy)
    save_steps: float = arg(
        500, "Steps between checkpoints; a value below 1 is a ratio of all steps.", convert=values.to_steps
    )
    save_total_limit: int | None = arg(
        None,
        "Maximum number of checkpoints to keep, including the best; with 1, the newest and the best.",
        convert=to_limit,
        low=1,
        shown="all",
        per_process=True,
    )
    save_interval_minutes: float | None = arg(
        None, "Also save when the last checkpoint is this many minutes old.", low=0, never=(0,), shown="off"
    )
    snapshot_steps: int | None = arg(
        None,
        "Steps between snapshots: checkpoints in the memory of the machine, of which the newest is kept. A run whose "
        "processes were killed is resumed from it.",
        low=1,
        shown="off",
    )
    snapshot_dir: str | None = arg(
        None, "With snapshot_steps: a directory in memory.", shown="/dev/shm", per_process=True
    )
    save_async: bool = arg(True, "Write checkpoints in the background during training.")
    save_on_each_node: bool = arg(False, "With several machines: save on each machine instead of only the first.")
    save_only_model: bool = arg(False, "Save checkpoints without optimizer, scheduler and RNG state; no exact resume.")
    save_safetensors: bool = arg(True, "Save weights as safetensors, the only format written.")
    restore_callback_states_from_checkpoint: bool = arg(
        False, "On resume, restore the callbacks' state from the checkpoint."
    )
    preemption_signals: list[str] = arg(
        lambda: ["SIGTERM", "SIGINT"],
        "Signals on which a run finishes its step, saves and stops; SIGUSR1 and others can be added, [] disables it.",
        none=True,
        shown="SIGTERM, SIGINT",
    )
    enable_jit_checkpoint: bool = arg(False, "True: adds SIGTERM to preemption_signals, where it is by default.")
    push_to_hub: bool = arg(False, "Push the model to the Hub each time it is saved.", per_process=True)
    hub_model_id: str | None = arg(
        None,
        "With push_to_hub: the repository.",
        aliases=("push_to_hub_model_id",),
        shown="output_dir's name",
        per_process=True,
    )
    hub_strategy: str = arg(
        "every_save", "With push_to_hub: what to push, and when.", enum=HubStrategy, per_process=True
    )
    hub_token: str | None = arg(
        None,
        "With push_to_hub: the token. It is never written to a file or log.",
        aliases=("push_to_hub_token",),
        convert=to_token,
        shown="that of the logged-in user",
        repr=False,
        per_process=True,
    )
    hub_private_repo: bool | None = arg(
        None,
        "With push_to_hub: make a new repository private or public. By default, as its owner's settings say.",
        per_process=True,
    )
    hub_always_push: bool = arg(
        False, "With push_to_hub: push even if the previous push has not finished.", per_process=True
    )
    hub_revision: str | None = arg(
        None, "With push_to_hub: the branch to push to.", shown="the main branch", per_process=True
    )

    def check(self) -> None:
        self.preemption_signals = [signal.name for signal in parse(self.preemption_signals)]
        if self.enable_jit_checkpoint and "SIGTERM" not in self.preemption_signals:
            self.preemption_signals.append("SIGTERM")
        if self.save_strategy == "steps" and self.save_steps == 0:
            raise values.invalid("save_steps", 0, "at least 1 with save_strategy='steps', or a ratio between 0 and 1")
        if self.snapshot_steps and (self.save_strategy == "no" or self.save_only_model):
            given = "save_strategy='no'" if self.save_strategy == "no" else "save_only_model=True"
            raise ArgumentError(
                f"snapshot_steps={self.snapshot_steps} cannot be used with {given}: a run that is resumed from a "
                "snapshot makes a checkpoint of it. Remove one of them."
            )
