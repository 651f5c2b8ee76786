"""A randomised search: runs that are interrupted up to three times end as the ones that are not.

    python -m tests.checkpoint.interrupted_runs [torch|paddle|mindspore] [runs] [first seed] [kind of data]

A seed decides the kind of data (interrupted_data.py), the arguments, and where and how the run is interrupted: by a
signal, which saves the step and may leave an evaluation to the resumed run, or by an exception, which saves nothing.
Compared are the weights, everything in the last checkpoint, the logs, and the samples of each step. All processes of a
run are played in this one: a Trainer is built anew for each, and nothing of the one before is kept but its files.

What is found is printed with its seed. `play(Course(...))` plays one course; a test of a case that was found gives the
fields that matter.
"""

import contextlib
import io
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from oneloop import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments
from oneloop.distributed.preemption import Preempted
from tests.backends.support import DEVICE, kit_module
from tests.checkpoint.interrupted_data import KINDS
from tests.checkpoint.job import NoisyCollator, NoisyTexts, Walk, digest, result, without_times

EVENTS = ("on_epoch_begin", "on_step_begin", "on_step_end", "on_epoch_end", "on_evaluate", "on_log", "on_save")
EVALUATED = 5  # samples of the evaluation


@dataclass(frozen=True)
class Interruption:
    """At the n-th time that a process gets there: an event of callbacks, or "evaluation", a sample of it."""

    where: str
    number: int
    how: str = "signal"  # "abort": an exception; "kill": SIGKILL


@dataclass
class Course:
    kind: str = "map"
    framework: str = "torch"
    samples: int = 11
    batch: int = 2
    options: dict = field(default_factory=dict)  # of TrainingArguments
    patience: int = 100
    stops_epoch: int = 0  # a step after which a callback ends the epoch
    collator_state: bool = False
    interruptions: tuple = ()


