"""Runs with loss spikes that are interrupted at random places, beside the same runs that were never interrupted.

    python -m tests.trainer.spike_search --framework torch --runs 200 --seed 1

Each case is drawn from a seed: the data, the epochs, what is saved and evaluated, the steps that spike, and up to three
interruptions. What an interrupted run has come to is compared with the unbroken one, and what the unbroken one has
trained on with a run that has no spike at all.
"""

import argparse
import hashlib
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from oneloop import EarlyStoppingCallback, ExportableState, Mixture, Trainer, TrainerCallback, TrainingArguments
from oneloop.errors import LossSpikeError
from tests.backends.support import DEVICE, kit_module, rows
from tests.checkpoint.children import differences
from tests.checkpoint.job import contents, without_times
from tests.internals import run_id

WINDOW = 8  # the smallest loss_spike_window
DATA = ("rows", "noisy rows", "stream", "stream with a state", "mixture", "packed")
KINDS = ("signal", "signal in an evaluation", "signal at the end of an epoch", "crash", "saved, then a crash", "saved")


class Crash(Exception):
    """The run dies."""


# -- data


class Noisy:
    """Rows that each look changes by numbers from Python and NumPy. The first feature tells which row it is."""

    def __init__(self, count, is_noisy):
        self.rows, self.is_noisy = rows(count), is_noisy
        for index, row in enumerate(self.rows):
            row["x"][0] = np.float32(index / 64)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        if not self.is_noisy:
            return row
        x = row["x"].copy()
        x[1] += np.float32(random.random() * 0.1)
        x[2] += np.float32(np.random.rand() * 0.1)
        return row | {"x": x}


class Stream:
    """The same, one after the other; another part of them in each epoch."""

    def __init__(self, count):
        self.data, self.epoch = Noisy(count, True), 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def _order(self):
        order = np.random.RandomState(self.epoch).permutation(len(self.data))
        return order[: len(order) - self.epoch % 3].tolist()

    def __iter__(self):
        for index in self._order():
            yield self.data[index]


class StatefulStream(Stream):
    """One that knows its place."""

    place = first = 0

    def __iter__(self):
        self.place, self.first = self.first, 0
        for index in self._order()[self.place :]:
            self.place += 1
            yield self.data[index]

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.first = state["place"]


class Documents:
    """Texts of many lengths for a language model. The words tell which text it is."""

    def __init__(self, count, seed):
        source = np.random.RandomState(seed)
        self.texts = [source.randint(1, 17, 3 + int(source.randint(9))).tolist() for _ in range(count)]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return {"input_ids": self.texts[index]}


# -- one case


@dataclass(frozen=True)
class Interruption:
    kind: str
    step: int


@dataclass(frozen=True)
class Case:
    """A run, and where it is interrupted: each of the interruptions hits once, in this order."""

    data: str
    samples: int
    spikes: tuple[int, ...]
    given: dict
    patience: int | None
    interruptions: tuple[Interruption, ...] = ()

    def __str__(self):
        hits = ", ".join(f"{each.kind} {each.step}" for each in self.interruptions)
        options = " ".join(f"{key}={value}" for key, value in self.given.items())
        return f"{self.data} {self.samples} spikes={self.spikes} patience={self.patience} [{hits}] {options}"


