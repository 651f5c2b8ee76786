"""Plays tiny runs, each in processes of its own, and writes down what they did.

    PYTHONPATH=TREE python probe.py FRAMEWORK FOLDER NAME [NAME ...]

The tree's oneloop is the one that runs. A framework is imported once, and every run is a fork of that process, so runs
do not see each other. FOLDER/NAME.json is the record of a run, FOLDER/NAME/ has its files, FOLDER/NAME.log its output.
"""

import atexit
import contextlib
import dataclasses
import importlib
import json
import os
import random
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

import files
import models
import numpy as np
import recording
import tiny_runs

# Imported before the forks, since they take long: what a first Trainer of the framework imports besides.
WARM = {
    "torch": "torch torch._dynamo torch.distributed.fsdp torch.distributed.optim safetensors.torch optuna",
    "paddle": "paddle paddle.distributed safetensors.numpy",
    "mindspore": "mindspore safetensors.numpy",
}
SECONDS = 300  # for one run
DEFAULTS = {
    "output_dir": "out",
    "logging_dir": "logs",
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 5,
    "num_train_epochs": 2,
    "learning_rate": 0.01,
    "logging_steps": 2,
    "save_steps": 5,
    "save_async": False,
    "report_to": "none",
    "disable_tqdm": True,
    "device": "cpu",
    "ddp_timeout": 60,
}
OF_TRAINER = """data_collator eval_dataset tokenizer processing_class model_init criterion compute_loss_func
compute_metrics optimizers optimizer_cls_and_kwargs preprocess_logits_for_metrics""".split()


class Lab:
    """What a run is played with: models of its framework, Trainers that are watched, and notes of its own."""

    def __init__(self, framework, sees_control):
        import oneloop

        self.oneloop, self.kit = oneloop, models.KITS[framework]()
        self.journal, self.sees_control = recording.Journal(), sees_control
        self.trainers, self.data, self.notes, self.failures = [], [], [], []

    def rows(self, *args, kind=models.Rows, **kwargs):
        """A data set; which samples it was asked for, and in which order, is recorded."""
        self.data.append(kind(*args, **kwargs))
        return self.data[-1]

    def trainer(self, model=None, data=None, base=None, watch=(), callbacks=(), arguments=None, **given):
        """A Trainer. Keywords that it does not take itself are arguments; `watch` has names of methods to record."""
        own = {name: given.pop(name) for name in OF_TRAINER if name in given}
        args = (arguments or self.oneloop.TrainingArguments)(**DEFAULTS | given)
        cls = base or self.oneloop.Trainer
        cls = recording.watched(cls, watch, self.journal) if watch else cls
        witness = recording.callback(self.oneloop.TrainerCallback, self.journal, self.sees_control)
        if model is None and "model_init" not in own:
            model = self.kit.classifier()
        data = self.rows() if data is None else data
        trainer = cls(model=model, args=args, train_dataset=data, callbacks=[*callbacks, witness], **own)
        self.trainers.append(trainer)
        return trainer

    def train(self, resume=None, **given):
        trainer = self.trainer(**given)
        self.note(trainer.train(resume_from_checkpoint=resume))
        return trainer

    def note(self, value):
        """Keep a result: a named tuple such as TrainOutput, metrics, or anything else by its repr."""
        value = value._asdict() if hasattr(value, "_asdict") else value
        if isinstance(value, dict):
            arrays = {key: models.digest({"": inner}) for key, inner in value.items() if isinstance(inner, np.ndarray)}
            value = value | arrays
        self.notes.append(files.masked(value))

    @contextlib.contextmanager
    def failing(self):
        """What is in here has to fail. The type of the error is recorded, and the exit status it would give."""
        try:
            yield
        except BaseException as error:
            self.failures.append([type(error).__name__, getattr(error, "code", None)])
            self.journal.texts.append(f"{type(error).__name__}: {error}")
        else:
            raise AssertionError("nothing failed where the run expects an error")

    def record(self):
        return self.journal.record() | {
            "samples": [data.asked for data in self.data],
            "notes": self.notes,
            "failures": self.failures,
            "history": [files.masked(trainer.state.log_history) for trainer in self.trainers],
            "state": [self._state(trainer) for trainer in self.trainers],
            "weights": [models.digest(self.kit.arrays(trainer.model)) for trainer in self.trainers],
        }

    def _state(self, trainer):
        state = {field.name: getattr(trainer.state, field.name) for field in dataclasses.fields(trainer.state)}
        return files.masked({key: value for key, value in state.items() if key != "log_history"})


