"""Short runs that several processes share, as a program under torchrun: `job.py FOLDER CASE [CASE ...]`; see cases.py.

Here are the cases that only torch has; those of every framework are run with them.
"""

import hashlib
import json
import os
import random
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from oneloop import Trainer, TrainerCallback
from oneloop.backends.torch import parallel
from oneloop.distributed import step_sync
from oneloop.distributed.world import world
from oneloop.errors import ProcessLostError
from tests.backends.support import FEATURES, rows, tagged
from tests.distributed.cases import (
    CASES,
    GLOBAL_BATCH,
    KIT,
    LENGTHS,
    UNLABELLED,
    Numbered,
    arguments,
    case,
    course,
    in_two,
    main,
    mean_of_predictions,
    train,
)

torch.set_num_threads(1)
__all__ = ["CASES", "GLOBAL_BATCH", "KIT", "arguments", "main", "mean_of_predictions", "train"]

# -- gradients


class Gradients(TrainerCallback):
    """Every single gradient of every update, whole, after clipping."""

    def __init__(self):
        self.found = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        whole = [getattr(p.grad, "full_tensor", lambda p=p: p.grad)() for p in model.parameters()]
        self.found.append(torch.cat([g.flatten() for g in whole]).tolist())


@case
def gradients(folder):
    given = {"optim": "adamw_torch", "learning_rate": 0.01}
    return gradients_of(folder, "gradients", **given)


def gradients_of(folder, name, **given):
    kept = Gradients()
    given |= {"gradient_accumulation_steps": 2, "per_device_train_batch_size": GLOBAL_BATCH // world().size // 2}
    train(folder, name, KIT.tagger(), tagged(LENGTHS, unlabelled=UNLABELLED), callbacks=[kept], **given)
    return kept.found


# -- losses of the user's, and the like


def _logits_loss(logits, labels, reduction):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction=reduction)


