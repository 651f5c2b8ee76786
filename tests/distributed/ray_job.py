"""Functions that the workers of a Ray TorchTrainer run: Trainers that report their checkpoints to Ray Train."""

import contextlib
import json
import os
import signal
from pathlib import Path

import ray.train
from ray.train.huggingface.transformers import RayTrainReportCallback, prepare_trainer

from oneloop import Trainer, TrainerCallback, TrainingArguments
from tests.backends.support import kit_module, rows

SAMPLES, STEPS, SAVE_STEPS, BATCH = 64, 20, 5, 4


class Dies(TrainerCallback):
    """Kills the second worker three steps after the second save or as soon as it is committed, in the first attempt."""

    def __init__(self, folder):
        self.mark, self.saved = folder / "killed", 0

    def on_save(self, args, state, control, **kwargs):
        self.saved = state.global_step

    def on_step_end(self, args, state, control, **kwargs):
        is_due = state.global_step >= 2 * SAVE_STEPS + 3 and self.saved >= 2 * SAVE_STEPS
        if is_due and args.process_index == 1 and not self.mark.exists():
            self.mark.touch()
            ray.train.get_all_reported_checkpoints()  # returns when Ray has taken note of all
            os.kill(os.getpid(), signal.SIGKILL)


def arguments(folder, **given):
    options = {"max_steps": STEPS, "save_steps": SAVE_STEPS, "per_device_train_batch_size": BATCH, "logging_steps": 5}
    options |= {"learning_rate": 1e-2, "report_to": "none", "disable_tqdm": True}
    return TrainingArguments(output_dir=str(folder), **options | given)


def classifier():
    return kit_module("torch").Kit().classifier(dropout=0.3)


def train(config):
    """`resume`: from "output_dir", or from the checkpoint "reported" to Ray; `dies`: a worker is killed."""
    folder = Path(config["folder"])
    attempt = "second" if (folder / "killed").exists() else "first"
    args = arguments(folder / ("run" if config["resume"] == "output_dir" else attempt))
    callbacks = [RayTrainReportCallback(), *([Dies(folder)] if config["dies"] else [])]
    trainer = Trainer(classifier(), args, train_dataset=rows(SAMPLES), callbacks=callbacks)
    with contextlib.ExitStack() as opened:
        start, checkpoint = True, ray.train.get_checkpoint()
        if config["resume"] == "reported":
            held = None if checkpoint is None else opened.enter_context(checkpoint.as_directory())
            start = held and os.path.join(held, RayTrainReportCallback.CHECKPOINT_NAME)
        trainer.train(resume_from_checkpoint=start)
    told = {"world": [args.process_index, args.world_size], "files": str(folder / args.output_dir)}
    told["losses"] = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    (folder / f"rank{ray.train.get_context().get_world_rank()}.json").write_text(json.dumps(told))


class Noting(Trainer):
    """Keeps which samples this worker was given."""

    def training_step(self, model, inputs, *rest):
        self.given = [*getattr(self, "given", []), *inputs["labels"].tolist()]
        return super().training_step(model, {"x": inputs["x"].float(), "labels": inputs["labels"] % 3}, *rest)


def train_on_ray_data(config):
    folder = Path(config["folder"])
    shard = ray.train.get_dataset_shard("train").iter_torch_batches(batch_size=BATCH)
    args = arguments(folder / "run", max_steps=SAMPLES // BATCH // 2, save_strategy="no")
    trainer = prepare_trainer(Noting(classifier(), args, train_dataset=shard))
    trainer.train()
    told = {"given": trainer.given, "steps": trainer.state.global_step}
    (folder / f"rank{args.process_index}.json").write_text(json.dumps(told))
