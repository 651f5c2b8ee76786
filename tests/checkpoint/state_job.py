"""A run that has something of every kind of state, for test_every_field.py.

    python -m tests.checkpoint.state_job FOLDER train|again

On several processes: `train` saves step SAVED of a run, and leaves what the objects of the run held in the step after
it, `again` resumes the checkpoint in FOLDER/changed and saves at once, before a step. The framework is that of the
variable FRAMEWORK.
"""

import contextlib
import hashlib
import json
import os
import re
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path, PurePath

import numpy as np

from oneloop import EarlyStoppingCallback, Mixture, Trainer, TrainerCallback, TrainingArguments
from oneloop.distributed.world import world
from tests.backends.support import kit_module, rows
from tests.internals import backend_of, engine_of, wait_for_saves

SAVED, LAST = 5, 10
BAD = (4, 5)  # steps whose loss is NaN, so that a row of them is interrupted
RUN = {
    "max_steps": LAST,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 3,
    "logging_steps": 3,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "save_strategy": "steps",
    "save_steps": SAVED,
    "metric_for_best_model": "loss",
    "warmup_steps": 2,
    "ema_decay": 0.9,
    "loss_spike": "rollback",
    "loss_spike_window": 8,
    "loss_spike_threshold": 50.0,
    "nonfinite": "skip",
    "include_num_input_tokens_seen": "all",
    "mixture_metrics": "loss",
    "report_to": "none",
    "disable_tqdm": True,
    "device": "cpu",
    "ddp_timeout": 60,
}


class Poisoned(Trainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        self.log_metric("first", inputs["x"][0, 0] * 1, weight=3)
        if self.state.global_step + 1 in BAD:
            inputs = inputs | {"x": inputs["x"] * float("nan")}
        return super().training_step(model, inputs, num_items_in_batch)


class Counting(TrainerCallback):
    """With a state of its own."""

    def __init__(self):
        self.steps = 0

    def on_step_end(self, args, state, control, **kwargs):
        self.steps += 1

    def state(self):
        return {"args": {}, "attributes": {"steps": self.steps}}

    @classmethod
    def from_state(cls, state):
        made = cls()
        made.steps = state["attributes"]["steps"]
        return made


class Walks(TrainerCallback):
    """What the objects of the run hold when the step after SAVED begins."""

    def __init__(self):
        self.trainer = self.fields = None

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == SAVED:
            wait_for_saves(self.trainer)
            self.fields = fields_of(self.trainer)
            raise Stop


class Stop(Exception):
    pass


class SavesAgain(TrainerCallback):
    trainer = None

    def on_train_begin(self, args, state, control, **kwargs):
        self.trainer._save_checkpoint(self.trainer.model, None)
        wait_for_saves(self.trainer)
        raise Stop


def trainer_of(kit, output, callback, **more):
    args = TrainingArguments(str(output), **RUN | more)
    data = Mixture({"a": rows(17), "b": rows(9, 1)}, [0.6, 0.4], stop=24)
    callbacks = [EarlyStoppingCallback(50), Counting(), callback]
    model = kit.classifier(dropout=0.1, norm=True)
    callback.trainer = Poisoned(model, args, train_dataset=data, eval_dataset=rows(6, 2), callbacks=callbacks)
    return callback.trainer


# -- the objects of a run

# Whose attributes are state of a run: its parts, its position, callbacks, engine. What lives as long as one process,
# such as loaders, arguments, the writer of checkpoints and signal handlers, is not looked into.
STATE = re.compile(
    r"oneloop\.(trainer\.(?!run|trainer|core|modes|model_info|events|loss$|part$)|state|steps|callbacks|backends\.\w+\.engine)"
    r"|oneloop\.backends\._common\.(engines|scaler)|tests\.checkpoint|__main__"
)


def fields_of(trainer):
    """{path: value} of the attributes of all objects with state: plain values as they are, tensors by a digest,
    anything else by its class."""
    tensors, found, seen = backend_of(trainer).tensors, {}, {id(trainer)}

    def visit(value, path):
        if value is None or isinstance(value, (bool, int, float, str, bytes, PurePath, np.generic)):
            found[path] = repr(value)
        elif isinstance(value, np.ndarray):
            found[path] = digest(value)
        elif tensors.is_tensor(value):
            found[path] = digest(tensors.to_numpy(value))
        elif isinstance(value, Mapping):
            found[f"{path}{{}}"] = repr(sorted(map(str, value)))
            for key, inner in value.items():
                visit(inner, f"{path}[{key}]")
        elif isinstance(value, (list, tuple, deque)):
            found[f"{path}[]"] = repr(len(value))
            for number, inner in enumerate(value):
                visit(inner, f"{path}[{number}]")
        elif isinstance(value, (set, frozenset)):
            found[path] = repr(sorted(map(str, value)))
        elif hasattr(value, "__dict__") and STATE.match(type(value).__module__):
            if id(value) not in seen:
                seen.add(id(value))
                found[path] = type(value).__name__
                for name, inner in vars(value).items():
                    visit(inner, f"{path}.{name}")
        else:
            found[path] = getattr(type(value), "__name__", "")

    run = trainer._oneloop.run
    for part in run.parts:
        visit(part, part.name)
    for name in ("position", "epochs", "step_end", "sync"):
        visit(getattr(run, name), name)
    visit(engine_of(trainer), "engine")
    visit(trainer.state, "state")
    visit(trainer.control, "control")
    visit(trainer.callback_handler.callbacks, "callbacks")
    return found


def digest(array):
    return f"{array.dtype}{array.shape}{hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:12]}"


def walk(kit, output, checkpoint=None):
    """Train up to there; the fields of the step after SAVED."""
    walks = Walks()
    with contextlib.suppress(Stop):
        trainer_of(kit, output, walks).train(resume_from_checkpoint=checkpoint and str(checkpoint))
    return walks.fields


def save_again(kit, output, checkpoint):
    """Resume a checkpoint and save at once."""
    try:
        trainer_of(kit, output, SavesAgain(), save_steps=100).train(resume_from_checkpoint=str(checkpoint))
    except Stop:
        return
    raise AssertionError("it has trained")


def main(folder, action):
    kit, folder = kit_module(os.environ.get("FRAMEWORK", "torch")).Kit(), Path(folder)
    if action == "again":
        save_again(kit, folder / f"again-{world().size}", folder / "changed" / f"checkpoint-{SAVED}")
        return
    fields = {"whole": walk(kit, folder / "run")}
    fields["resumed"] = walk(kit, folder / "run", folder / "run" / f"checkpoint-{SAVED}")
    (folder / f"fields-{world().rank}.json").write_text(json.dumps(fields))


if __name__ == "__main__":
    main(*sys.argv[1:])
