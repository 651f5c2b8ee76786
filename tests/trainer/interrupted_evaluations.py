"""Runs that evaluate on data that draw random numbers, interrupted and resumed, beside the same run unbroken.

`python -m tests.trainer.interrupted_evaluations COUNT [SEED] [FRAMEWORK]` makes that many random ones.
"""

import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from oneloop import PrinterCallback, Trainer, TrainerCallback, TrainingArguments, randomness
from oneloop.backends import loading
from oneloop.distributed.preemption import Preempted
from oneloop.outputs import EvalLoopOutput
from tests.backends.support import DEVICE, WORDS, kit_module, names, rows, same_bytes
from tests.internals import backend_of

STEPS = 8
RUN = {"max_steps": STEPS, "per_device_train_batch_size": 4, "per_device_eval_batch_size": 2, "learning_rate": 0.05}
RUN |= {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 1, "logging_steps": 1}
RUN |= {"report_to": "none", "disable_tqdm": True, "device": DEVICE, "seed": 5, "lr_scheduler_type": "constant"}


def drawn(framework):
    """A number of Python's, NumPy's and the framework's streams together."""
    number = random.random() + np.random.rand()
    return number + {"torch": _of_torch, "paddle": _of_paddle, "mindspore": np.random.rand}[framework]()


def _of_torch():
    import torch

    return torch.rand(()).item()


def _of_paddle():
    import paddle

    return float(paddle.rand([1]).item())


class Augmented:
    """Map-style: every sample draws."""

    def __init__(self, framework, samples):
        self.framework, self.samples = framework, samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.changed(self.samples[index], drawn(self.framework))

    @staticmethod
    def changed(sample, number):
        if "x" in sample:
            return sample | {"x": sample["x"] + np.float32(number)}
        return {"input_ids": [(word + int(100 * number)) % (WORDS - 1) + 1 for word in sample["input_ids"]]}


class Walked:
    """An iterable, without anything of a framework, whose samples draw; and in another order each time."""

    def __init__(self, framework, samples):
        self.framework, self.samples = framework, samples

    def __iter__(self):
        for index in np.random.permutation(len(self.samples)):
            yield Augmented.changed(self.samples[index], drawn(self.framework))


def of_framework(framework, samples):
    """The same as the framework's own iterable dataset."""
    if framework == "mindspore":
        return Walked(framework, samples)
    base = loading.load(framework).loaders.IterableDataset
    cls = type("Stream", (base,), {"__init__": Walked.__init__, "__iter__": Walked.__iter__})
    return cls(framework, samples)


def documents(count, seed):
    draws = np.random.RandomState(seed)
    return [{"input_ids": draws.randint(1, WORDS, 2 + i % 5).tolist()} for i in range(count)]


@dataclass(frozen=True)
class Case:
    """What a run is made of, and where it is interrupted."""

    framework: str = "torch"
    data_order: str = "oneloop"
    data: str = "augmented"
    training_data: str = "augmented"
    workers: int = 1
    persistent: bool = True
    packing: bool = False
    start: bool = False  # eval_on_start
    calls: str = ""  # what a callback does after every third step: evaluate, other, again or predict
    loader: str = ""  # of the user, who keeps it: eval or train; or a new one for each evaluation: new, other
    listed: bool = True  # an evaluation loader of the user is known to the Trainer
    generator: bool = False  # the order of the user's loader is drawn from a generator of its own
    loop: bool = False  # the evaluation loop is the user's
    forgets: int = 0  # after this step the evaluation loaders that are kept are dropped
    stops: tuple = ((5, "signal"),)

    def options(self):
        given = {"dataloader_num_workers": self.workers, "data_order": self.data_order}
        given |= {"dataloader_persistent_workers": self.persistent and self.workers > 0}
        given |= {"eval_on_start": self.start}
        return given | ({"packing": True, "max_length": 8} if self.packing else {})

    def samples(self, count, seed):
        return documents(2 * count, seed) if self.packing else rows(count, seed)

    def made(self, kind, count, seed):
        makers = {"plain": lambda framework, samples: samples, "augmented": Augmented, "walked": Walked}
        makers |= {"stream": of_framework}
        if kind == "several":
            return {"a": Augmented(self.framework, self.samples(4, seed)), "b": self.samples(3, seed + 1)}
        return makers[kind](self.framework, self.samples(count, seed))


