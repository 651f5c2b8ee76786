"""Weights & Biases."""

import json
import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from ...arguments import TrainingArguments
from ...errors import ArgumentError
from ...state import TrainerControl, TrainerState
from .base import Writer, tag, untag
from .offline_files import records
from .progress_marks import Mark

# Values of the whole run, which have no curve.
SUMMARY = ("train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss", "total_flos")


class WandbCallback(Writer):
    """WANDB_PROJECT, WANDB_LOG_MODEL (end, checkpoint, false), WANDB_WATCH, and the variables of wandb.

    A run opened by the script is used, and left open.
    """

    name = "wandb"
    closes = False

    def open(self, args: TrainingArguments, state: TrainerState) -> None:
        self.wants("model")  # raises on an invalid WANDB_LOG_MODEL now, not at the end
        wandb = self.package()
        self._own = wandb.run is None
        if self._own:
            options: dict[str, Any] = {"project": os.environ.get("WANDB_PROJECT") or args.project}
            if self.run and not os.environ.get("WANDB_RUN_ID"):
                options |= {"id": self.run["id"], "resume": "allow"}
            if state.trial_name is not None:
                options |= {"name": state.trial_name, "group": args.run_name}
            elif not os.environ.get("WANDB_NAME"):
                options["name"] = args.run_name
            wandb.init(**options)
        self._run = wandb.run
        self.run = {"id": self._run.id}
        # Not log(step=...): a script that logs itself would advance that counter past the training steps.
        self._run.define_metric("train/global_step")
        self._run.define_metric("*", step_metric="train/global_step", step_sync=True)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        super().on_train_begin(args, state, control, model=model, **kwargs)
        watched = os.environ.get("WANDB_WATCH", "false").lower()
        if self.is_open and watched in ("gradients", "parameters", "all"):
            self._run.watch(model, log=watched, log_freq=max(100, state.logging_steps))

    def reported(self) -> Mark | None:
        mark = Mark()
        if not self._run.settings._offline:
            last = self._run.summary.get("train/global_step")  # returned by the service with the run
            return None if last is None else Mark(int(last), [untag(name) for name in dict(self._run.summary)])
        folder = Path(self._run.settings.sync_dir)
        for path in sorted(folder.parent.glob(f"*run-*-{self._run.id}/run-{self._run.id}.wandb")):
            for row in _rows(path) if path.parent != folder else ():
                mark.add(int(row.get("train/global_step", 0)), [name for name in map(untag, row) if name])
        return mark

    def parameters(self, arguments: dict[str, Any], model: dict[str, Any]) -> None:
        self._run.config.update({**model, **arguments}, allow_val_change=True)

    def write(self, values: dict[str, float], step: int) -> None:
        curves = {tag(name): value for name, value in values.items() if name not in SUMMARY}
        for name in SUMMARY:
            if name in values:
                self._run.summary[name] = values[name]
        if curves:
            self._run.log({**curves, "train/global_step": step})

    def close(self) -> None:
        if self._own:
            self._run.finish()

    def wants(self, what: str) -> bool:
        word = os.environ.get("WANDB_LOG_MODEL", "false").strip().lower()
        if word in ("", "0", "false", "no"):
            return False
        if word not in ("end", "checkpoint", "1", "true", "yes"):
            raise ArgumentError(f"Invalid WANDB_LOG_MODEL={word!r}: expected end, checkpoint or false.")
        return what == "model" or word == "checkpoint"

    def artifact(self, folder: Path, what: str, state: TrainerState) -> None:
        wandb = self.package()
        metadata = {"step": state.global_step, "epoch": state.epoch, "best_metric": state.best_metric}
        made = wandb.Artifact(f"model-{self._run.id}", type="model", metadata=metadata)
        made.add_dir(str(folder))
        aliases = ["final_model"]
        if what == "checkpoint":
            aliases = [f"checkpoint_global_step_{state.global_step}", f"epoch_{round(state.epoch or 0, 2)}"]
        self._run.log_artifact(made, aliases=aliases)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """The values logged by an offline run, from its file."""
    messages = import_module("wandb.proto.wandb_internal_pb2")
    for data in records(path):
        record = messages.Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            yield {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
