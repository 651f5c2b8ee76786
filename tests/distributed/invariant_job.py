"""Runs with world_invariant=True, as a program under torchrun: `invariant_job.py FOLDER CASE [CASE ...]`.

Each case trains with the same 12 micro-batches in an update, whatever the number of processes, and returns a SHA-256 of
what has to be the same: weights, optimizer state and the log history.
"""

import hashlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from oneloop import Mixture, Trainer, TrainerCallback, TrainingArguments
from oneloop.backends.torch import parallel
from oneloop.distributed.world import world
from oneloop.errors import OneloopError
from tests.backends.kits.torch_kit import Job, Kit
from tests.backends.support import rows, tagged
from tests.checkpoint.job import NoisyCollator, NoisyTexts

MICRO_BATCHES = 12
SAMPLES = 101  # of which the last update of an epoch has 5: two micro-batches and a half
CASES = {}
OF_CLOCKS = ("runtime", "second", "time_left")


def case(function):
    CASES[function.__name__] = function
    return function


class Net(nn.Module):
    """With dropout, a tied weight, a layer that only some micro-batches use, and one that none uses."""

    def __init__(self):
        super().__init__()
        self.first, self.drop = nn.Linear(6, 16), nn.Dropout(0.3)
        self.second = nn.Linear(16, 16)
        self.sometimes, self.never = nn.Linear(16, 16), nn.Linear(2, 2)
        self.head = nn.Linear(16, 3)

    def forward(self, x, labels=None):
        x = self.drop(torch.relu(self.first(x)))
        x = torch.tanh(self.second(x)) @ self.second.weight
        if labels is not None and int(labels.sum()) % 4 == 0:
            x = x + self.sometimes(x)
        logits = self.head(x)
        found = {"logits": logits}
        return found if labels is None else {"loss": nn.functional.cross_entropy(logits.float(), labels), **found}