class Own(Trainer):
    """Keeps loaders of its own, if it is asked to."""

    case, kept = None, None

    def _loader(self, data, batch):
        if self.kept is None:
            import torch
            from torch.utils.data import DataLoader, RandomSampler

            order = {"shuffle": True}
            if self.case.generator:
                order = {"sampler": RandomSampler(data, generator=torch.Generator().manual_seed(3))}
            keeps = {"num_workers": self.case.workers, "persistent_workers": self.case.persistent}
            self.kept = DataLoader(data, batch_size=batch, collate_fn=self.data_collator, **order, **keeps)
        return self.kept

    def get_eval_dataloader(self, eval_dataset=None):
        is_other = eval_dataset is not self.eval_dataset
        if self.case.loader not in (("other",) if is_other else ("eval", "new")):
            return super().get_eval_dataloader(eval_dataset)
        self.close(self.case.loader != "eval")
        loader = self._loader(eval_dataset, 2)
        if self.case.data_order == "transformers" and self.case.listed:
            self._eval_dataloaders["eval"] = loader  # where transformers and the libraries on it keep theirs
        return loader

    def get_train_dataloader(self):
        return super().get_train_dataloader() if self.case.loader != "train" else self._loader(self.train_dataset, 4)

    def close(self, if_any=True):
        """Stop the workers of its own loader, and forget it."""
        if if_any and self.kept is not None:
            if self.kept._iterator is not None:
                self.kept._iterator._shutdown_workers()
            self.kept = None


class Looping(Own):
    """Its evaluation loop is a copy of no other."""

    def evaluation_loop(self, dataloader, description, *args, metric_key_prefix="eval", **kwargs):
        losses = []
        for inputs in dataloader:
            losses.append(float(self.prediction_step(self.model, inputs, True)[0]))
        return EvalLoopOutput(None, None, {f"{metric_key_prefix}_loss": sum(losses)}, len(losses))


class Stops(TrainerCallback):
    """Interrupts the run, and calls what a user's callback might."""

    def __init__(self, case, step, how):
        self.case, self.step, self.how, self.trainer = case, step, how, None
        self.calling = False

    def on_step_begin(self, args, state, control, **kwargs):
        if self.how == "crash" and state.global_step == self.step:
            raise ConnectionError("crashed")

    def on_step_end(self, args, state, control, **kwargs):
        if self.case.calls and state.global_step % 3 == 0:
            self.calling = True
            self.call()
            self.calling = False
        if self.case.forgets == state.global_step:
            self.trainer._eval_dataloaders.clear()
        if self.how == "signal" and state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_prediction_step(self, args, state, control, **kwargs):
        # Not in those of callbacks: they are given up for good.
        if self.how == "evaluation" and state.global_step >= self.step and not self.calling:
            self.how = None
            os.kill(os.getpid(), signal.SIGTERM)

    def call(self):
        if self.case.calls == "predict":
            self.trainer.predict(self.case.made("augmented", 3, 7))
        elif self.case.calls in ("evaluate", "other"):  # the latter under the name of the loop's own evaluations
            prefix = "eval_called" if self.case.calls == "evaluate" else "eval"
            self.trainer.evaluate(self.case.made("augmented", 3, 7), metric_key_prefix=prefix)
        else:
            self.trainer.evaluate()


def trainer_of(case, folder, step=None, how=None):
    kit = kit_module(case.framework).Kit()
    model = kit.language_model() if case.packing else kit.classifier(dropout=0.3)
    stops = Stops(case, step, how)
    data = {"train_dataset": case.made(case.training_data, 13, 1), "eval_dataset": case.made(case.data, 5, 2)}
    args = TrainingArguments(output_dir=str(folder), **RUN | case.options())
    Own.case = case
    stops.trainer = (Looping if case.loop else Own)(model, args, callbacks=[stops], **data)
    stops.trainer.remove_callback(PrinterCallback)
    return kit, stops.trainer


