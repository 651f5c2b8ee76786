"""Saves of a process that runs under calls.c.

    python -m tests.checkpoint.disk.job record FOLDER [MUTATION]
    python -m tests.checkpoint.disk.job record_run FRAMEWORK FOLDER LIMIT [SHARDING]
    python -m tests.checkpoint.disk.job resume_runs FRAMEWORK FOLDER SHARDING
    python -m tests.checkpoint.disk.job faults|model_faults FRAMEWORK FOLDER OPTIONS

`record` makes each of SCENARIOS in a folder of its name, `record_run` one save of a real run: the save itself is in
`out`, its calls in `calls` and `inodes.json`, and copies of the directory in `before` and `after`. Under a launcher of
two processes both write it. `resume_runs` resumes a run in each directory in FOLDER, to the end, and prints digests of
their weights. `faults` prints a JSON object: how many saves were made to fail, how they ended, and what was wrong
afterwards.
"""

import errno
import hashlib
import json
import logging
import os
import shutil
import sys
import traceback
from pathlib import Path

import numpy as np

import oneloop
from oneloop import Trainer, TrainerCallback, TrainingArguments
from oneloop.checkpoint import capture, model_files, saved_model, sharded, store
from oneloop.checkpoint.capture import Contents
from oneloop.formats import durable
from oneloop.formats.safetensors_io import from_numpy
from tests.backends.support import kit_module, rows
from tests.checkpoint.disk import preload
from tests.checkpoint.disk.crash_states import FLUSH, snapshot
from tests.internals import full_tensors, processes_of, save_now, wait_for_saves

PACKAGE = f"{Path(oneloop.__file__).parent}/"

# -- saves that are recorded


def model(value, shards=1, config=b"{}"):
    made = Contents()
    raws = {name: from_numpy(np.full(4, value, np.float32)) for name in "abc"}
    before, capture.SHARD_BYTES = capture.SHARD_BYTES, {1: 100, 2: 32, 3: 16}[shards]
    made.add_weights(raws, {})
    capture.SHARD_BYTES = before
    made.texts |= {"training_args.json": str(value).encode()} | ({"config.json": config} if config else {})
    return made


def checkpoint(parent, step, value, limit=None, run="run", below=False):
    """What the writer of a Checkpointer does."""
    made = model(value)
    made.texts["trainer_state.json"] = json.dumps({"global_step": step}).encode()
    if below:
        made.texts["adapters/second/adapter_config.json"] = b"{}"
    stage = store.open_stage(parent, step)
    if below:  # as an override or a library does, without fsync
        (stage / "plain").mkdir()
        (stage / "plain" / "file.bin").write_bytes(bytes([value]) * 6000)
    path = store.commit(stage, step, run, "save", made.write(stage)).path
    store.rotate(parent, run, limit, {str(path)})


def sealed(parent, step, value):
    """A checkpoint to which an override adds a file."""
    made = model(value)
    made.texts["trainer_state.json"] = json.dumps({"global_step": step}).encode()
    stage = store.open_stage(parent, step)
    path = store.commit(stage, step, "run", "save", made.write(stage), True).path
    known = store.fingerprints(path)
    (path / "added.bin").write_bytes(bytes([value]) * 6000)
    store.finalize_manifest(path, known)


def in_parts(parent, step, value, limit=None):
    """A checkpoint that two processes write: what the writers of their Checkpointers do."""
    mine, other = model(value, 2), Contents()
    name = sorted(mine.tensors)[-1]
    other.tensors[name] = mine.tensors.pop(name)
    mine.texts["trainer_state.json"] = json.dumps({"global_step": step}).encode()
    stage = store.open_stage(parent, step)
    pid = os.fork()
    if not pid:
        preload.record_again()
        sharded.write_part(sharded.OnSharedDisk(stage), 1, other, other.size)
        os._exit(0)
    facts = mine.write(stage)
    facts |= sharded.collect(sharded.OnSharedDisk(stage), range(1, 2), 60, sharded.Waiting())
    path = store.commit(stage, step, "run", "save", facts).path
    store.rotate(parent, "run", limit, {str(path)})
    assert os.waitpid(pid, 0) == (pid, 0)


def save(folder, value, shards=1, config=b"{}"):
    made = model(value, shards, config)
    with saved_model.replacing(folder) as stage:
        made.write(stage)
        (stage / "tokenizer.json").write_bytes(b"{}")  # as a library does, without fsync