def play(run, phase, target):
    """In a process of its own: one phase of a run."""
    processes, script = run.phases[phase]
    random.seed(0)
    np.random.seed(0)
    lab = Lab(run.framework, run.sees_control)
    recording.catch_warnings(lab.journal)
    recording.count_reads(lab.journal, run.framework)
    if processes > 1:
        recording.count_collectives(lab.journal, run.framework)
    right_clocks = recording.slow_clocks()
    error = None
    try:
        script(lab)
    except BaseException as raised:
        error = type(raised).__name__
        lab.journal.texts.append(traceback.format_exc())
    right_clocks()
    Path(target).write_text(json.dumps(lab.record() | {"error": error}))


def fork(run, phase, rank, port, folder):
    """Start a process that plays a phase; its id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        atexit._clear()  # what the parent has to clear up is not this process's affair
        log = os.open(f"{folder}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(folder)
        os.environ.update(launched(run.framework, run.phases[phase][0], rank, port))
        play(run, phase, part(folder, phase, rank))
        atexit._run_exitfuncs()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def part(folder, phase, rank):
    return f"{folder}.{phase}.{rank}.part"


def launched(framework, processes, rank, port):
    """The variables that the framework's launcher sets in each process."""
    if processes == 1:
        return {}
    if framework == "paddle":
        places = ",".join(f"127.0.0.1:{port + i}" for i in range(processes))
        named = {"TRAINER_ID": rank, "TRAINERS_NUM": processes, "TRAINER_ENDPOINTS": places, "RANK_IN_NODE": rank}
        named |= {"CURRENT_ENDPOINT": f"127.0.0.1:{port + rank}", "LOCAL_SIZE": processes}
        named |= {"MASTER": f"127.0.0.1:{port}", "DISTRI_BACKEND": "gloo"}
        return {f"PADDLE_{key}": str(value) for key, value in named.items()}
    if framework == "mindspore":
        named = {"ROLE": "MS_SCHED" if rank == processes else "MS_WORKER", "NODE_ID": rank, "WORKER_NUM": processes}
        named |= {"LOCAL_WORKER_NUM": processes, "SCHED_HOST": "127.0.0.1", "SCHED_PORT": port, "TOPO_TIMEOUT": 120}
        return {f"MS_{key}": str(value) for key, value in named.items()} | {"DEVICE_ID": str(rank)}
    named = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
    named |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return {key: str(value) for key, value in named.items()}


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait(pids):
    """Exit statuses; what takes too long is killed."""
    statuses, deadline = {}, time.monotonic() + SECONDS
    while len(statuses) < len(pids):
        for pid in set(pids) - set(statuses):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                statuses[pid] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    return [statuses[pid] for pid in pids]


def play_phase(run, phase, folder):
    """What the processes of a phase wrote down, by rank, and their exit statuses."""
    processes, port = run.phases[phase][0], free_port()
    pids = [fork(run, phase, rank, port, folder) for rank in range(processes)]
    switchboard = None
    if run.framework == "mindspore" and processes > 1:  # msrun has one more process, which connects the others
        switchboard = fork(run, phase, processes, port, folder)
    found = []
    for rank, status in enumerate(wait(pids)):
        path = Path(part(folder, phase, rank))
        found.append((json.loads(path.read_text()) if path.exists() else {"error": "no record"}) | {"exit": status})
    if switchboard is not None:
        os.kill(switchboard, signal.SIGKILL)  # it would wait half a minute for others to come
        os.waitpid(switchboard, 0)
    return found


def record(run, folder):
    """Play all phases of a run; what they wrote down, and the files that are left."""
    folder.mkdir(parents=True)
    phases = [play_phase(run, phase, folder) for phase in range(len(run.phases))]
    return {"phases": phases, "files": files.read_all(folder)}


def main(framework, folder, *names):
    for module in WARM[framework].split():
        importlib.import_module(module)
    import oneloop

    oneloop.Trainer, oneloop.TrainingArguments, oneloop.TrainerCallback  # noqa: B018  imported before the forks
    folder = Path(folder).resolve()
    for name in names:
        started = time.monotonic()
        found = record(tiny_runs.RUNS[name], folder / name)
        found |= {"oneloop": str(Path(oneloop.__file__).parent), "seconds": round(time.monotonic() - started, 2)}
        (folder / f"{name}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