def draw(seed, framework="torch", kind=None):
    """The course of this seed."""
    source = random.Random(f"{framework} {seed}")
    kind = kind or source.choice(sorted(KINDS[framework]))
    batch, accumulation = source.choice([2, 2, 3]), source.choice([1, 2, 2, 3, 4])
    samples = source.choice([count for count in range(5, 15) if count % batch != 1])  # the model has a BatchNorm
    per_epoch = -(-samples // (batch * accumulation))
    if kind == "long sampler":
        samples -= samples % batch  # its last batch is whole
    steps = source.randint(3, 3 * per_epoch + 2)
    options = {
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": accumulation,
        "max_steps": min(steps, 14),
        "logging_strategy": source.choice(["steps", "steps", "epoch"]),
        "logging_steps": source.choice([1, 2, 3]),
        "eval_strategy": source.choice(["steps", "steps", "epoch"]),
        "eval_steps": source.choice([1, 1, 2, 3]),
        "dataloader_drop_last": source.random() < 0.15 and samples > 2 * batch,
        "save_total_limit": source.choice([None, None, 1, 2]),
    }
    options["save_strategy"], options["save_steps"] = options["eval_strategy"], options["eval_steps"]
    options["load_best_model_at_end"] = source.random() < 0.75
    if not options["load_best_model_at_end"]:
        options["save_strategy"] = source.choice(["steps", "epoch", "best"])
        options["save_steps"] = source.choice([1, 2, 3, 100])
        options["metric_for_best_model"] = source.choice(["loss", None])
        if options["save_strategy"] == "best":
            options["metric_for_best_model"] = "loss"
    if framework == "torch" and source.random() < 0.25:
        options["data_order"] = "transformers"
    if kind.startswith("map") and source.random() < 0.4:
        options["group_by_length"] = True
    if source.random() < 0.1:
        options |= {"lr_scheduler_type": "reduce_lr_on_plateau", "metric_for_best_model": "loss"}
    if options.get("metric_for_best_model") != "loss" and source.random() < 0.4:
        options |= {"metric_for_best_model": "step", "greater_is_better": True}
    if source.random() < 0.25:
        options |= {"max_steps": -1, "num_train_epochs": source.choice([1, 2, 3])}
        if not kind.startswith(("map", "sampler", "lazy", "torch ")) or "Iterable" in kind:
            options["lr_scheduler_type"] = "constant"  # the number of steps is not known
    interruptions = []
    for _ in range(source.choice([1, 2, 2, 3])):
        where = source.choice([*EVENTS, "evaluation", "evaluation", "evaluation", "evaluation"])
        most = 3 * EVALUATED if where == "evaluation" else 8
        how = "abort" if source.random() < 0.25 else "signal"
        interruptions.append(Interruption(where, source.randint(1, most), how))
    return Course(
        kind,
        framework,
        samples,
        batch,
        options,
        patience=source.choice([100, 100, 2]) if options["load_best_model_at_end"] else 100,
        # A stream that keeps its state starts the epoch after one that was cut short anew, or not: as it likes.
        stops_epoch=0 if kind.startswith("stream with") else source.choice([0, 0, 0, 2, 3]),
        collator_state=source.random() < 0.2,
        interruptions=tuple(interruptions),
    )


class Aborted(BaseException):
    """Ends a run as if it was killed: nothing catches it, and nothing is saved."""


class Interrupting(TrainerCallback):
    """Interrupts when an event, or the samples of the evaluation, have been counted up to the number."""

    def __init__(self, interruption):
        self.wanted, self.count = interruption, 0

    def at(self, where):
        if self.wanted is None or where != self.wanted.where:
            return
        self.count += 1
        if self.count == self.wanted.number:
            if self.wanted.how == "abort":
                raise Aborted
            os.kill(os.getpid(), signal.SIGKILL if self.wanted.how == "kill" else signal.SIGTERM)


def _at(event):
    return lambda self, args, state, control, **kwargs: self.at(event)


for _event in EVENTS:
    setattr(Interrupting, _event, _at(_event))


class Evaluated(NoisyTexts):
    """The evaluation's samples."""

    def __init__(self, kit, interrupting):
        super().__init__(EVALUATED, 6, kit)
        self.interrupting = interrupting

    def __getitem__(self, index):
        self.interrupting.at("evaluation")
        return super().__getitem__(index)


class CollatorWithState(NoisyCollator):
    """Draws from a generator of its own as well, in training and in evaluations."""

    def __init__(self, kit):
        super().__init__(kit)
        self.drawn = 0

    def __call__(self, samples):
        self.drawn += 1
        changed = [s | {"input_ids": [*s["input_ids"], 1 + self.drawn * 7 % 19]} for s in samples]
        return super().__call__(changed)

    def state_dict(self):
        return {"drawn": self.drawn}

    def load_state_dict(self, state):
        self.drawn = state["drawn"]


class StopsEpoch(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            control.should_epoch_stop = True
        return control


class Recording(Trainer):
    """Keeps a digest of the micro-batches of each step. By eval_step every evaluation is the best."""

    def evaluation_loop(self, *args, **kwargs):
        found = super().evaluation_loop(*args, **kwargs)
        found.metrics["eval_step"] = self.state.global_step
        return found

    def training_step(self, model, inputs, num_items_in_batch=None):
        step = self.state.global_step + 1
        if step != self.recorded_step:
            self.recorded[step], self.recorded_step = [], step
        parts = [np.array(inputs[name]).tobytes() for name in sorted(inputs)]
        self.recorded[step].append(digest(b"|".join(parts))[:12])
        return super().training_step(model, inputs, num_items_in_batch)


def build(course, output, recorded, interruption=None):
    """The Trainer of one process of the run."""
    kit = kit_module(course.framework).Job()
    given = KINDS[course.framework][course.kind](course, kit)
    data, own = given.pop("data"), given.pop("options", {})
    interrupting = Interrupting(interruption)
    options = {
        "per_device_eval_batch_size": 2,
        "per_device_train_batch_size": course.batch,
        "learning_rate": 0.05,
        "lr_scheduler_type": "cosine",
        "seed": 11,
        "report_to": "none",
        "disable_tqdm": True,
        "device": DEVICE,
    }
    callbacks = [Walk(0.5), interrupting]
    if course.options.get("load_best_model_at_end"):
        callbacks.insert(0, EarlyStoppingCallback(course.patience))
    if course.stops_epoch:
        callbacks.insert(0, StopsEpoch(course.stops_epoch))
    members = given | {"recorded": recorded, "recorded_step": None}
    return type("Recording", (Recording,), members)(
        kit.model(),
        TrainingArguments(output_dir=str(output), **options | course.options | own),
        (CollatorWithState if course.collator_state else NoisyCollator)(kit),
        data,
        Evaluated(kit, interrupting),
        callbacks=callbacks,
    )


def play(course, output):
    """What the run of this course came to, and how each of its processes ended."""
    recorded, ends = {}, []
    for number, interruption in enumerate((*course.interruptions, None)):
        trainer = build(course, output, recorded, interruption)
        try:
            trainer.train(resume_from_checkpoint=bool(number))
        except (Preempted, Aborted) as error:
            ends.append(f"{type(error).__name__} at step {trainer.state.global_step}")
            continue
        ends.append("complete")
        break
    drawn = [random.random(), np.random.rand(), kit_module(course.framework).Job().draw()]
    found = result(trainer, output)
    found["log.jsonl"] = logged(Path(output) / "log.jsonl", found.pop("run_id"))
    return found | {"samples": {step: recorded[step] for step in sorted(recorded)}, "drawn": drawn}, ends


def logged(path, run_id):
    """The lines of the log that this run wrote, without times."""
    lines = map(json.loads, path.read_text().splitlines() if path.exists() else [])
    return [without_times(line) | {"run": None} for line in lines if line["run"] == run_id]


def comparable(whole, broken):
    """Without what may differ in the last checkpoint: a signal saves steps that were not to be saved, and a step that
    was saved by one is not saved again for an evaluation that it postponed."""
    for found in (whole, broken):
        if found["contents"] is not None:
            found["contents"]["trainer_state.json"]["stateful_callbacks"].pop("TrainerControl")
    if whole.pop("last") != broken.pop("last"):
        whole["contents"] = broken["contents"] = None
    elif whole["contents"] is not None and any(broken["contents"]["run.json"]["position"]["pending"].values()):
        for found in (whole, broken):
            found["contents"] = {
                name: found["contents"][name] for name in ("model.safetensors", "optimizer.safetensors")
            }
    return whole, broken


def difference(course):
    """What of an interrupted run differs from the uninterrupted one, and how its processes ended."""
    folder = Path(tempfile.mkdtemp(prefix="interrupted-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    try:
        with quiet():
            whole, _ = play(Course(**vars(course) | {"interruptions": ()}), folder / "whole")
            broken, ends = play(course, folder / "broken")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return compared(*comparable(whole, broken)), ends


def compared(whole, broken, name=""):
    """The names of the values that differ."""
    if isinstance(whole, dict) and isinstance(broken, dict):
        keys = {str(key): key for key in (*whole, *broken)}.values()
        return [found for key in keys for found in compared(whole.get(key), broken.get(key), f"{name}/{key}")]
    return [] if whole == broken else [f"{name}: {str(whole)[:80]} != {str(broken)[:80]}"]


@contextlib.contextmanager
def quiet():
    """No messages, and no waiting for the disk, which has no part in what is tested."""
    fsync, os.fsync = os.fsync, lambda descriptor: None
    logging.disable(logging.CRITICAL)
    stderr, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)  # the handler of signals writes to it directly
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(null)
        os.fsync = fsync
        logging.disable(logging.NOTSET)


def main(framework="torch", runs="100", first="0", kind=None):
    begun, ends, found = time.monotonic(), Counter(), 0
    for seed in range(int(first), int(first) + int(runs)):
        course = draw(seed, framework, kind)
        try:
            wrong, ended = difference(course)
        except Exception as error:
            wrong, ended = [f"{type(error).__name__}: {error}"], []
        ends.update(end.split(" ")[0] for end in ended)
        if wrong:
            found += 1
            print(f"seed {seed}: {course}\n  {', '.join(ended)}", *wrong[:6], sep="\n  ", flush=True)
    parts = ", ".join(f"{count} {name}" for name, count in sorted(ends.items()))
    print(f"{runs} runs on {framework} in {time.monotonic() - begun:.0f} s ({parts}): {found} differ")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
