"""What tests of runs in object storage share."""

import json
import time
from pathlib import Path

import pytest

from oneloop import Trainer, TrainerCallback, TrainingArguments
from oneloop.errors import CheckpointError
from oneloop.storage import remote_checkpoints, staging
from oneloop.storage.remote import RemoteDirectory
from tests.backends.support import DEVICE, available, rows
from tests.storage.faulty import FaultyFileSystem

URL = "faulty://bucket/run"
RUN = {
    "per_device_train_batch_size": 4,
    "max_steps": 6,
    "save_strategy": "steps",
    "save_steps": 2,
    "logging_steps": 1,
    "report_to": "none",
    "disable_tqdm": True,
    "device": DEVICE,
    "save_total_limit": 1,
}


def names(folder="/bucket/run", below=""):
    """The objects in the storage, by their names in the URL."""
    found = [path.removeprefix(f"{folder}/") for path in FaultyFileSystem.store]
    return sorted(name for name in found if name.startswith(below))


def checkpoints():
    return sorted({name.partition("/")[0] for name in names(below="checkpoint-")})


def made(url, kit=None, trainer_class=Trainer, callbacks=None, eval_dataset=None, score=None, **given):
    """A Trainer that saves to a URL or a directory, with these arguments."""
    args = TrainingArguments(url, **RUN | given)
    data = {"train_dataset": rows(16), "eval_dataset": eval_dataset, "compute_metrics": score}
    return trainer_class((kit or available()[0]).classifier(), args, callbacks=callbacks, **data)


def whole(folder, url=URL):
    """The steps of complete checkpoints in the storage: each is downloaded, and its checksums are compared."""
    remote, found = RemoteDirectory(url), []
    for name in remote_checkpoints.complete(remote_checkpoints.manifests(remote)):
        try:
            staging.download(remote, name, folder)
        except CheckpointError:
            continue
        found.append(int(name.rpartition("-")[2]))
    return sorted(found)


def events(trainer):
    """Those in run.jsonl; a slow disk adds that a save has waited."""
    path = Path(trainer.args.output_dir, "run.jsonl")
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [each for each in found if each["event"] != "save_waited"]


class At(TrainerCallback):
    """Calls a function after a step."""

    def __init__(self, step, act):
        self.step, self.act = step, act

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.act()


class Dies(Exception):
    pass


def die():
    raise Dies


def interrupted(make, *given, at=5, **options):
    """A run that ends after a step with an error."""
    trainer = make(*given, callbacks=[At(at, die)], **options)
    with pytest.raises(Dies):
        trainer.train()
    return trainer


def wait_for(expected):
    deadline = time.monotonic() + 30
    while [n for n in expected if f"{n}/manifest.json" not in names()] and time.monotonic() < deadline:
        time.sleep(0.005)
    assert [f"{n}/manifest.json" for n in expected if f"{n}/manifest.json" in names()]