@case
def overridden(folder):
    """A compute_loss that divides by num_items_in_batch itself."""

    class Dividing(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            labels = inputs["labels"]
            outputs = model(**inputs)
            items = num_items_in_batch if num_items_in_batch is not None else (labels != -100).sum()
            loss = _logits_loss(outputs["logits"], labels, "sum") / items
            return (loss, outputs) if return_outputs else loss

    return course(train(folder, "overridden", KIT.tagger(), tagged(LENGTHS, unlabelled=UNLABELLED), Dividing))


@case
def loss_function(folder):
    """A compute_loss_func that divides by num_items_in_batch itself."""

    def divided(outputs, labels, num_items_in_batch=None):
        return _logits_loss(outputs["logits"], labels, "sum") / num_items_in_batch

    data = tagged(LENGTHS, unlabelled=UNLABELLED)
    return course(train(folder, "loss_function", KIT.tagger(), data, compute_loss_func=divided))


@case
def summed(folder):
    """A criterion that sums: nothing is divided."""
    criterion = torch.nn.CrossEntropyLoss(reduction="sum")
    model = KIT.classifier(returns="logits")
    return course(train(folder, "summed", model, rows(29), criterion=criterion, learning_rate=0.01))


@case
def own_step(folder):
    """A training_step that calls compute_loss with the items and takes the backward pass into its own hands."""

    class Stepping(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            model.train()
            inputs = self._prepare_inputs(inputs)
            loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
            self.accelerator.backward(loss)
            return loss.detach()

    return course(train(folder, "own_step", KIT.tagger(), tagged(LENGTHS, unlabelled=UNLABELLED), Stepping))


class Divides:
    """Overrides that divide by num_items_in_batch themselves; those that mind know of other processes."""

    def share(self, model, inputs, num_items_in_batch):
        outputs = model(**inputs)
        items = num_items_in_batch if num_items_in_batch is not None else (inputs["labels"] != -100).sum()
        return _logits_loss(outputs["logits"], inputs["labels"], "sum") / items, outputs

    def stepped(self, loss):
        self.accelerator.backward(loss)
        return loss.detach()


class StepDivides(Divides, Trainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        loss, _ = self.share(model, self._prepare_inputs(inputs), num_items_in_batch)
        return self.stepped(loss)


class StepMinds(Divides, Trainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        loss, _ = self.share(model, self._prepare_inputs(inputs), num_items_in_batch)
        return self.stepped(loss * self.accelerator.num_processes)


class LossOfSuper(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


class LossMinds(Divides, Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = self.share(model, inputs, num_items_in_batch)
        if self.args.average_tokens_across_devices and num_items_in_batch is not None:
            loss *= self.accelerator.num_processes
        return (loss, outputs) if return_outputs else loss


class StepOfSuper(Trainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        return super().training_step(model, inputs, num_items_in_batch)


class BothDivide(Divides, Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = self.share(model, inputs, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def training_step(self, model, inputs, num_items_in_batch=None):
        inputs = self._prepare_inputs(inputs)
        return self.stepped(self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch))


def _with_items(folder, name, trainer_class):
    return course(train(folder, name, KIT.tagger(), tagged(LENGTHS, unlabelled=UNLABELLED), trainer_class))


@case
def step_divides(folder):
    return _with_items(folder, "step_divides", StepDivides)


@case
def step_minds(folder):
    return _with_items(folder, "step_minds", StepMinds)


@case
def loss_of_super(folder):
    return _with_items(folder, "loss_of_super", LossOfSuper)


@case
def loss_minds(folder):
    return _with_items(folder, "loss_minds", LossMinds)


@case
def step_of_super(folder):
    return _with_items(folder, "step_of_super", StepOfSuper)


@case
def both_divide(folder):
    return _with_items(folder, "both_divide", BothDivide)


@case
def timed(folder):
    """The last process has a slow model, and the figures of the log say so."""

    class Slow(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = KIT.classifier()

        def forward(self, x, labels=None):
            time.sleep(0.02 if world().rank == world().size - 1 else 0)
            return self.inner(x, labels)

    train(folder, "timed", Slow(), rows(64), max_steps=20, logging_steps=5)
    lines = map(json.loads, (Path(folder) / "timed" / "log.jsonl").read_text().splitlines())
    return [{key: value for key, value in line.items() if "process_seconds" in key} for line in lines]


@case
def with_workers(folder):
    """Loading processes, and one sample for all processes at the end of an epoch."""
    return course(train(folder, "with_workers", KIT.classifier(), rows(17), dataloader_num_workers=1))


@case
def recomputed_in_half(folder):
    """bf16 and recomputed blocks under DDP."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    given = {"criterion": torch.nn.CrossEntropyLoss(), "label_names": ["labels"], "bf16": True}

    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = model

        def forward(self, x):
            return self.blocks(x)

    return course(train(folder, "half", Wrapped(), rows(32), **given, gradient_checkpointing=True))


@case
def process_means(folder):
    """average_tokens_across_devices=False: every process weighs the same."""
    data = tagged(LENGTHS)
    given = {"average_tokens_across_devices": False, "max_steps": 1}
    return course(train(folder, "means", KIT.tagger(), data, **given))


# -- other data


class Lines(torch.utils.data.IterableDataset):
    """Walked through in an order that `random` draws anew; by default from the global streams, while it goes."""

    def __init__(self, samples, generator=False):
        self.samples = samples
        self.given = []
        if generator:
            self.generator = torch.Generator()

    def __iter__(self):
        generator = getattr(self, "generator", None)
        left = list(range(len(self.samples)))
        while left:
            drawn = torch.randint(len(left), (), generator=generator) if generator else random.randrange(len(left))
            index = left.pop(int(drawn))
            self.given.append(index)
            yield self.samples[index] | {"number": index}


class Kept:
    """A collator that remembers which samples came."""

    def __init__(self):
        self.numbers = []

    def __call__(self, samples):
        self.numbers.append([int(sample["number"]) for sample in samples])
        return {
            "x": torch.tensor(np.stack([sample["x"] for sample in samples])),
            "labels": torch.tensor([sample["labels"] for sample in samples]),
        }


def _iterable(folder, name, generator, **given):
    kept = Kept()
    options = {"data_collator": kept, "remove_unused_columns": False, "num_train_epochs": 2, "max_steps": 8}
    train(folder, name, KIT.classifier(), Lines(rows(29), generator), **options | given)
    return kept.numbers


@case
def iterable(folder):
    """An iterable data set that shuffles by the global streams, in one process by another place in them."""
    return _iterable(folder, "iterable", generator=False)


@case
def iterable_with_generator(folder):
    return _iterable(folder, "iterable_with_generator", generator=True)


@case
def iterable_evaluated(folder):
    trainer = Trainer(KIT.classifier(), arguments(folder, "iterable_evaluated"), compute_metrics=mean_of_predictions)

    class Plain(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield from rows(31, seed=5)

    found = trainer.predict(Plain())
    return {"labels": found.label_ids.tolist(), "loss": found.metrics["test_loss"]}


@case
def own_sampler(folder):
    """A sampler of the user's that shuffles by the global streams."""

    class Sampled(Trainer):
        def _get_train_sampler(self, train_dataset=None):
            return torch.utils.data.RandomSampler(self.train_dataset)

    data = Numbered(rows(29))
    trainer = train(folder, "own_sampler", KIT.classifier(), data, Sampled)
    return {"asked": data.asked, "steps": trainer.state.global_step, "losses": trainer.seen.losses}


@case
def own_loader(folder):
    """A loader of the user's that shuffles by the global streams."""

    class Loading(Trainer):
        def get_train_dataloader(self):
            size = self.args.per_device_train_batch_size
            return torch.utils.data.DataLoader(kept_rows, size, shuffle=True, collate_fn=kept)

        def get_eval_dataloader(self, eval_dataset=None):
            return torch.utils.data.DataLoader(rows(31, seed=5), 4, collate_fn=self.data_collator)

    kept = Kept()
    kept_rows = [sample | {"number": i} for i, sample in enumerate(rows(29))]
    trainer = train(folder, "own_loader", KIT.classifier(), kept_rows, Loading, compute_metrics=mean_of_predictions)
    return {
        "numbers": kept.numbers,
        "steps": trainer.state.global_step,
        "losses": trainer.seen.losses,
        "count": trainer.evaluate()["eval_count"],
    }


@case
def loader_of_shards(folder):
    """A loader of the user's, of an iterable data set that gives each process its own samples."""

    class Shards(torch.utils.data.IterableDataset):
        def __iter__(self):
            rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
            yield from samples[rank::size]

    class Loading(Trainer):
        def get_train_dataloader(self):
            return torch.utils.data.DataLoader(Shards(), self.args.per_device_train_batch_size, collate_fn=kept)

    kept = Kept()
    samples = [sample | {"number": i} for i, sample in enumerate(rows(32))]
    train(folder, "loader_of_shards", KIT.classifier(), samples, Loading, num_train_epochs=1, max_steps=4)
    return kept.numbers


@case
def sampler_of_shards(folder):
    """A loader of the user's with a batch sampler of their own, which asks for the rank in a property (ms-swift)."""

    class Sharded:
        @property
        def rank(self):
            return dist.get_rank() if dist.is_initialized() else 0

        def __len__(self):
            return 4

        def __iter__(self):
            size = 8 // world().size
            yield from (list(range(32))[self.rank :: world().size][size * i :][:size] for i in range(4))

    class Loading(Trainer):
        def get_train_dataloader(self):
            return torch.utils.data.DataLoader(samples, batch_sampler=Sharded(), collate_fn=kept)

    kept = Kept()
    samples = [sample | {"number": i} for i, sample in enumerate(rows(32))]
    train(folder, "sampler_of_shards", KIT.classifier(), samples, Loading, num_train_epochs=1)
    return kept.numbers


@case
def distributed_sampler(folder):
    """A loader of the user's with torch's DistributedSampler, which deals its samples out; also after a resume."""
    from torch.utils.data import DataLoader, DistributedSampler

    def training(name, resume=None):
        kept = Kept()
        samples = [sample | {"number": i} for i, sample in enumerate(rows(32))]

        class Loading(Trainer):
            def get_train_dataloader(self):
                sampler = DistributedSampler(samples, world().size, world().rank, seed=3)
                return DataLoader(samples, self.args.per_device_train_batch_size, sampler=sampler, collate_fn=kept)

        given = {"save_strategy": "steps", "save_steps": 6, "resume": resume}
        trainer = train(folder, name, KIT.classifier(), samples, Loading, **given)
        return course(trainer) | {"numbers": kept.numbers}

    whole = training("distributed")
    return {"whole": whole, "again": training("distributed_again", str(Path(folder) / "distributed" / "checkpoint-6"))}


class Noisy(Numbered):
    """Each look at a sample adds a number from each of the global streams."""

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        noise = random.random() + np.random.rand() + float(torch.rand(()))
        return sample | {"x": sample["x"] + np.float32(noise)}


@case
def noisy(folder):
    """Data that draws random numbers, with the same numbers on any number of processes."""
    trainer = train(folder, "noisy", KIT.classifier(), Noisy(rows(29)), seed_each_sample=True)
    return course(trainer)


# -- manners


class Partly(torch.nn.Module):
    """A layer that never takes part in the loss."""

    def __init__(self):
        super().__init__()
        self.inner = KIT.classifier()
        self.unused = torch.nn.Linear(3, 3)

    def forward(self, x, labels=None):
        return self.inner(x, labels)


@case
def unused_parameters(folder):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(world().rank)  # other weights in each process: those of the main one count
        model = Partly()
    trainer = train(folder, "unused", model, rows(29))
    return course(trainer) | {"finds": getattr(trainer.model_wrapped, "find_unused_parameters", None)}


class Wide(torch.nn.Module):
    """Enough for three packs of gradients of a megabyte, in layers that are used in another order than defined."""

    def __init__(self, unused=False):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            self.last = torch.nn.Linear(512, 3)
            self.first = torch.nn.Linear(FEATURES, 512)
            self.middle = torch.nn.ModuleList(torch.nn.Linear(512, 512) for _ in range(3))
            self.unused = torch.nn.Linear(3, 3) if unused else None

    def forward(self, x, labels=None):
        x = torch.relu(self.first(x))
        for layer in self.middle:
            x = x + torch.tanh(layer(x))
        logits = self.last(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def _digested(found):
    """Bytes of all weights as one number: there are many."""
    for each in (found["whole"], found["again"]):
        weights = np.concatenate([np.ravel(value).astype(np.float32) for value in each["weights"].values()])
        each["weights"] = hashlib.sha256(weights.tobytes()).hexdigest()
    return found


@case
def resumed_otherwise(folder):
    """Where DDP packs gradients in other ways: in many packs, with a fixed graph, with unused parameters."""
    runs = {
        "small": {"ddp_bucket_cap_mb": 1},
        "static": {"ddp_bucket_cap_mb": 1, "ddp_static_graph": True},
        "unused": {"unused": True},
        "accumulated": {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 1},
        "stage1": {"sharding": "stage1"},
    }
    found = {}
    for name, given in runs.items() if world().size == 4 else ():  # two numbers have but one order
        model = partial(Wide, unused=given.pop("unused", False))
        given |= {"save_steps": 2, "max_steps": 4, "learning_rate": 0.001}
        found[name] = _digested(in_two(folder, f"packs-{name}", model, rows(32), **given))
    return found


class Cramped(torch.nn.Module):
    """The last process has room for two samples at once."""

    def __init__(self):
        super().__init__()
        self.inner = KIT.classifier()
        self.rows = []

    def forward(self, x, labels=None):
        if world().rank == world().size - 1 and len(x) > 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: for the test")
        self.rows.append(len(x))
        return self.inner(x, labels)


@case
def out_of_memory(folder):
    """auto_find_batch_size: one process computes in smaller parts, and the update is the same."""
    model = Cramped()
    found = course(train(folder, "cramped", model, rows(29), auto_find_batch_size=True, ddp_broadcast_buffers=None))
    return found | {"rows": max(model.rows)}


@case
def each_node(folder):
    """save_on_each_node: processes that see other disks, and are the first of their machine each."""
    if world().size == 1:
        return None
    kept, here = os.environ["LOCAL_RANK"], os.getcwd()
    place = Path(folder) / f"node{world().rank}"
    place.mkdir()
    os.environ["LOCAL_RANK"] = "0"
    os.chdir(place)
    try:
        given = {"save_on_each_node": True, "save_strategy": "steps", "save_steps": 4, "max_steps": 8}
        given |= {"optim": "adamw_torch", "sharding": "stage1" if world().size == 2 else ""}
        whole = course(train(".", "out", KIT.classifier(), rows(32), **given))
        again = course(train(".", "again", KIT.classifier(), rows(32), resume="out/checkpoint-4", **given))
        return {"whole": whole, "again": again, "files": sorted(p.name for p in Path("out/checkpoint-4").iterdir())}
    finally:
        os.environ["LOCAL_RANK"] = kept
        os.chdir(here)


@case
def options_of_ddp(folder):
    given = {"ddp_bucket_cap_mb": 3, "ddp_broadcast_buffers": False, "ddp_find_unused_parameters": False}
    trainer = train(folder, "options", KIT.classifier(norm=True), rows(32), **given, ddp_static_graph=True)
    wrapped = trainer.model_wrapped
    return {
        "is_ddp": isinstance(wrapped, torch.nn.parallel.DistributedDataParallel),
        "bucket": getattr(wrapped, "bucket_bytes_cap", None),
        "buffers": getattr(wrapped, "broadcast_buffers", None),
        "finds": getattr(wrapped, "find_unused_parameters", None),
        "static": getattr(wrapped, "static_graph", None),
        "losses": trainer.seen.losses,
    }


class LooksOn(TrainerCallback):
    def __init__(self):
        self.steps = 0

    def on_step_end(self, args, state, control, **kwargs):
        self.steps = state.global_step
        return control


class MayAsk(LooksOn):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = False


@case
def messages(folder):
    """How often a process sends a message of its own in a run of 24 updates that logs and saves nothing."""
    waited, (compare, later), long = (
        [],
        (parallel.FrameworkProcesses.all_gather, parallel.FrameworkProcesses.all_gather_async),
        step_sync.LONG_STEP,
    )
    step_sync.LONG_STEP = 600.0

    def counted(processes, numbers):
        waited.append(1)
        return compare(processes, numbers)

    def counted_later(processes, numbers):
        waited.append(1)
        return later(processes, numbers)

    given = {"num_train_epochs": 1, "logging_strategy": "no", "ddp_find_unused_parameters": False}
    found = {}
    parallel.FrameworkProcesses.all_gather, parallel.FrameworkProcesses.all_gather_async = counted, counted_later
    try:
        for name, callback in (("looks_on", LooksOn()), ("asks", MayAsk())):
            waited.clear()
            trainer = train(folder, name, KIT.classifier(), rows(24 * GLOBAL_BATCH), callbacks=[callback], **given)
            found |= {name: len(waited), "steps": trainer.state.global_step}
    finally:
        parallel.FrameworkProcesses.all_gather, parallel.FrameworkProcesses.all_gather_async = compare, later
        step_sync.LONG_STEP = long
    return found


@case
def batch_metrics(folder):
    """batch_eval_metrics: compute_metrics of the main process sees every batch, in order."""
    seen = []

    def compute(prediction, compute_result=False):
        seen.append(len(prediction.label_ids))
        return {"count": sum(seen), "batches": len(seen)} if compute_result else {}

    trainer = Trainer(
        KIT.classifier(),
        arguments(folder, "batches", batch_eval_metrics=True),
        eval_dataset=rows(31),
        compute_metrics=compute,
    )
    metrics = trainer.evaluate()
    return {"seen": seen, "count": metrics["eval_count"], "batches": metrics["eval_batches"]}


@case
def failing_metrics(folder):
    """An error in the main process's compute_metrics is one of all."""

    def compute(prediction):
        raise ZeroDivisionError("nothing to divide")

    trainer = Trainer(KIT.classifier(), arguments(folder, "failing"), eval_dataset=rows(9), compute_metrics=compute)
    try:
        trainer.evaluate()
    except (ZeroDivisionError, ProcessLostError) as error:
        return f"{type(error).__name__}: {error}"


@case
def accelerators(folder):
    """What overrides written for other trainers reach for."""
    trainer = Trainer(KIT.classifier(), arguments(folder, "accelerator"))
    given, rank = trainer.accelerator, world().rank
    given.wait_for_everyone()
    rows_of_mine = torch.full((rank + 1, 2), float(rank))
    return {
        "gathered": given.gather({"a": rows_of_mine})["a"].tolist(),
        "scalars": given.gather_for_metrics(torch.tensor(rank)).reshape(-1).tolist(),
        "padded": given.pad_across_processes(rows_of_mine, dim=0, pad_index=-1).tolist(),
        "sum": float(given.reduce(torch.tensor(1.0))),
        "mean": float(given.reduce(torch.tensor(float(rank)), reduction="mean")),
        "nested": trainer._nested_gather((torch.tensor([rank]),))[0].tolist(),
    }


@case
def criterion_with_weights(folder):
    """A criterion with parameters of its own, which no wrapper of the model knows."""

    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(()))

        def forward(self, logits, labels):
            return torch.nn.functional.cross_entropy(logits * self.scale, labels)

    criterion = Scaled()

    class WithCriterion(Trainer):
        def create_optimizer(self, model=None):
            both = [*self.model.parameters(), *criterion.parameters()]
            self.optimizer = torch.optim.SGD(both, lr=0.1)
            return self.optimizer

    model = KIT.classifier(returns="logits")
    trainer = train(folder, "criterion", model, rows(29), WithCriterion, criterion=criterion)
    return course(trainer) | {"scale": float(criterion.scale.detach())}


if __name__ == "__main__":
    main(*sys.argv[1:])
