"""A short run with everything random in it, as a program: the child process of the tests in this directory.

    python tests/checkpoint/job.py --output DIR [--resume latest|PATH] [--workers 2] [--accumulation 3] ...

Model, data and course depend on the arguments alone. At its end the run writes `result.json` into DIR: what is in its
last checkpoint and what it has logged, without the times. Two runs with the same course have the same result.

`--kill POINT:WHEN:N` ends the process with SIGKILL at the N-th call of a function (see kill_points.py), and `--count`
writes how often each of them is called. `--serve FRAMEWORK [MODULE ...]` is a process that has imported all and forks
one run per request.
"""

import argparse
import faulthandler
import gc
import hashlib
import json
import os
import random
import re
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path

import numpy as np

from oneloop import EarlyStoppingCallback, ExportableState, Mixture, Trainer, TrainerCallback, TrainingArguments
from tests.backends.support import DEVICE, kit_module, names
from tests.backends.support import JOB_CLASSES as CLASSES
from tests.backends.support import JOB_WORDS as WORDS
from tests.backends.support import WORDS as PACKED_WORDS
from tests.internals import backend_of, run_id

TIMES = re.compile(r"(_runtime|_per_second|_bytes|data_wait|mfu|^time)$|^process_seconds/")
TENSOR_FILES = "*.safetensors"
LONGEST = 300  # seconds that a forked run may take; most take two


class NoisyTexts:
    """Texts of many lengths, in which each look changes words by numbers from Python, NumPy and the framework."""

    is_noisy = True  # a process that sets it to False draws nothing here

    def __init__(self, count, seed, kit):
        source = np.random.RandomState(seed)
        self.texts = [source.randint(1, WORDS, 3 + int(source.randint(8))).tolist() for _ in range(count)]
        self.kit = kit

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        text = list(self.texts[index])
        if self.is_noisy:
            text[random.randrange(len(text))] = 1 + int(np.random.randint(WORDS - 1))
            text[int(self.kit.draw() * len(text))] = 1 + random.randrange(WORDS - 1)
        return {"input_ids": text, "labels": sum(self.texts[index]) % CLASSES}


class NoisyCollator:
    """Pads, and hides words by numbers from all three streams, if the texts are noisy."""

    def __init__(self, kit):
        self.kit = kit

    def __call__(self, samples):
        is_noisy = NoisyTexts.is_noisy
        width = max(len(s["input_ids"]) for s in samples) + (random.randrange(2) if is_noisy else 0)
        ids = np.zeros((len(samples), width), dtype=np.int64)
        for row, sample in zip(ids, samples):
            row[: len(sample["input_ids"])] = sample["input_ids"]
        hidden = (np.random.rand(*ids.shape) < 0.1 * self.kit.draw()) & (ids > 0) if is_noisy else False
        labels = np.array([s["labels"] for s in samples], dtype=np.int64)
        return {"input_ids": self.kit.tensor(np.where(hidden, 1, ids)), "labels": self.kit.tensor(labels)}


class NoisyDocuments(NoisyTexts):
    """The same for a language model: longer texts, without a label."""

    def __init__(self, count, seed, kit):
        super().__init__(count, seed, kit)
        self.texts = [(text * 5)[: 3 + 7 * len(text) % 40] for text in self.texts]

    def __getitem__(self, index):
        return {"input_ids": [1 + word % (PACKED_WORDS - 1) for word in super().__getitem__(index)["input_ids"]]}


class NoisyStream:
    """Documents that can only be read one after the other, again and again."""

    def __init__(self, documents):
        self.documents = documents
        self.place = 0

    def __iter__(self):
        while True:
            self.place += 1
            yield self.documents[(self.place - 1) % len(self.documents)]

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


class Spiky(Trainer):
    """Its loss is very large in some steps."""

    spikes = ()

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        found = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        is_high = not return_outputs and self.state.global_step + 1 in self.spikes
        return found * 1e4 if is_high else found


class Walk(TrainerCallback, ExportableState):
    """A callback with a state that also draws random numbers."""

    def __init__(self, pace=1.0):
        self.pace = pace
        self.place = 0.0

    def on_step_end(self, args, state, control, **kwargs):
        self.place += self.pace * (random.random() - 0.5)

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        self.place += metrics["eval_loss"]

    def state(self):
        return {"args": {"pace": self.pace}, "attributes": {"place": self.place}}


class Slow(TrainerCallback):
    """Gives signals and kills the time to arrive; says on which step the run is."""

    def __init__(self, seconds):
        self.seconds = seconds

    def on_step_end(self, args, state, control, **kwargs):
        print(f"step {state.global_step}", flush=True)
        time.sleep(self.seconds)