def seeded(make, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


class Noisy:
    """Samples that are augmented with random numbers of Python, NumPy and torch when they are fetched."""

    def __init__(self, count=SAMPLES):
        self.samples = rows(count, features=6, classes=3)

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        sample = self.samples[index]
        noise = random.random() + np.random.rand() + float(torch.rand(()))
        return sample | {"x": sample["x"] * np.float32(1 + noise / 100)}


def arguments(folder, name, **given):
    options = {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": MICRO_BATCHES // world().size,
        "per_device_eval_batch_size": 4,
        "num_train_epochs": 2,
        "learning_rate": 0.02,
        "max_grad_norm": 0.5,
        "weight_decay": 0.1,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "log_level": "warning",
        "device": "cpu",
        "ddp_timeout": 20,
        "world_invariant": True,
    }
    return TrainingArguments(str(Path(folder) / name), **options | given)


def train(folder, name, model=None, data=None, trainer_class=Trainer, resume=None, callbacks=(), **given):
    own = {"eval_dataset", "criterion", "compute_metrics", "data_collator"}
    options = {key: given.pop(key) for key in own & given.keys()}
    trainer = trainer_class(
        seeded(Net) if model is None else model,
        arguments(folder, name, **given),
        train_dataset=Noisy() if data is None else data,
        callbacks=list(callbacks),
        **options,
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def digest(trainer):
    """A SHA-256 of weights, optimizer state, and logged figures without those of the clock."""
    strategy = trainer._oneloop.strategy
    state, _ = strategy.optimizer_state(trainer.optimizer, trainer.model)
    found = hashlib.sha256()
    for tensors in (trainer.model.state_dict(), state):
        for name, tensor in sorted(tensors.items()):
            array = torch.as_tensor(tensor).detach().view(-1).contiguous()
            found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            found.update(array.view(torch.uint8).numpy().tobytes() if array.numel() else b"")
    history = [
        {key: value for key, value in entry.items() if not any(word in key for word in OF_CLOCKS)}
        for entry in trainer.state.log_history
    ]
    assert any("loss" in entry for entry in history)
    found.update(json.dumps(history, sort_keys=True).encode())
    return found.hexdigest() if world().is_main else ""


# Of the last 5 samples of an evaluation, one process has 4 and another 1: not 3 and 2.
EVALUATED = {"eval_dataset": rows(21, features=6, classes=3), "eval_strategy": "epoch"}


def mean_of_predictions(prediction):
    return {"mean": float(np.mean(prediction.predictions))}


@case
def ddp(folder):
    return digest(train(folder, "ddp", compute_metrics=mean_of_predictions, **EVALUATED))


@case
def stage1(folder):
    """The same run with sharded optimizer state."""
    given = {"compute_metrics": mean_of_predictions, "sharding": "stage1", **EVALUATED}
    return digest(train(folder, "stage1", **given))


@case
def buckets(folder):
    """The same run with many messages."""
    size, parallel.BUCKET_BYTES = parallel.BUCKET_BYTES, 300
    try:
        return digest(train(folder, "buckets", compute_metrics=mean_of_predictions, **EVALUATED))
    finally:
        parallel.BUCKET_BYTES = size


@case
def verified(folder):
    """The same run, in which every second update is computed twice."""
    given = {"compute_metrics": mean_of_predictions, "verify_steps": 2, "replay_overrides": ["training_step"]}
    return digest(train(folder, "verified", **given, **EVALUATED))


@case
def with_workers(folder):
    """The same run, with workers that load the samples."""
    given = {"compute_metrics": mean_of_predictions, "dataloader_num_workers": 2}
    return digest(train(folder, "with_workers", **given, **EVALUATED))


@case
def own_step(folder):
    """The same run, with a training_step that calls backward itself."""

    class Stepping(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            model.train()
            inputs = self._prepare_inputs(inputs)
            loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
            loss.backward()
            return loss.detach()

    return digest(train(folder, "own_step", None, None, Stepping, compute_metrics=mean_of_predictions, **EVALUATED))


@case
def bf16(folder):
    return digest(train(folder, "bf16", bf16=True, dataloader_drop_last=True))


@case
def fp16(folder):
    return digest(train(folder, "fp16", fp16=True))


@case
def packed(folder):
    """Documents that are longer than a row, of two datasets."""
    kit = Kit()
    random_numbers = np.random.RandomState(0)

    def documents(count):
        return [
            {"input_ids": random_numbers.randint(1, 8, random_numbers.randint(2, 14)).astype("int64")}
            for _ in range(count)
        ]

    data = Mixture([documents(60), documents(40)], [0.6, 0.4], stop=150)
    given = {"packing": True, "max_length": 8, "include_num_input_tokens_seen": True}
    return digest(train(folder, "packed", kit.language_model(), data, **given))


@case
def unlabelled(folder):
    """Micro-batches without labels, and one update in which most have none."""
    data = tagged([1 + i % 7 for i in range(70)], unlabelled=[4, 5, 20, 21, 22, *range(26, 46)])
    given = {"train_sampling_strategy": "sequential", "per_device_train_batch_size": 2}
    return digest(train(folder, "unlabelled", Kit().tagger(), data, **given))


class Drawing(TrainerCallback):
    def __init__(self):
        self.drawn = []

    def on_step_begin(self, args, state, control, **kwargs):
        self.drawn += [random.random(), float(np.random.rand()), float(torch.rand(()))]


@case
def weighed(folder):
    """Class weights whose sums are rounded; and a callback that draws random numbers between the steps."""
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([0.1, 0.7, 1.3]))

    class Weighed(Net):
        def forward(self, x):
            return super().forward(x)["logits"]

    drawing = Drawing()
    given = {"criterion": criterion, "label_names": ["labels"], "callbacks": [drawing]}
    return [digest(train(folder, "weighed", seeded(Weighed), **given)), drawing.drawn]


@case
def lora(folder):
    import peft

    kit = Job()
    config = peft.LoraConfig(r=3, lora_alpha=8, lora_dropout=0.2, target_modules=["embed", "head"])
    model = seeded(lambda: peft.get_peft_model(kit.model(norm=False), config))
    given = {"data_collator": NoisyCollator(kit), "gradient_checkpointing": False}
    return digest(train(folder, "lora", model, NoisyTexts(50, 5, kit), **given))


@case
def nonfinite(folder):
    """An update that is skipped, since one of its samples is not finite; and an average of the weights."""
    data = rows(SAMPLES, features=6, classes=3)
    data[40]["x"] = data[40]["x"] * np.float32("inf")
    trainer = train(folder, "nonfinite", None, data, nonfinite="skip", ema_decay=0.9)
    assert trainer.state.log_history[-1]["skipped_steps"] == 2
    average = trainer._oneloop.run.parts["average"].values
    return digest(trainer) + hashlib.sha256(b"".join(value.numpy().tobytes() for value in average)).hexdigest()


@case
def by_length(folder):
    """Groups of similar lengths, recomputed blocks, other layouts of memory, noise, and a logged metric."""

    class Strided(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 4, 2).to(memory_format=torch.channels_last)
            self.embed, self.drop = nn.Embedding(20, 9), nn.Dropout(0.2)
            self.head = nn.Linear(4, 3)

        def get_input_embeddings(self):
            return self.embed

        def forward(self, input_ids, labels=None):
            x = self.embed(input_ids).unsqueeze(1)
            x = torch.utils.checkpoint.checkpoint(lambda y: self.drop(self.conv(y)), x, use_reentrant=False)
            return {"loss": nn.functional.cross_entropy(self.head(x.mean((2, 3))), labels)}

    class Logging(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            self.log_metric("share", loss.detach(), weight=len(inputs["labels"]))
            return loss

    random_numbers = np.random.RandomState(0)
    data = [
        {"input_ids": random_numbers.randint(0, 20, random_numbers.randint(3, 9)).astype("int64"), "labels": i % 3}
        for i in range(60)
    ]

    def padded(samples):
        width = max(len(sample["input_ids"]) for sample in samples)
        ids = [np.pad(sample["input_ids"], (0, width - len(sample["input_ids"]))) for sample in samples]
        return {"input_ids": torch.tensor(np.stack(ids)), "labels": torch.tensor([s["labels"] for s in samples])}

    given = {"data_collator": padded, "group_by_length": True, "neftune_noise_alpha": 0.1, "logging_steps": 2}
    return digest(train(folder, "by_length", seeded(Strided), data, Logging, **given))


# -- kills, and other numbers of processes in between


class Killed(TrainerCallback):
    """The last process is killed after a step, once there is a checkpoint."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step and world().rank == world().size - 1:
            while not has_checkpoint(args.output_dir) and self.step > 2:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)


def has_checkpoint(folder):
    return any(Path(folder).glob("checkpoint-*"))


def leg(folder, name, sharding, step):
    """A part of the run `ddp`, which goes on from the newest checkpoint; killed after a step, unless that is 0."""
    given = {"save_strategy": "steps", "save_steps": 2, "compute_metrics": mean_of_predictions, **EVALUATED}
    resume = has_checkpoint(Path(folder, name))
    given |= {"sharding": sharding, "gradient_accumulation_steps": 1 if resume else MICRO_BATCHES // world().size}
    torch.set_num_threads(2)  # of which the run has one, as its checkpoints say
    drawing = Drawing()
    given["callbacks"] = [drawing, Killed(int(step))] if int(step) else [drawing]
    return [digest(train(folder, name, resume=resume, **given)), drawing.drawn]


# -- what is refused


def refusal(function):
    try:
        function()
    except OneloopError as error:
        return f"{type(error).__name__}: {error}"
    return "trained"


@case
def refused(folder):
    class Normed(Net):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(6)

        def forward(self, x, labels=None):
            return super().forward(self.norm(x), labels)

    frozen = seeded(Normed)
    frozen.norm.eval()

    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.EmbeddingBag(3, 3, sparse=True, mode="mean")

        def forward(self, x, labels=None):
            return {"loss": nn.functional.cross_entropy(self.table(labels[:, None]), labels)}

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield from rows(SAMPLES, features=6, classes=3)

    class Sampled(Trainer):
        def _get_train_sampler(self, train_dataset=None):
            return torch.utils.data.RandomSampler(self.train_dataset)

    class Loading(Trainer):
        def get_train_dataloader(self):
            return torch.utils.data.DataLoader(self.train_dataset, 2, collate_fn=self.data_collator)

    class Gathering(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            self.accelerator.gather(loss.detach())
            return loss

    class Counting(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            return loss * self.accelerator.num_processes

    class Scaled(Trainer):
        loss_is_scaled_for_ga = True

    def trying(name, *given, **more):
        return refusal(lambda: train(folder, f"refused_{name}", *given, **more))

    return {
        "batch_norm": trying("batch_norm", seeded(Normed)),
        "frozen_norm": trying("frozen_norm", frozen, max_steps=1),
        "sparse": trying("sparse", seeded(Sparse), optim="sgd"),
        "stream": trying("stream", None, Stream(), max_steps=2),
        "sampler": trying("sampler", None, None, Sampled),
        "loader": trying("loader", None, None, Loading),
        "collectives": trying("collectives", None, None, Gathering),
        "processes": trying("processes", None, None, Counting),
        "scaled": trying("scaled", None, None, Scaled),
    }


def main(argv):
    folder, *names = argv
    if names and names[0] == "leg":
        found = {"leg": leg(folder, *names[1:])}
    else:
        found = {name: CASES[name](folder) for name in names}
    (Path(folder) / f"rank{world().rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