def drawn(choose, kinds=DATA):
    """A case, without interruptions."""
    data, accumulation = choose.choice(kinds), choose.choice([1, 1, 2, 3])
    steps_per_epoch = choose.choice([4, 5, 7, 9])
    # The last update of an epoch may have fewer micro-batches, and the last micro-batch fewer samples.
    micro_batches = max(2, steps_per_epoch * accumulation - choose.randrange(accumulation))
    samples = micro_batches * 3 - choose.randrange(3)
    steps = choose.randint(14, 26)
    saves = choose.choice(["steps", "steps", "steps", "epoch", "best"])
    evaluates = choose.choice(["steps", "epoch"]) if saves == "best" else choose.choice(["no", "steps", "epoch"])
    save_steps = choose.randint(2, 8)
    loads_best = evaluates != "no" and saves != "epoch" and choose.random() < 0.4
    given = {
        "gradient_accumulation_steps": accumulation,
        "max_steps": steps,
        "save_strategy": saves,
        "save_steps": save_steps,
        "eval_strategy": evaluates,
        "eval_steps": choose.choice([save_steps, choose.randint(2, 6)]) if not loads_best else save_steps,
        "logging_strategy": choose.choice(["steps", "steps", "epoch"]),
        "logging_steps": choose.choice([1, 2, 5, 100]),
        "loss_spike_skip_steps": choose.choice([1, 1, 2, 3, 5]),
        "loss_spike_limit": choose.choice([1, 3]),
        "save_total_limit": choose.choice([None, None, 1, 2]),
        "save_async": choose.random() < 0.5,
    }
    if evaluates != "no":
        given["load_best_model_at_end"] = loads_best
        given["metric_for_best_model"] = choose.choice(["loss", None]) if not loads_best else "loss"
    if choose.random() < 0.2:
        given["ema_decay"] = 0.9
    if evaluates != "no" and choose.random() < 0.3:
        given |= {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5}}
    if evaluates == "epoch" and loads_best:
        given["save_strategy"] = choose.choice(["steps", "best"])
    places = list(range(WINDOW + 1, steps + 1))
    firsts = [step for step in places if step % steps_per_epoch == 1]  # of an epoch
    spikes = {choose.choice(firsts if firsts and choose.random() < 0.4 else places)}
    if choose.random() < 0.4:
        spikes |= {choose.choice([min(steps, max(spikes) + 1), choose.choice(places)])}
    patience = choose.choice([None, 2]) if evaluates != "no" else None
    if saves == "best" or patience is not None:
        given["metric_for_best_model"] = "loss"
    return Case(data, samples, tuple(sorted(spikes)), given, patience)


def interrupted(choose, case):
    """The same case with one to three interruptions."""
    steps, near = case.given["max_steps"], max(1, min(case.spikes) - 4)
    found = []
    for _ in range(choose.randint(1, 3)):
        step = choose.randint(1, steps) if choose.random() < 0.4 else choose.randint(near, min(steps, near + 8))
        found.append(Interruption(choose.choice(KINDS), step))
    return replace(case, interruptions=tuple(found))


# -- what a run does and has come to


class Course:
    """What was trained on in each step of the course that the run has kept; steps that are undone are forgotten."""

    def __init__(self):
        self.batches, self.epochs, self.pending, self.dying = {}, {}, [], False

    def begin(self, step):
        for seen in (self.batches, self.epochs):
            for later in [known for known in seen if known > step]:
                del seen[later]

    def hits(self, kind, step):
        """Whether an interruption of this kind is due; it hits once. A crash hits at its very step, maybe when the run
        has returned to before it."""
        due = self.pending[0] if self.pending and self.pending[0].kind == kind else None
        if due is not None and (step == due.step if kind == "crash" else step >= due.step):
            self.pending.pop(0)
            return True
        return False


class Follow(TrainerCallback):
    """Keeps the course, and interrupts it."""

    def __init__(self, course):
        self.course = course

    def on_train_begin(self, args, state, control, **kwargs):
        self.course.begin(state.global_step)

    def on_step_end(self, args, state, control, **kwargs):
        step, course = state.global_step, self.course
        course.epochs[step] = state.epoch
        if course.dying:
            raise Crash
        if course.hits("signal", step):
            os.kill(os.getpid(), signal.SIGTERM)
        if course.hits("saved", step):
            control.should_save = True
        if course.hits("saved, then a crash", step):
            control.should_save = course.dying = True
        if course.hits("crash", step):
            raise Crash

    def on_epoch_end(self, args, state, control, **kwargs):
        if self.course.hits("signal at the end of an epoch", state.global_step):
            os.kill(os.getpid(), signal.SIGTERM)


class Counter(TrainerCallback, ExportableState):
    """A callback with a state, which a return has to put back."""

    def __init__(self):
        self.steps = self.evaluations = 0

    def on_step_end(self, args, state, control, **kwargs):
        self.steps += 1

    def on_evaluate(self, args, state, control, **kwargs):
        self.evaluations += 1

    def state(self):
        return {"args": {}, "attributes": {"steps": self.steps, "evaluations": self.evaluations}}


