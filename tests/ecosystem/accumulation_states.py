"""What a script finds of the state of accumulation, at every moment of a run: played on both Trainers.

    python -m tests.ecosystem.accumulation_states transformers|oneloop FOLDER NAME ...

A record has a line for each moment: where, the step and epoch, and what the accelerator and the Trainer say there.
"""

import itertools
import json
import sys
from pathlib import Path

from tests.ecosystem.two_sides import play_all

OFFLINE = {"HF_HUB_OFFLINE": "1", "CI": "1"}
EVENTS = (
    "train_begin", "epoch_begin", "step_begin", "substep_end", "pre_optimizer_step", "optimizer_step", "step_end",
    "log", "evaluate", "prediction_step", "save", "epoch_end", "train_end",
)  # fmt: skip
# What follows in a moment is about the loader, and of accelerate's loaders alone.
LOADER = 13

GRID = {
    f"a{accumulation}-n{samples}-{name}": {"gradient_accumulation_steps": accumulation, "samples": samples, **options}
    for accumulation, samples in itertools.product((1, 2, 3), (12, 13, 17))
    for name, options in {
        "epochs": {"num_train_epochs": 2},
        "steps": {"max_steps": 3},
        "evaluated": {"num_train_epochs": 2, "eval_strategy": "steps", "eval_steps": 1},
        "dropped": {"num_train_epochs": 1, "dataloader_drop_last": True},
        "resumed": {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 1, "resume": True},
    }.items()
} | {
    "called": {"gradient_accumulation_steps": 3, "samples": 13, "num_train_epochs": 1, "calls": True},
    "every-batch": {
        "gradient_accumulation_steps": 3, "samples": 13, "num_train_epochs": 1,
        "accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}},
    },
    "streamed": {"gradient_accumulation_steps": 3, "samples": 12, "max_steps": 3, "iterable": True},
    "failing": {"gradient_accumulation_steps": 3, "samples": 13, "num_train_epochs": 1, "fails": True},
}  # fmt: skip


def play(folder, side, name):
    from transformers import Trainer, TrainerCallback

    record = []

    class Recorder(TrainerCallback):
        trainer = None

    def listening(event):
        return lambda self, args, state, control, **kwargs: self.trainer.note(event)

    for event in EVENTS:
        setattr(Recorder, f"on_{event}", listening(event))

    class Recorded(Trainer):
        def note(self, where):
            accelerator = self.accelerator
            state = accelerator.gradient_state
            record.append([
                where, self.state.global_step, round(self.state.epoch or 0, 4), bool(accelerator.sync_gradients),
                bool(state.sync_gradients), state.num_steps, state.plugin_kwargs.get("sync_each_batch", False),
                state.adjust_scheduler, state.sync_with_dataloader, accelerator.gradient_accumulation_steps,
                accelerator.step, accelerator.optimizer_step_was_skipped,
                getattr(self, "current_gradient_accumulation_steps", 1), state.in_dataloader, state.end_of_dataloader,
                state.remainder,
            ])  # fmt: skip

        def training_step(self, model, inputs, num_items_in_batch=None):
            self.note("training_step")
            if options.get("calls"):
                with self.accelerator.accumulate(model):
                    self.note("accumulate")
                with self.accelerator.no_sync(model):
                    self.note("no_sync")
            loss = super().training_step(model, inputs, num_items_in_batch)
            self.note("after training_step")
            if options.get("fails") and self.state.global_step == 1:
                raise KeyError("planted")
            return loss

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            self.note("compute_loss" if model.training else "compute_loss of an evaluation")
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

        def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
            self.note("prediction_step of the Trainer")
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)

    options = dict(GRID[name])
    trainer = _trainer(Recorded, Recorder, Path(folder) / side / name, options)
    trainer.note("made")
    if options.get("fails"):
        try:
            trainer.train()
        except KeyError:
            trainer.note("failed")
    else:
        trainer.train()
    if options.get("resume"):
        trainer = _trainer(Recorded, Recorder, Path(folder) / side / name, options)
        trainer.train(resume_from_checkpoint=str(Path(folder) / side / name / "checkpoint-1"))
    trainer.evaluate()
    trainer.note("evaluated")
    (Path(folder) / side / f"{name}.json").write_text(json.dumps(record))


def _trainer(kind, callback, folder, options):
    import torch
    from transformers import TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, x, labels=None):
            found = self.layer(x).squeeze(-1)
            return {"loss": ((found - labels) ** 2).mean(), "logits": found}

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(rows)

    own = ("samples", "resume", "calls", "fails", "iterable")
    given = {"save_strategy": "no"} | {key: value for key, value in options.items() if key not in own}
    given |= {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "logging_steps": 2}
    args = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=2, per_device_eval_batch_size=4, **given
    )
    rows = [{"x": torch.tensor([i / 10, 1.0]), "labels": torch.tensor(i % 3.0)} for i in range(options["samples"])]
    data = Stream() if options.get("iterable") else rows
    recorder = callback()
    recorder.trainer = kind(Model(), args, train_dataset=data, eval_dataset=rows[:6], callbacks=[recorder])
    return recorder.trainer


if __name__ == "__main__":
    sys.exit(play_all(play, OFFLINE, sys.argv[1], sys.argv[2], sys.argv[3:] or list(GRID)))