def parse(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", required=True)
    parser.add_argument("--framework", default="torch", choices=names())
    parser.add_argument("--resume", help="latest, or the path of a checkpoint")
    parser.add_argument("--steps", type=int, default=22)
    parser.add_argument("--samples", type=int, default=23)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--group-by-length", action="store_true")
    parser.add_argument("--fp16", action="store_true")
    parser.add_argument("--adapter", action="store_true", help="train LoRA (torch only)")
    parser.add_argument("--packed", choices=["mixture", "stream"], help="a language model on packed documents")
    parser.add_argument("--spikes", type=int, nargs="*", default=[], help="steps whose loss is very large")
    parser.add_argument("--patience", type=int, default=100, help="evaluations without progress before the run stops")
    parser.add_argument("--slow", type=float, default=0.0, help="seconds added to every step")
    parser.add_argument("--set", action="append", default=[], help="NAME=JSON for TrainingArguments")
    parser.add_argument("--kill", action="append", default=[], help="POINT:WHEN:N")
    parser.add_argument("--count", action="store_true")
    parser.add_argument(
        "--no-sync", action="store_true", help="os.fsync does nothing: it has no part in what is tested"
    )
    return parser.parse_args(argv)


def arguments(given):
    options = {
        "per_device_train_batch_size": 3,
        "per_device_eval_batch_size": 4,
        "gradient_accumulation_steps": given.accumulation,
        "max_steps": given.steps,
        "learning_rate": 0.05,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 5,
        "weight_decay": 0.01,
        "logging_steps": 2,
        "eval_strategy": "steps",
        "eval_steps": 4,
        "save_strategy": "steps",
        "save_steps": 3,
        "save_total_limit": 2,
        "load_best_model_at_end": True,
        "dataloader_num_workers": given.workers,
        "group_by_length": given.group_by_length,
        "fp16": given.fp16,
        "seed": 11,
        "report_to": "none",
        "disable_tqdm": True,
        "device": DEVICE,
    }
    if given.packed:
        options |= {"packing": True if given.packed == "mixture" else "best_fit", "max_length": 8}
    for text in given.set:
        name, value = text.split("=", 1)
        options[name] = json.loads(value)
    return TrainingArguments(output_dir=given.output, **options)


def build(given, callbacks=()):
    """The Trainer of these arguments."""
    kit = kit_module(given.framework).Job()
    walking = [EarlyStoppingCallback(given.patience), Walk(0.5), *callbacks]
    if given.packed:
        parts = {"a": NoisyDocuments(9, 5, kit), "b": NoisyDocuments(4, 7, kit)}
        data = Mixture(parts, [0.7, 0.3], stop=23) if given.packed == "mixture" else NoisyStream(parts["a"])
        model = kit_module(given.framework).Kit().language_model()
        evaluated = NoisyDocuments(5, 6, kit)
        return Trainer(model, arguments(given), train_dataset=data, eval_dataset=evaluated, callbacks=walking)
    cls = type("Spiky", (Spiky,), {"spikes": given.spikes}) if given.spikes else Trainer
    return cls(
        kit.adapted() if given.adapter else kit.model(),
        arguments(given),
        NoisyCollator(kit),
        NoisyTexts(given.samples, 5, kit),
        NoisyTexts(7, 6, kit),
        callbacks=walking,
    )


# -- what a run has come to


def digest(data):
    return hashlib.sha256(data).hexdigest()


def without_times(value):
    """A JSON value without times, and with paths cut down to their names."""
    if isinstance(value, dict):
        return {key: without_times(inner) for key, inner in value.items() if not TIMES.search(key)}
    if isinstance(value, list):
        return [without_times(inner) for inner in value]
    return Path(value).name if isinstance(value, str) and "checkpoint-" in value else value


def contents(checkpoint):
    """What is in a checkpoint, file by file: checksums of tensors, and JSON without times and run id."""
    folder = Path(checkpoint)
    found = {path.name: digest(path.read_bytes()) for path in sorted(folder.glob(TENSOR_FILES))}
    for name in ("run.json", "trainer_state.json"):
        data = without_times(json.loads((folder / name).read_text()))
        data.pop("run_id", None)
        found[name] = data
    return found


def result(trainer, output, weights=None):
    """Everything that two runs with the same course have in common at their end. `weights`: where they were divided."""
    from oneloop import get_last_checkpoint

    last = get_last_checkpoint(output)
    name = backend_of(trainer).NAME if DEVICE == "cpu" else DEVICE
    weights = weights or kit_module(name).Job().weights(trainer.model)
    return {
        "last": None if last is None else Path(last).name,
        "contents": None if last is None else contents(last),
        "history": without_times(trainer.state.log_history),
        "weights": digest(b"".join(weights[name].tobytes() for name in sorted(weights))),
        "run_id": run_id(trainer),
    }


def main(argv):
    from tests.checkpoint import kill_points

    given = parse(argv)
    if given.no_sync:
        os.fsync = lambda descriptor: None
    counts = kill_points.arm(given.kill, given.framework) if given.kill or given.count else None
    trainer = build(given, [Slow(given.slow)] if given.slow else [])
    trainer.train(resume_from_checkpoint=True if given.resume == "latest" else given.resume)
    found = result(trainer, given.output) | {"counts": counts}
    partial = Path(given.output) / "result.partial"
    partial.write_text(json.dumps(found, indent=1, sort_keys=True))
    os.replace(partial, Path(given.output) / "result.json")


# -- one process that forks the others


def serve(framework, *more):
    """Requests on stdin, one JSON object a line: {argv, stdout, stderr}. Answers: the pid, then the wait status."""
    # What takes long is done once.
    for name in (
        f"oneloop.backends.{kit_module(framework).Kit.name}.engine",
        "tests.checkpoint.kill_points",
        *kit_module(framework).Job.warm,
        *more,
    ):
        import_module(name)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    gc.collect()
    gc.freeze()  # a collection in a child would copy the pages of all that was imported
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os._exit(run_forked(request))
        answers.write(f"{pid}\n")
        answers.write(f"{os.waitpid(pid, 0)[1]}\n")


def run_forked(request):
    """The status that the interpreter would exit with."""
    os.setsid()
    for name, number in (("stdout", 1), ("stderr", 2)):
        descriptor = os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(descriptor, number)
    faulthandler.dump_traceback_later(LONGEST, exit=True)  # a run that hangs says where
    status = 1
    try:
        main(request["argv"])
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    return status


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(*sys.argv[2:])
    else:
        main(sys.argv[1:])
