"""Runs whose uploads are slower than their saves, fail, and are cut off: what each leaves in the storage, and what a
resume on an empty machine makes of it.

A run of a case trains while its uploads get a random number of requests per step, so that a seed gives about the same
order every time, without a clock.
"""

import hashlib
import json
import random
import shutil
import threading
from pathlib import PurePosixPath

from oneloop import TrainerCallback
from tests.backends.support import available, rows, same_bytes
from tests.storage.faulty import FaultyFileSystem
from tests.storage.support import made

ROOT = "/bucket/run/"
STEPS = 8


class Paced(TrainerCallback):
    """Gives the uploads some requests after each step, and all that they need at the end."""

    def __init__(self, chance):
        self.chance = chance
        self.slow = chance.choice([2, 6, 15])  # requests in a step, at most
        self.outage = set(chance.sample(range(1, STEPS + 1), 2)) if chance.random() < 0.4 else set()
        self.broken = f"checkpoint-{chance.randint(1, STEPS)}/" if chance.random() < 0.2 else None
        self.permits, self.is_training, self.is_down = threading.Semaphore(0), False, False

    def fault(self, kind, path):
        if not threading.current_thread().name.startswith(("oneloop-upload", "oneloop-transfer")):
            return
        if self.is_training:
            self.permits.acquire(timeout=20)
        if self.is_down and kind != "ls":
            raise ConnectionError("connection reset by peer")
        if self.broken is not None and self.broken in path and kind == "put_file":
            raise PermissionError("not allowed")  # not tried again

    def on_train_begin(self, args, state, control, **kwargs):
        self.is_training = True

    def on_step_end(self, args, state, control, **kwargs):
        self.is_down = state.global_step in self.outage
        self.permits.release(self.chance.randint(1, self.slow))

    def on_train_end(self, args, state, control, **kwargs):
        self.is_training = self.is_down = False
        self.permits.release(10_000)


class Case:
    """A configuration, its scores by step, and how an unbroken run without a storage ends."""

    def __init__(self, seed, make_folder, kit=None):
        self.chance = random.Random(seed)
        chance, self.kit = self.chance, kit or available()[0]
        self.scores = [chance.choice([0.1, 0.2, 0.3, 0.4, 0.5]) for _ in range(STEPS + 1)]
        self.given = {
            "max_steps": STEPS,
            "save_steps": chance.choice([1, 1, 2, 3]),
            "eval_steps": chance.choice([1, 1, 2]),
            "save_total_limit": chance.choice([None, 1, 1, 2, 3]),
            "save_async": chance.random() < 0.5,
            "eval_strategy": "steps",
            "eval_dataset": rows(4),
            "load_best_model_at_end": True,
            "metric_for_best_model": "score",
            "greater_is_better": chance.random() < 0.5,
        }
        self.expected = self.result(self.trainer(str(make_folder())), False)

    def __repr__(self):
        names = ("save_steps", "eval_steps", "save_total_limit", "save_async", "greater_is_better")
        return f"{ {name: self.given[name] for name in names} } {self.scores}"

    def trainer(self, url, callbacks=()):
        def score(_):
            return {"score": self.scores[trainer.state.global_step]}

        trainer = made(url, self.kit, score=score, callbacks=list(callbacks), **self.given)
        return trainer

    def result(self, trainer, resumes):
        """Train; what the run ends with."""
        trainer.train(resume_from_checkpoint=resumes)
        state = trainer.state
        history = [(each["step"], each.get("loss"), each.get("eval_score")) for each in state.log_history]
        best = PurePosixPath(str(state.best_model_checkpoint)).name
        return self.kit.weights(trainer.model), (state.best_metric, state.best_global_step, best, history)

    def differs(self, result):
        return result[1] != self.expected[1] or not same_bytes(result[0], self.expected[0])

    def states(self, url, resumes):
        """Train with slow uploads; every state of the storage, and whether the result differs."""
        paced = Paced(self.chance)
        FaultyFileSystem.fault, FaultyFileSystem.states = paced.fault, []
        try:
            result = self.result(self.trainer(url, [paced]), resumes)
        finally:
            paced.on_train_end(None, None, None)
            states, FaultyFileSystem.states, FaultyFileSystem.fault = FaultyFileSystem.states, None, None
        return states, self.differs(result)


def dangling(state, has_logs=False):
    """What is wrong in a state: checkpoints that are complete by their manifests and have other files, or name a best
    one that is not complete, or entries that are not in the log. One that is being replaced is complete under a hidden
    name."""
    objects = {path.removeprefix(ROOT): data for path, data in state.items() if path.startswith(ROOT)}
    whole = {name.rpartition("/")[0] for name in objects if name.endswith("/manifest.json")}
    replacing = {name[1:].partition(".")[0] for name in whole if name.startswith(".")}
    wrong = []
    lines = objects.get("log.jsonl", b"").splitlines() if has_logs else []
    logged = max((json.loads(line)["step"] for line in lines), default=0)
    for name in sorted(whole):
        if has_logs and int(name.split("-")[1].partition(".")[0]) > logged:
            wrong.append(f"{name} is later than the log")
        for file, facts in json.loads(objects[f"{name}/manifest.json"])["files"].items():
            data = objects.get(f"{name}/{file}")
            if data is None or hashlib.sha256(data).hexdigest() != facts["sha256"]:
                wrong.append(f"{name} is not what its manifest says: {file}")
        best = json.loads(objects.get(f"{name}/trainer_state.json", b"{}")).get("best_model_checkpoint")
        best = best and PurePosixPath(best).name
        if best and best not in whole | replacing:
            wrong.append(f"{name} names {best}, which is not there")
    return wrong


def after_commits(states):
    """Those in which a checkpoint has just become complete."""
    whole = [{path for path in state if path.endswith("/manifest.json")} for state in states]
    return [state for state, before, now in zip(states[1:], whole, whole[1:]) if now - before]


def search(seed, url, machine, make_folder, kit=None, breaks=2):
    """One case: each state that it leaves is looked at, and the run is broken off at some of them, again and again.
    Returns what is wrong, and how many runs there were."""
    case = Case(seed, make_folder, kit)
    FaultyFileSystem.reset()
    here = machine(f"{seed}-0")
    found, runs = [], 1
    for number in range(breaks + 1):
        states, is_other = case.states(url, number > 0)
        runs += 1
        for state in states:
            found += [each for each in dangling(state, has_logs=True) if each not in found]
        if is_other:
            found.append(f"run {number} ends with another result")
        if number < breaks:
            moments = after_commits(states) if case.chance.random() < 0.7 else []
            FaultyFileSystem.restore(case.chance.choice(moments or states))
            shutil.rmtree(here)  # a path in a checkpoint would lead there
            here = machine(f"{seed}-{number + 1}")
    return [f"{seed}: {each} [{case!r}]" for each in found], runs