class Spiky(Trainer):
    """Its loss is very large in some steps; keeps what it is trained on."""

    course, spikes = None, ()

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        found = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        is_high = not return_outputs and self.state.global_step + 1 in self.spikes
        return found * 1e4 if is_high else found

    def training_step(self, model, inputs, num_items_in_batch=None):
        seen = inputs["x"][:, 0] if "x" in inputs else inputs["input_ids"]
        ids = np.asarray(seen.asnumpy() if hasattr(seen, "asnumpy") else seen.numpy()).tolist()
        self.course.batches.setdefault(self.state.global_step + 1, []).append(ids)
        return super().training_step(model, inputs, num_items_in_batch)

    def prediction_step(self, *given, **named):
        if self.course.hits("signal in an evaluation", self.state.global_step):
            os.kill(os.getpid(), signal.SIGTERM)
        return super().prediction_step(*given, **named)


def build(framework, case, folder, course):
    kit = kit_module(framework).Kit()
    options = {
        "per_device_train_batch_size": 3,
        "per_device_eval_batch_size": 4,
        "learning_rate": 0.02,
        "loss_spike": "rollback" if case.spikes else "off",
        "loss_spike_window": WINDOW,
        "loss_spike_threshold": 200.0,  # batches are small, and only what is planted should be a spike
        "report_to": "none",
        "disable_tqdm": True,
        "log_level": "error",
        "device": DEVICE,
    }
    callbacks = [Follow(course), Counter()]
    callbacks += [] if case.patience is None else [EarlyStoppingCallback(case.patience)]
    options |= case.given
    cls = type("Spiky", (Spiky,), {"course": course, "spikes": case.spikes})
    if case.data == "packed":
        data = Mixture({"a": Documents(case.samples, 1), "b": Documents(5, 2)}, [0.7, 0.3], stop=2 * case.samples)
        model, evaluated = kit.language_model(), Documents(5, 3)
        options |= {"packing": True, "max_length": 8}
    else:
        model, evaluated = kit.classifier(dropout=0.3), rows(7, 1)
        parts = {"a": Noisy(case.samples, True), "b": Noisy(6, False)}
        data = {
            "rows": lambda: Noisy(case.samples, False),
            "noisy rows": lambda: Noisy(case.samples, True),
            "stream": lambda: Stream(case.samples),
            "stream with a state": lambda: StatefulStream(case.samples),
            "mixture": lambda: Mixture(parts, [0.6, 0.4], stop=case.samples),
        }[case.data]()
    args = TrainingArguments(output_dir=str(folder), **options)
    return cls(model, args, train_dataset=data, eval_dataset=evaluated, callbacks=callbacks), kit


def played(framework, case, folder):
    """Run a case, again and again until it ends. What it has come to, as JSON."""
    course = Course()
    course.pending = list(case.interruptions)
    lives = 0
    while True:
        lives += 1
        assert lives <= len(case.interruptions) + 1, "the run does not end"
        course.dying = False
        trainer, kit = build(framework, case, folder, course)
        has_checkpoint = any(Path(folder).glob("checkpoint-*"))
        if not has_checkpoint:
            course.begin(0)
        error = None
        try:
            trainer.train(resume_from_checkpoint=True if has_checkpoint else None)
        except (Crash, SystemExit):
            continue
        except LossSpikeError as raised:
            error = str(raised).split(":")[0]
        hit = len(case.interruptions) - len(course.pending)
        return outcome(trainer, kit, folder, course, error) | {"hit": hit}


def outcome(trainer, kit, folder, course, error):
    found = {"error": error, "rollbacks": [event["left_out"] for event in events(folder, "rolled_back")]}
    if error is not None:  # how far the run had come when the spike was read may differ
        return found | {"batches": {}, "epochs": {}}
    found |= {"batches": course.batches, "epochs": course.epochs}
    weights = kit.weights(trainer.model)
    found["weights"] = hashlib.sha256(b"".join(weights[name].tobytes() for name in sorted(weights))).hexdigest()
    found["history"] = without_times(trainer.state.log_history)
    found["best"] = [trainer.state.best_metric, trainer.state.best_global_step]
    lines = (Path(folder) / "log.jsonl").read_text().splitlines()
    own = run_id(trainer)
    found["log"] = [without_times(line) | {"run": 0} for line in map(json.loads, lines) if line["run"] == own]
    last = Path(folder) / f"checkpoint-{trainer.state.global_step}"
    found["last"] = comparable(contents(last)) if last.is_dir() else None
    if found["last"] is not None and any(found["last"]["run.json"]["position"]["pending"].values()):
        found["last"] = None  # saved before the evaluation, which a resume would repeat
    return found