def in_own_directory(folder):
    """The first checkpoint in a directory that a script has made, as a run writes it."""
    folder.mkdir(parents=True)
    model_files.check_writable(folder)
    checkpoint(folder, 1, 2)


# name -> (before, the save)
SCENARIOS = {
    "second": (lambda out: checkpoint(out, 1, 1), lambda out: checkpoint(out, 2, 2)),
    "first": (lambda out: None, lambda out: checkpoint(out / "deep" / "run", 1, 2)),
    "rotation": (lambda out: checkpoint(out, 1, 1), lambda out: checkpoint(out, 2, 2, limit=1)),
    "same step": (lambda out: checkpoint(out, 2, 1), lambda out: checkpoint(out, 2, 2)),
    "directories": (lambda out: checkpoint(out, 1, 1, below=True), lambda out: checkpoint(out, 2, 2, 1, below=True)),
    "added files": (lambda out: sealed(out, 1, 1), lambda out: sealed(out, 2, 2)),
    "two processes": (lambda out: in_parts(out, 1, 1), lambda out: in_parts(out, 2, 2)),
    "two processes, rotation": (lambda out: in_parts(out, 1, 1), lambda out: in_parts(out, 2, 2, limit=1)),
    "two processes, same step": (lambda out: in_parts(out, 2, 1), lambda out: in_parts(out, 2, 2)),
    "two processes, first": (lambda out: None, lambda out: in_parts(out / "deep" / "run", 1, 2)),
    "own directory": (lambda out: (out / "deep").mkdir(), lambda out: in_own_directory(out / "deep" / "run")),
    "file": (
        lambda out: durable.replace_file(out / "state", b"1"),
        lambda out: durable.replace_file(out / "state", b"2"),
    ),
    "model": (lambda out: save(out, 1), lambda out: save(out, 2)),
    "model and configuration": (lambda out: save(out, 1), lambda out: save(out, 2, config=b'{"other": 1}')),
    "first configuration": (lambda out: save(out, 1, config=None), lambda out: save(out, 2)),
    "shards": (lambda out: save(out, 1, 2), lambda out: save(out, 2, 2)),
    "more shards": (lambda out: save(out, 1, 2), lambda out: save(out, 2, 3)),
    "one file after shards": (lambda out: save(out, 1, 3), lambda out: save(out, 2, 1)),
    "shards after one file": (lambda out: save(out, 1, 1), lambda out: save(out, 2, 2)),
}


def nothing(*_):
    pass


def without_sync(function):
    def run(*given):
        os.fsync = nothing
        function(*given)

    return run


# Saves that leave something out, which the simulation has to find.
MUTATIONS = {
    "no fsync": lambda: setattr(os, "fsync", nothing),
    "no fsync of directories": lambda: [setattr(m, "sync_directory", nothing) for m in (durable, store, saved_model)],
    "no fsync of directories inside": lambda: setattr(store, "sync_tree", store.sync_directory),
    "no fsync by the second process": lambda: setattr(sharded, "write_part", without_sync(sharded.write_part)),
    "no order of shards": lambda: setattr(saved_model, "ENTRIES", ()),
}


def name_flushes():
    """Have the record say which calls in oneloop led to each fsync: a mark before it, see crash_states.Flush."""
    fsync = os.fsync

    def flush(descriptor):
        frame, places = sys._getframe(1), []
        while frame is not None:
            if frame.f_code.co_filename.startswith(PACKAGE):
                places.append(f"{frame.f_code.co_filename[len(PACKAGE) :]}:{frame.f_lineno}")
            frame = frame.f_back
        preload.mark(" ".join([FLUSH, *places]))
        fsync(descriptor)

    os.fsync = flush


def record(parent, mutation=None):
    name_flushes()
    if mutation:
        MUTATIONS[mutation]()
    for name, (before, act) in SCENARIOS.items():
        folder = Path(parent) / name
        out = folder / "out"
        out.mkdir(parents=True)
        before(out)
        begin(folder, out)
        act(out)
        end(folder, out)


def begin(folder, out):
    shutil.copytree(out, folder / "before")
    inodes = [(str(out), os.stat(out).st_ino)]
    inodes += [(str(path), os.stat(path).st_ino) for path in sorted(out.rglob("*"))]
    (folder / "inodes.json").write_text(json.dumps(inodes))
    preload.record(folder / "calls")
    preload.arm(out)


def end(folder, out):
    preload.mark("returned")
    preload.disarm()
    preload.record()
    shutil.copytree(out, folder / "after")