def outcome(kit, trainer):
    """All that a run ends with: weights, random streams, and what it has logged."""
    streams = randomness.get_state(backend_of(trainer))
    timed = ("runtime", "per_second", "total_flos")
    logs = [{k: v for k, v in entry.items() if not k.endswith(timed)} for entry in trainer.state.log_history]
    return kit.weights(trainer.model), streams, logs


def trained(trainer, folder):
    """Train, as far as it goes; whether it came to the end."""
    try:
        trainer.train(resume_from_checkpoint=any(Path(folder).glob("checkpoint-*")))
    except (Preempted, ConnectionError):
        return False
    finally:
        trainer.close()
    return True


def unbroken(case, folder):
    kit, trainer = trainer_of(case, folder)
    assert trained(trainer, folder)
    return outcome(kit, trainer)


def interrupted(case, folder):
    for step, how in case.stops:
        trained(trainer_of(case, folder, step, how)[1], folder)
    kit, trainer = trainer_of(case, folder)
    assert trained(trainer, folder)
    return outcome(kit, trainer)


def differences(case, folder):
    """Of an interrupted run from the unbroken one, in words."""
    whole, resumed = (run(case, Path(folder) / run.__name__) for run in (unbroken, interrupted))
    found = [] if same_bytes(whole[0], resumed[0]) else ["weights"]
    found += [name for name in whole[1] if whole[1][name].tobytes() != resumed[1][name].tobytes()]
    if whole[2] != resumed[2]:
        pairs = [(a, b) for a, b in zip(whole[2], resumed[2]) if a != b]
        found.append(f"logs: {pairs[0] if pairs else (len(whole[2]), len(resumed[2]))}")
    return found


def some_case(draw, framework):
    """A random case that the framework accepts."""
    case = Case(
        framework=framework,
        data_order=draw.choice(["oneloop", "transformers"]),
        data=draw.choice(["plain", "augmented", "walked", "stream", "several"]),
        training_data=draw.choice(["plain", "augmented", "augmented", "walked"]),
        workers=draw.choice([0, 1, 1]),
        persistent=draw.random() < 0.7,
        packing=draw.random() < 0.25,
        start=draw.random() < 0.2,
        calls=draw.choice(["", "", "evaluate", "other", "predict", "again"]),
        loader=draw.choice(["", "", "", "eval", "train"]) if framework == "torch" else "",
        stops=tuple((draw.randint(1, STEPS - 1), draw.choice(["signal", "crash", "evaluation"])) for _ in range(3)),
    )
    case = replace(case, stops=tuple(sorted(case.stops[: draw.randint(1, 3)])))
    if case.packing:
        case = replace(case, data_order="oneloop", loader="")
    if case.packing and case.training_data == "walked" and not case.workers:
        # Read again, it does not draw what it drew between two evaluations, of which a part waits to be packed.
        case = replace(case, training_data="augmented")
    if case.loader and not case.workers:
        case = replace(case, persistent=False)
    # The random numbers that workers of the user draw are not restored, if he keeps them.
    kinds = ["plain"] if case.persistent else ["plain", "augmented"]
    if case.loader == "eval":
        case = replace(case, data=draw.choice(kinds))
    if case.loader == "train":
        case = replace(case, training_data=draw.choice(kinds))
    return case


def main(count, seed=0, framework=None):
    draw, found = random.Random(seed), 0
    for number in range(count):
        case = some_case(draw, framework or names()[number % len(names())])
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            try:
                differ = differences(case, folder)
            except Exception as error:
                differ = [f"{type(error).__name__}: {error}"]
        found += bool(differ)
        print(f"{number} {time.perf_counter() - begun:.1f}s {'FOUND' if differ else 'equal'} {case} {differ or ''}")
        sys.stdout.flush()
    print(f"{count} runs, {found} differ")
    return found


if __name__ == "__main__":
    sys.exit(bool(main(int(sys.argv[1]), *(int(seed) for seed in sys.argv[2:3]), *sys.argv[3:4])))