def comparable(checkpoint):
    """Without what may differ: to which checkpoints the run has returned; at the end of an epoch, whether the next one
    has been entered; and which checkpoint is the best one, as a signal or a callback may have saved another one."""
    run, state = checkpoint["run.json"], checkpoint["trainer_state.json"]
    for rollback in run.get("spikes", {}).get("rollbacks", ()):
        del rollback["checkpoint"]
    position = run["position"]
    if position["epoch_ended"]:
        position |= {"epoch": position["epoch"] + 1, "step_in_epoch": 0, "epoch_ended": False}
    if not position["step_in_epoch"]:  # the data begin anew
        del position["data"]
    del state["stateful_callbacks"]["TrainerControl"], state["best_model_checkpoint"]
    return checkpoint


def events(folder, kind):
    found = map(json.loads, (Path(folder) / "run.jsonl").read_text().splitlines())
    return [event for event in found if event["event"] == kind]


@dataclass
class Tally:
    """What a search has played."""

    runs: int = 0
    interruptions: int = 0
    returns: int = 0

    def add(self, found):
        self.runs += 1
        self.interruptions += found["hit"]
        self.returns += len(found["rollbacks"])


def wrong_with(framework, case, unbroken, folder, tally=None):
    """What is different in the interrupted case."""
    found = json.loads(json.dumps(played(framework, case, folder)))
    if tally is not None:
        tally.add(found)
    kept = {key: value for key, value in found.items() if key not in ("hit", "rollbacks")}
    if found.get("last") is None or unbroken.get("last") is None:  # only a signal has asked for it
        kept.pop("last", None)
    return differences({key: unbroken.get(key) for key in kept}, kept)


def unbroken_run(framework, case, folder):
    return json.loads(json.dumps(played(framework, case, folder)))


def wrong_with_unbroken(case, clean, unbroken):
    """The samples and epochs of the steps that are not left out are those of a run without spikes."""
    left_out = {step for first, last in unbroken["rollbacks"] for step in range(first, last + 1)}
    wrong = []
    for step, epoch in unbroken["epochs"].items():
        if clean["epochs"].get(step, epoch) != epoch:
            wrong.append(f"step {step} is in epoch {epoch} and not {clean['epochs'][step]}")
    for step, batches in unbroken["batches"].items():
        if clean["batches"].get(step, batches) != batches:
            wrong.append(f"step {step} has other samples")
    wrong += [f"step {step} was trained" for step in left_out if str(step) in unbroken["batches"]]
    expected = {step for step in clean["batches"] if int(step) not in left_out}
    is_whole = unbroken["error"] is None and case.patience is None
    if is_whole and expected != set(unbroken["batches"]):
        wrong.append(f"trained {sorted(map(int, unbroken['batches']))}")
    return wrong


def searched(framework, seed, tally, runs_each=4, kinds=DATA):
    """One case: without spikes, unbroken, and interrupted in some ways. Returns what was wrong."""
    choose, wrong = random.Random(seed), []
    case = drawn(choose, kinds)
    folder = Path(tempfile.mkdtemp(prefix="spikes-"))
    try:
        clean = unbroken_run(framework, replace(case, spikes=(), patience=None), folder / "clean")
        unbroken = unbroken_run(framework, case, folder / "unbroken")
        tally.add(clean)
        tally.add(unbroken)
        wrong += [f"{seed}: {case}: unbroken: {each}" for each in wrong_with_unbroken(case, clean, unbroken)[:2]]
        for number in range(runs_each):
            broken = interrupted(choose, case)
            for each in wrong_with(framework, broken, unbroken, folder / str(number), tally)[:2]:
                wrong.append(f"{seed}: {broken}: {each}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return wrong


def main(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--framework", default="torch")
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", nargs="*", default=DATA)
    given = parser.parse_args(argv)
    logging.disable(logging.ERROR)
    os.fsync = lambda descriptor: None
    tally, seed, found, began = Tally(), given.seed, 0, time.monotonic()
    while tally.runs < given.runs:
        wrong = searched(given.framework, seed, tally, kinds=given.data)
        seed, found = seed + 1, found + bool(wrong)
        for each in wrong:
            print(each, flush=True)
    seconds = time.monotonic() - began
    print(f"{tally} of {seed - given.seed} cases in {seconds:.0f} s; differences in {found} cases")
    return found > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
