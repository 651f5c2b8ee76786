"""Trackio."""

from typing import Any

from ...arguments import TrainingArguments
from ...state import TrainerState
from .base import Writer, public_arguments, tag, untag
from .progress_marks import Mark


class TrackioCallback(Writer):
    """Logs on this machine, or to the space trackio_space_id, in args.project under args.run_name."""

    name = "trackio"

    def open(self, args: TrainingArguments, state: TrainerState) -> None:
        trackio = self.package()
        name = self.run.get("name") or state.trial_name or args.run_name
        options = {"project": args.project, "name": name, "resume": "allow" if self.run else "never"}
        for argument, option in (("trackio_space_id", "space_id"), ("trackio_bucket_id", "bucket_id")):
            if getattr(args, argument) not in (None, "trackio"):  # what another Trainer's dump has by default
                options[option] = getattr(args, argument)
        if "space_id" in options:
            options["private"] = args.hub_private_repo
        self._remote = bool(options.get("space_id"))
        self._run = trackio.init(**options, config=public_arguments(args), embed=False)
        self.run = {"project": args.project, "name": self._run.name}

    def reported(self) -> Mark | None:
        if self._remote:
            return None
        storage = self.package("trackio.sqlite_storage").SQLiteStorage
        mark = Mark()
        for entry in storage.get_logs(self.run["project"], self.run["name"]):
            mark.add(int(entry.get("step", 0)), [name for name in map(untag, entry) if name])
        return mark

    def parameters(self, arguments: dict[str, Any], model: dict[str, Any]) -> None:
        self._run.config.update({name: value for name, value in model.items() if name not in arguments})

    def write(self, values: dict[str, float], step: int) -> None:
        self._run.log({tag(name): value for name, value in values.items()}, step=step)

    def close(self) -> None:
        self.package().finish()