class Saves(TrainerCallback):
    """Records the save of step 2 of a real run."""

    def __init__(self, folder, out):
        self.folder, self.out, self.trainer = folder, out, None

    def on_step_end(self, args, state, control, **kwargs):
        control.should_save = control.should_save and state.global_step != 2
        wait_for_saves(self.trainer)
        if state.global_step == 2:
            processes = processes_of(self.trainer)
            if processes.is_main:
                begin(self.folder, self.out)
            processes.barrier()
            if not processes.is_main:
                preload.record(self.folder / "calls")
                preload.arm(self.out)
            save_now(self.trainer)
            if processes.is_main:
                end(self.folder, self.out)


def trainer_of(framework, out, callback, seed=0, **given):
    options = {"report_to": "none", "disable_tqdm": True, "device": "cpu", "per_device_train_batch_size": 4}
    options |= {"save_strategy": "steps", "save_steps": 1, "max_steps": 2, "logging_steps": 100}
    options |= {"lr_scheduler_type": "constant"}  # so that runs of any length have the same steps
    kit = kit_module(framework).Kit()
    args = TrainingArguments(output_dir=str(out), **options | given)
    made = Trainer(kit.classifier(seed=seed), args, train_dataset=rows(16), callbacks=[callback])
    callback.trainer = made
    return made


def record_run(framework, folder, limit, *sharding):
    folder = Path(folder)
    given = {"save_total_limit": int(limit) or None} | in_shards(*sharding)
    trainer_of(framework, folder / "out", Saves(folder, folder / "out"), **given).train()


def in_shards(*sharding):
    return {"sharding": sharding[0], "optim": "adamw_torch"} if sharding else {}


def resume_runs(framework, folder, *sharding):
    digests = {}
    for place in sorted(path for path in Path(folder).iterdir() if path.is_dir()):
        is_new = not any(place.iterdir())
        given = {"seed": int(not is_new), "max_steps": 4} | in_shards(*sharding)
        trainer = trainer_of(framework, place, TrainerCallback(), **given)
        trainer.train(resume_from_checkpoint=not is_new)
        weights = full_tensors(trainer)
        digest = hashlib.sha256()
        for name in sorted(weights):
            digest.update(name.encode() + weights[name].numpy().tobytes())
        digests[place.name] = digest.hexdigest()
    if trainer.is_world_process_zero():
        print("\n" + json.dumps(digests))


# -- saves that fail

NUMBERS = (
    *("ENOSPC", "EIO", "EROFS", "EDQUOT", "EUCLEAN", "EREMOTEIO", "EHOSTDOWN", "ECONNRESET", "EMFILE", "ENOTEMPTY"),
    *("ENOMEM", "EINVAL", "ENOENT", "EACCES", "EEXIST", "ESTALE", "ETIMEDOUT", "EBUSY", "EPERM", "ENOTCONN"),
)


class Errors(logging.Handler):
    """Counts saves that were reported as failed."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def emit(self, record):
        self.count += "was NOT saved" in record.getMessage()


class Fails(TrainerCallback):
    """At step 2, saves again and again, and each time another call fails."""

    def __init__(self, out, options):
        self.out, self.options, self.trainer = out, options, None
        self.errors, self.wrong = Errors(), []
        self.same = None  # a copy of checkpoint-2
        self.ended = {"saves": 0, "saved": 0, "not saved": 0}
        self.calls = set()
        logging.getLogger("oneloop").addHandler(self.errors)

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step != 2:
            return
        control.should_save = False
        wait_for_saves(self.trainer)
        self.kept = self.out.with_name("kept")
        shutil.copytree(self.out / "checkpoint-1", self.kept)
        self.save(0, 0, preload.ONCE)
        self.same = self.out.with_name("same")
        shutil.copytree(self.out / "checkpoint-2", self.same)
        count = self.save(0, 0, preload.ONCE)
        every = self.options.get("every", 1)
        for mode in self.options.get("modes", (preload.ONCE, preload.ONWARD)):
            for number in self.options.get("numbers", NUMBERS):
                for call in range(1 + self.options.get("first", 0), count + 1, every):
                    self.save(call, getattr(errno, number), mode)
        for call in range(1, count + 1, self.options.get("every_write", 1)):
            self.save(call, errno.ENOSPC, preload.SHORT)

    def save(self, call, number, mode):
        """One save whose N-th call fails; then what it left."""
        before = self.errors.count
        for path in [*self.out.glob("checkpoint-*"), *self.out.glob(".checkpoint-*")]:
            shutil.rmtree(path)
        shutil.copytree(self.kept, self.out / "checkpoint-1")
        if self.options.get("same_step") and self.same is not None:
            shutil.copytree(self.same, self.out / "checkpoint-2")
        preload.arm(self.out, call, number, mode)
        error = ""
        try:
            save_now(self.trainer)
        except BaseException:
            error = traceback.format_exc()
        count, name = preload.disarm(), preload.failed()
        if call and not name:  # a short write of a call that is no write
            return count
        self.calls.add(name)
        self.ended["saves"] += 1
        told = self.errors.count > before
        self.ended["not saved" if told else "saved"] += 1
        found = error or self.look(told)
        if found:
            self.wrong.append(f"call {call} ({name}) with {errno.errorcode.get(number)}, mode {mode}: {found}")
        return count

    def look(self, told):
        """What is wrong with the directory now."""
        found = []
        for moment in ("at once", "after the next start"):
            last = store.get_last_checkpoint(self.out)
            wrong = [f"{c.path.name}: {store.problems(c.path)}" for c in store.find(self.out) if store.problems(c.path)]
            if last is None or store.problems(Path(last)):
                found.append(f"no complete checkpoint {moment}")
            if not told and Path(last or "").name != "checkpoint-2":
                found.append(f"reported as saved, but the last is {last} {moment}")
            if wrong and moment != "at once":
                found.append(f"{wrong} {moment}")
            may_be_gone = self.options.get("limit") and (self.out / "checkpoint-2").is_dir()
            if not (self.out / "checkpoint-1").is_dir() and not may_be_gone:
                found.append(f"checkpoint-1 is gone {moment}")
            store.remove_leftovers(self.out)
        left = [path.name for path in self.out.glob(".checkpoint*")]
        return "; ".join(found + ([f"left: {left}"] if left else []))


def faults(framework, folder, options):
    out = Path(folder) / "out"
    given = json.loads(options)
    callback = Fails(out, given)
    trainer = trainer_of(
        framework,
        out,
        callback,
        max_steps=3,
        save_total_limit=given.get("limit"),
        save_async=given.get("background", True),
    )
    trainer.train()
    result = callback.ended | {"wrong": callback.wrong, "calls": sorted(callback.calls - {""})}
    result["finished"] = trainer.state.global_step == 3 and not store.problems(out / "checkpoint-3")
    print("\n" + json.dumps(result))


def model_faults(framework, folder, options):
    """save_model of one model over another."""
    out, given = Path(folder) / "out", json.loads(options)
    old, new = (trainer_of(framework, out, TrainerCallback(), seed=seed) for seed in (0, 1))
    ended = {"saves": 0, "saved": 0, "not saved": 0, "wrong": []}

    def files():
        return {name: data for name, data in snapshot(out).items() if not name.startswith(".model")}

    def loaded(found):
        return {name: data for name, data in found.items() if name != "training_args.json"}

    def clean(trainer):
        shutil.rmtree(out, ignore_errors=True)
        trainer.save_model()
        return files()

    after, before = clean(new), clean(old)
    preload.arm(out)
    new.save_model()
    count = preload.disarm()
    for mode in (preload.ONCE, preload.ONWARD, preload.SHORT):
        for number in given.get("numbers", NUMBERS) if mode != preload.SHORT else ("ENOSPC",):
            for call in range(1, count + 1, given.get("every", 1)):
                clean(old)
                preload.arm(out, call, getattr(errno, number), mode)
                try:
                    new.save_model()
                    word = "saved"
                except OSError:
                    word = "not saved"
                except BaseException:
                    word = traceback.format_exc()
                preload.disarm()
                if not preload.failed():
                    continue
                ended["saves"] += 1
                ended[word] = ended.get(word, 0) + 1
                at_once = files()
                saved_model.recover(out)
                found = files()
                where = f"call {call} ({preload.failed()}) with {number}, mode {mode}"
                mixed = loaded(at_once) not in (loaded(before), loaded(after))
                if found not in (before, after) or mixed or (word == "saved" and found != after):
                    ended["wrong"].append(f"{where}: {word}, mixed or missing files")
                if list(out.glob(".model*")):
                    ended["wrong"].append(f"{where}: left {[path.name for path in out.glob('.model*')]}")
    print("\n" + json.dumps(ended))


if __name__ == "__main__":
    logging.getLogger("oneloop").propagate = False
    action, *rest = sys.argv[1:]
    actions = (record, record_run, resume_runs, faults, model_faults)
    next(each for each in actions if each.__name__ == action)(*rest)
