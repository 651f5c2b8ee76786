"""Short runs that several processes share, for every framework: `cases.py FOLDER CASE [CASE ...]`.

The framework is that of the variable FRAMEWORK. Each case trains or evaluates, and returns what the tests compare;
every process writes the results of all cases into FOLDER/rankN.json. The same cases run in one process, with the same
global batch. What torch alone has is in job.py.
"""

import gc
import json
import os
import random
import signal
import sys
import weakref
from importlib import import_module
from pathlib import Path

import numpy as np

from oneloop import Mixture, Trainer, TrainerCallback, TrainingArguments
from oneloop.distributed.world import world
from oneloop.errors import ArgumentError, DataError, NonFiniteError
from tests.backends.support import WORDS, kit_module, rows, tagged
from tests.internals import backend_of, part_of, processes_of, skipped_updates
from tests.trainer import loss_table as loss_rows

KIT = kit_module(os.environ.get("FRAMEWORK", "torch")).Kit()
CASES = {}
GLOBAL_BATCH = 8
LENGTHS = [1 + (7 * i) % 9 for i in range(29)]
UNLABELLED = (3, 4, 5, 11, 20)


def case(function):
    CASES[function.__name__] = function
    return function


class Seen(TrainerCallback):
    """Losses and norms of every log."""

    def __init__(self):
        self.losses, self.norms = [], []

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            self.losses.append(logs["loss"])
            self.norms.append(logs.get("grad_norm"))


class Numbered:
    """Samples that say which they are, and remember who asked for them."""

    def __init__(self, samples):
        self.samples = samples
        self.asked = []

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        self.asked.append(index)
        return self.samples[index]


def arguments(folder, name, **given):
    size = world().size
    options = {
        "per_device_train_batch_size": GLOBAL_BATCH // size,
        "per_device_eval_batch_size": 3,
        "num_train_epochs": 2,
        "learning_rate": 0.1,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "log_level": "warning",
        "device": "cpu",
        "ddp_timeout": 60,
    }
    return TrainingArguments(str(Path(folder) / name), **options | given)


def train(folder, name, model, data, trainer_class=Trainer, resume=None, callbacks=(), **given):
    own = {"eval_dataset", "criterion", "compute_loss_func", "compute_metrics", "data_collator"}
    options = {key: given.pop(key) for key in own & given.keys()}
    seen = Seen()
    trainer = trainer_class(
        model, arguments(folder, name, **given), train_dataset=data, callbacks=[seen, *callbacks], **options
    )
    trainer.seen = seen
    trainer.result = trainer.train(resume_from_checkpoint=resume)
    return trainer


def course(trainer):
    """What equal runs have in common."""
    return {
        "weights": {name: value.tolist() for name, value in KIT.weights(trainer.model).items()},
        "losses": trainer.seen.losses,
        "norms": trainer.seen.norms,
        "train_loss": trainer.result.training_loss,
        "steps": trainer.state.global_step,
    }


# -- the same update as one process


@case
def sgd(folder):
    """29 samples: the last update of an epoch has 5, which 4 processes divide unevenly."""
    data = Numbered(rows(29))
    trainer = train(folder, "sgd", KIT.classifier(), data)
    return course(trainer) | {"asked": data.asked}


@case
def adamw(folder):
    return course(train(folder, "adamw", KIT.classifier(), rows(29), optim="adamw_torch", learning_rate=0.01))


@case
def few_left(folder):
    """17 samples: one is left for all processes at the end of an epoch."""
    data = Numbered(rows(17))
    return course(train(folder, "few_left", KIT.classifier(), data)) | {"asked": data.asked}


@case
def accumulated(folder):
    """Half the micro-batch and two of them; the last update of an epoch is short."""
    half = GLOBAL_BATCH // world().size // 2
    given = {"per_device_train_batch_size": half, "gradient_accumulation_steps": 2}
    return course(train(folder, "accumulated", KIT.classifier(), rows(29), **given))


@case
def tokens(folder):
    """Labels of many lengths, some samples without any: the update is averaged over tokens."""
    return course(train(folder, "tokens", KIT.tagger(), tagged(LENGTHS, unlabelled=UNLABELLED)))


@case
def tokens_accumulated(folder):
    data = tagged(LENGTHS, unlabelled=UNLABELLED)
    half = GLOBAL_BATCH // world().size // 2
    given = {"per_device_train_batch_size": half, "gradient_accumulation_steps": 2}
    return course(train(folder, "tokens_accumulated", KIT.tagger(), data, **given))


@case
def loss_table(folder):
    """Every row of tests/trainer/loss_table.py."""
    found = {}
    for name, (trainer_class, options, compared) in loss_rows.table(KIT).items():
        given = loss_rows.arguments(world().size) | options
        trainer = train(folder, "loss_table", KIT.tagger(), loss_rows.data(name), trainer_class, **given)
        found[name] = course(trainer) | {"compared": compared}
    return found


def undeclared():
    """A language model that does not say that it compares position i with label i + 1."""
    model = KIT.language_model(masked=False)
    model.__class__ = type("Plain", (type(model),), {"shifts_labels": None})
    return model


def told():
    """Tokens as labels. The first ones have none, so that on several processes the first one has none to begin with."""
    samples = tagged(LENGTHS, unlabelled=range(4))
    return [row | {"labels": np.where(row["labels"] < 0, -100, row["input_ids"])} for row in samples]


@case
def shifted(folder):
    return course(train(folder, "shifted", undeclared(), told(), train_sampling_strategy="sequential"))


def documents(count, seed=0):
    random = np.random.RandomState(seed)
    return [{"input_ids": random.randint(1, WORDS, 2 + (11 * i) % 29).tolist()} for i in range(count)]


PACKED = {"packing": True, "max_length": 8}


@case
def packed(folder):
    """Documents that are longer than a row, of two datasets. The last row is short."""
    mixture = Mixture([documents(9), documents(7, seed=1)], [0.6, 0.4], stop=29)
    return course(train(folder, "packed", KIT.language_model(), mixture, **PACKED))


@case
def packed_stream(folder):
    given = PACKED | {"max_steps": 7, "num_train_epochs": 1}
    return course(train(folder, "packed_stream", KIT.language_model(), iter(documents(40)), **given))


@case
def labels_of_some(folder):
    """In the second update only some of the processes have labels, and in the fourth only some micro-batches."""
    data = tagged([5] * 40, unlabelled=[12, 13, 14, 15, 24, 25])
    return course(train(folder, "some", KIT.tagger(), data, train_sampling_strategy="sequential"))


@case
def labels_of_some_accumulated(folder):
    data = tagged([5] * 40, unlabelled=[10, 11, 12, 13, 14, 15, 24, 25])
    half = GLOBAL_BATCH // world().size // 2
    given = {"per_device_train_batch_size": half, "gradient_accumulation_steps": 2}
    return course(train(folder, "some", KIT.tagger(), data, train_sampling_strategy="sequential", **given))


class Closing(Trainer):
    """Exchanges a number in the last micro-batch of each update, as TRL does, and so in all processes or in none."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        self.places.append(self.accelerator.sync_gradients)
        if self.accelerator.sync_gradients:
            processes = processes_of(self)
            self.sums.append(sum(count for (count,) in processes.all_gather([len(self.places)])))
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


@case
def closing(folder):
    """Updates of three micro-batches and of two, of which some processes have only one."""
    Closing.places, Closing.sums = [], []
    size = GLOBAL_BATCH // world().size
    data = rows(4 * GLOBAL_BATCH + 1)
    trainer = train(folder, "closing", KIT.classifier(), data, Closing, num_train_epochs=1,
                    gradient_accumulation_steps=3, per_device_train_batch_size=size)  # fmt: skip
    return {"places": Closing.places, "sums": Closing.sums, "after": trainer.accelerator.sync_gradients}


# -- evaluation


def mean_of_predictions(prediction):
    logits, labels = prediction.predictions, prediction.label_ids
    return {"accuracy": float((logits.argmax(-1) == labels).mean()), "count": len(labels)}


@case
def evaluated(folder):
    """31 samples in batches of 3: the last turn is uneven."""
    trainer = Trainer(
        KIT.classifier(),
        arguments(folder, "evaluated"),
        eval_dataset=rows(31, seed=5),
        compute_metrics=mean_of_predictions,
    )
    metrics = trainer.evaluate()
    predicted = trainer.predict(rows(7, seed=6))
    times = ("runtime", "per_second")
    return {
        "metrics": {name: value for name, value in metrics.items() if not name.endswith(times)},
        "all_metrics": metrics,
        "predictions": predicted.predictions.tolist(),
        "labels": predicted.label_ids.tolist(),
        "test_loss": predicted.metrics["test_loss"],
    }


# -- another number of processes

UPDATE = 12  # samples
PER_DEVICE = {1: 3, 2: 3, 3: 4, 4: 3}


def elastic_run(folder, name, resume=None, **given):
    options = {"per_device_train_batch_size": PER_DEVICE[world().size], "max_steps": 8, "optim": "adamw_torch"}
    options |= {"save_strategy": "steps", "save_steps": 4, "learning_rate": 0.01}
    data = Numbered(rows(44))
    trainer = train(folder, name, KIT.classifier(), data, resume=resume, **options | given)
    return course(trainer) | {"asked": data.asked}


@case
def elastic(folder):
    accumulation = UPDATE // world().size // PER_DEVICE[world().size]
    return elastic_run(folder, "elastic", gradient_accumulation_steps=accumulation)


class Gradients(TrainerCallback):
    """How many numbers of gradients this process has when the optimizer steps."""

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.numbers = sum(p.grad.size for p in model.parameters() if p.grad is not None)


def stage1(folder):
    """The same with divided optimizer state, in one go and in two; how many numbers of state this process keeps."""
    shared = {"sharding": "stage1"} if world().size > 1 else {}
    given = {"per_device_train_batch_size": UPDATE // world().size, "weight_decay": 0.1, **shared}
    whole = elastic_run(folder, "stage1", **given)
    again = elastic_run(folder, "stage1_again", str(Path(folder) / "stage1" / "checkpoint-4"), **given)
    args = arguments(folder, "stage1_sizes", optim="adamw", **shared)
    trainer = Trainer(KIT.classifier(), args, train_dataset=rows(UPDATE))
    trainer.train()
    state = KIT.optimizer(trainer)
    # Accumulated and clipped.
    more = {"per_device_train_batch_size": UPDATE // world().size // 2, "gradient_accumulation_steps": 2}
    more = given | more | {"max_grad_norm": 0.1, **({"sharding": "stage2"} if world().size > 1 else {})}
    # In the last update of an epoch there is one sample for all processes, and one has a loss that is not finite.
    data, gradients = rows(17), Gradients()
    data[5]["x"][:] = np.nan
    few = {"optim": "adamw_torch", "nonfinite": "skip", "sharding": more.get("sharding", "")}
    few = train(folder, "stage2_few", KIT.classifier(), data, callbacks=[gradients], **few)
    groups = given | {"optim": "adagrad"}  # on Paddle, its weight decay needs groups of parameters
    return {
        "whole": whole,
        "again": again,
        "numbers": sum(a.size for name, a in state.items() if "moment" in name),
        "groups": elastic_run(folder, "groups", **groups),
        "groups_again": elastic_run(folder, "groups_again", str(Path(folder) / "groups" / "checkpoint-4"), **groups),
        "few_left": {"weights": course(few)["weights"], "losses": few.seen.losses, "skipped": skipped_updates(few)},
        "gradients": gradients.numbers,
        "stage2": elastic_run(folder, "stage2", **more),
        "stage2_again": elastic_run(folder, "stage2_again", str(Path(folder) / "stage2" / "checkpoint-4"), **more),
        "stage2_groups": elastic_run(folder, "stage2_groups", **more | {"optim": "adagrad"}),
    }


class Fails(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if world().rank == 1 and state.global_step == 3:
            raise KeyError("broken")


def fails(folder):
    """One process leaves after an error; saves come before."""
    given = {"save_strategy": "steps", "save_steps": 2, "max_steps": 50}
    train(folder, "fails", KIT.classifier(), rows(29), callbacks=[Fails()], **given)


class Dies(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if world().rank == 1 and state.global_step == 3:
            os.kill(os.getpid(), signal.SIGKILL)


def dies(folder):
    """One process is killed; saves come before."""
    given = {"save_strategy": "steps", "save_steps": 2, "max_steps": 50}
    train(folder, "dies", KIT.classifier(), rows(29), callbacks=[Dies()], **given)


def model_again(folder):
    """A model is trained, then another one, then the first again; and once more by another Trainer, the first of which
    is no longer in memory."""
    seen, models = Seen(), [KIT.classifier(seed=seed) for seed in (0, 1)]
    args = arguments(folder, "again", max_steps=3)
    trainer = Trainer(models[0], args, train_dataset=rows(29), callbacks=[seen])
    for model in (models[0], models[1], models[0]):
        trainer.model = trainer.model_wrapped = model
        trainer.train()
    del trainer, model
    gc.collect()
    Trainer(models[0], args, train_dataset=rows(29), callbacks=[seen]).train()
    parameters = [weakref.ref(p) for p in models[0].parameters()]
    models.clear()
    gc.collect()
    return {"losses": seen.losses, "norms": seen.norms, "freed": [parameter() is None for parameter in parameters]}


def half(folder):
    """float16 with every strategy, on two processes; float32 on one."""
    return paddle_sharding.half_runs(train, course, folder)


def in_groups(folder):
    """The state divided over two of four processes."""
    return paddle_sharding.runs_in_groups(elastic_run, folder)


if KIT.name == "mindspore":
    case(dies)
    case(fails)
if KIT.name == "paddle":  # torch has more, in sharding_job.py and running.py
    from tests.distributed import paddle_sharding

    case(stage1)
    case(fails)
    case(model_again)
    case(half)
    case(in_groups)


# -- manners


class Asking(TrainerCallback):
    """The last process alone asks for things; all note what is done."""

    def __init__(self):
        self.saved, self.evaluated = [], []

    def on_step_end(self, args, state, control, **kwargs):
        if world().rank == world().size - 1:
            control.should_save = state.global_step == 2
            control.should_evaluate = state.global_step == 3
            control.should_training_stop = state.global_step == 5

    def on_save(self, args, state, control, **kwargs):
        self.saved.append(state.global_step)

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        self.evaluated.append((state.global_step, metrics["eval_loss"]))


class Gathering(Asking):
    """Its on_save is a collective, as ray.train.report is: it hangs unless all processes call it at the same point."""

    def on_save(self, args, state, control, **kwargs):
        processes = import_module(f"oneloop.backends.{KIT.name}.parallel").init_process_group(args)
        self.saved.append([int(step) for (step,) in processes.all_gather([state.global_step])])


@case
def asked_by_one(folder):
    asking = Gathering()
    trainer = train(
        folder,
        "asked",
        KIT.classifier(),
        rows(80),
        callbacks=[asking],
        eval_dataset=rows(5),
        include_tokens_per_second=True,
    )
    return {"saved": asking.saved, "evaluated": asking.evaluated, "steps": trainer.state.global_step}


class MetricsOfMain(Trainer):
    """As published trainers for question answering do: what one process writes and scores, the others do not know."""

    def evaluate(self, *args, **kwargs):
        metrics = super().evaluate(*args, **kwargs)
        if not self.args.should_save:
            return {"eval_runtime": metrics["eval_runtime"]}
        return metrics | {"eval_score": -abs(self.state.global_step - 4)}


@case
def metrics_of_main(folder):
    trainer = train(
        folder,
        "metrics_of_main",
        KIT.classifier(),
        rows(29),
        MetricsOfMain,
        eval_dataset=rows(5),
        eval_strategy="steps",
        eval_steps=2,
        metric_for_best_model="score",
        greater_is_better=True,
        load_best_model_at_end=True,
    )
    best = trainer.state.best_metric, trainer.state.best_global_step
    return {"best": best, "weights": course(trainer)["weights"]}


@case
def callback_of_one(folder):
    """Only the last process has the callback at all."""
    asking = Asking()
    given = [asking] if world().rank == world().size - 1 else []
    trainer = train(folder, "of_one", KIT.classifier(), rows(80), callbacks=given, eval_dataset=rows(5))
    return {"steps": trainer.state.global_step, "saved": sorted(path.name for path in Path(folder).glob("of_one/*-*"))}


class Evaluating(TrainerCallback):
    """Evaluates by itself, in every process."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2:
            self.trainer.evaluate(Reading(rows(24)))


class Reading(list):
    """Samples of an evaluation: whoever reads them first in the last process gets a signal."""

    sent = False

    def __getitem__(self, index):
        if world().rank == world().size - 1 and not self.sent:
            self.sent = True
            os.kill(os.getpid(), signal.SIGTERM)
        return super().__getitem__(index)


@case
def signal_in_an_evaluation(folder):
    """One process gets a signal in an evaluation that a callback has begun: all give it up, save and leave."""
    callback = Evaluating()
    given = {"save_strategy": "steps", "save_steps": 100, "max_steps": 4, "per_device_eval_batch_size": 1}
    args = arguments(folder, "signal", **given)
    callback.trainer = Trainer(KIT.classifier(), args, train_dataset=rows(29), callbacks=[callback])
    try:
        callback.trainer.train()
    except SystemExit as left:
        saved = sorted(path.name for path in Path(folder).glob("signal/checkpoint-*"))
        return {"status": left.code, "saved": saved, "steps": callback.trainer.state.global_step}
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a process that leaves with others ignores it
    return {}


class Spoiling(TrainerCallback):
    """The weights are infinite after the third step, in every process."""

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step == 3:
            tensors = self.backend.tensors
            found = [p for _, p in self.backend.models.named_parameters(model)]
            copies = tensors.keep(found, [None] * len(found))
            for copy in copies:
                copy[...] = np.inf
            tensors.restore_copies(found, copies)


@case
def infinite_weights(folder):
    """They are not committed, and all processes stop for the same reason."""
    callback = Spoiling()
    args = arguments(folder, "infinite", save_strategy="steps", save_steps=1, max_steps=3, optim="sgd")
    trainer = Trainer(KIT.classifier(), args, train_dataset=rows(29), callbacks=[callback])
    callback.backend = backend_of(trainer)
    try:
        trainer.train()
    except NonFiniteError as error:
        saved = sorted(path.name for path in Path(folder).glob("infinite/checkpoint-*"))
        return {"error": str(error).replace(str(folder), ""), "saved": saved}
    return {}


class Spiky(Trainer):
    """The last process has a very large loss in step 14."""

    spikes, of_last = (14,), True

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        is_seen = world().rank == (world().size - 1 if self.of_last else 0)
        return loss * 1e4 if is_seen and self.state.global_step + 1 in self.spikes else loss


def roll_back(folder, name, **more):
    """A spike that one process sees is left out by all: they return to checkpoint-12."""
    given = {"loss_spike": "rollback", "loss_spike_window": 8, "save_strategy": "steps", "save_steps": 4}
    given |= {"optim": "adamw_torch", "learning_rate": 0.01, "max_steps": 18}
    trainer = train(folder, name, KIT.classifier(), rows(29), Spiky, **given | more)
    left_out = [each.to_json()["steps"] for each in part_of(trainer, "spikes").rollbacks]
    logged = [entry["step"] for entry in trainer.state.log_history if "loss" in entry]
    return trainer, {"losses": trainer.seen.losses, "left_out": left_out, "logged": logged}


@case
def rolled_back(folder):
    trainer, found = roll_back(folder, "rolled_back")
    return found | course(trainer)


class SpikyEpochs(Spiky):
    """In the first and in the last step of an epoch of 4. The last one has no batch for all processes."""

    spikes, of_last = (13, 20), False


class SavesInLast(TrainerCallback):
    """The last process asks for a checkpoint after step 19."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 19 and world().rank == world().size - 1:
            control.should_save = True


@case
def rolled_back_at_an_epoch(folder):
    """A spike in the first step of an epoch, and one in a last step, after a checkpoint that one process asked for."""

    class Stream:
        def __iter__(self):
            return iter(rows(25))

    given = {"loss_spike": "rollback", "loss_spike_window": 8, "save_strategy": "steps", "save_steps": 4}
    given |= {
        "loss_spike_threshold": 200.0,
        "loss_spike_skip_steps": 3,
        "max_steps": 22,
        "logging_strategy": "epoch",
        "learning_rate": 0.01,
    }
    found = {}
    for name, data in (("rows", rows(25)), ("stream", Stream())):
        trainer = train(folder, f"epoch-{name}", KIT.classifier(), data, SpikyEpochs, None, [SavesInLast()], **given)
        events = [json.loads(line) for line in (Path(folder) / f"epoch-{name}" / "run.jsonl").read_text().splitlines()]
        found[name] = {
            "returned": [(each["to"], each["left_out"]) for each in events if each["event"] == "rolled_back"],
            "ends": [entry["step"] for entry in trainer.state.log_history if "loss" in entry],
            "steps": trainer.state.global_step,
            "weights": course(trainer)["weights"],
        }
    return found


@case
def one_bad_sample(folder):
    """A sample that is not finite is seen by one process, and all leave the update out. Every batch is full:
    four processes would divide a smaller one into some of one sample, which has no norm."""
    data = rows(32)
    data[13]["x"][:] = np.nan
    trainer = train(folder, "bad", KIT.classifier(norm=True), data, nonfinite="skip", num_train_epochs=1)
    statistics = {buffer.name for buffer in backend_of(trainer).models.buffers(trainer.model)}
    weights = KIT.weights(trainer.model)
    return {
        "weights": {name: value.tolist() for name, value in weights.items() if name not in statistics},
        "finite": len(statistics) >= 2 and all(np.isfinite(value).all() for value in weights.values()),
        "skipped": skipped_updates(trainer),
        "steps": trainer.state.global_step,
    }


@case
def disagreeing(folder):
    """Runs whose processes are given different values."""
    number = world().rank
    model = KIT.classifier()

    class OwnRate(Trainer):
        def create_optimizer(self, *args):
            self.optimizer = KIT.sgd(self.model, 0.1 * (1 + number))
            return self.optimizer

    runs = {
        "max_steps": (Trainer, rows(16), {"max_steps": 2 + number}),
        "gradient_accumulation_steps": (Trainer, rows(16), {"gradient_accumulation_steps": 1 + number}),
        "learning_rate": (Trainer, rows(16), {"learning_rate": 0.1 * (1 + number)}),
        "seed": (Trainer, rows(16), {"seed": 1 + number}),
        "training samples": (Trainer, rows(16 + 8 * number), {}),
        "evaluation samples": (Trainer, rows(16), {"eval_dataset": {"own": rows(4 + number)}}),
        "learning rates": (OwnRate, rows(16), {}),
        "what may differ": (Trainer, rows(16), {"run_name": f"run {number}", "data_seed": 3, "seed": 1 + number}),
    }
    found = {}
    for name, (kind, data, given) in runs.items():
        before = {key: value.copy() for key, value in KIT.weights(model).items()}
        try:
            found[name] = train(folder, "disagreeing", model, data, kind, **given).state.global_step
        except (ArgumentError, DataError) as error:
            same = all((before[key] == value).all() for key, value in KIT.weights(model).items())
            found[name] = f"{type(error).__name__}, {'nothing' if same else 'something'} trained: {error}"
    return found


@case
def first_and_later(folder):
    """main_process_first, and which process does what."""
    args = arguments(folder, "first")
    marker = Path(folder) / "prepared"
    with args.main_process_first(desc="a marker"):
        found = marker.exists()
        marker.touch()
    return {"found": found, "log": args.should_log, "save": args.should_save, "timeout": args.ddp_timeout_delta.seconds}


@case
def searched(folder):
    """Two trials, the second of which is pruned; model_init draws a value that the others cannot draw themselves."""
    import optuna

    class Second(optuna.pruners.BasePruner):
        def prune(self, study, trial):
            return trial.number == 1

    def model_init(trial):
        return KIT.classifier(seed=0 if trial is None else trial.suggest_int("weights", 1, 9))

    def space(trial):
        return {"learning_rate": trial.suggest_float("learning_rate", 0.01, 0.2), "num_train_epochs": 1}

    seen = Seen()
    args = arguments(folder, "searched", eval_strategy="steps", eval_steps=1)
    trainer = Trainer(None, args, None, rows(29), rows(9, 1), model_init=model_init, callbacks=[seen])
    sampler = optuna.samplers.RandomSampler(seed=3)
    best = trainer.hyperparameter_search(space, n_trials=2, backend="optuna", sampler=sampler, pruner=Second())
    weights = {name: value.tolist() for name, value in KIT.weights(trainer.model).items()}
    kept = {"best": [*best[:2], dict(best.hyperparameters)], "trial": trainer.state.trial_name, "weights": weights}
    return kept | {"losses": seen.losses, "steps": trainer.state.global_step}


@case
def counted(folder):
    """Tokens and operations are those of all processes. No step is logged, so there is curve.jsonl."""
    given = {"include_num_input_tokens_seen": True, "logging_steps": 500}
    trainer = train(folder, "counted", KIT.tagger(), tagged([4] * 29), **given)
    return {"tokens": trainer.state.num_input_tokens_seen, "flops": trainer.state.total_flos}


@case
def iterable_in_parts(folder):
    """Samples that can only be walked through go to one process each."""

    class Walked:
        def __init__(self):
            self.given = []

        def __iter__(self):
            return iter(rows(31, seed=5))

    trainer = train(folder, "walked", KIT.classifier(), Walked(), max_steps=8)
    found = trainer.predict(Walked())
    return course(trainer) | {"labels": found.label_ids.tolist(), "test_loss": found.metrics["test_loss"]}


def in_two(folder, name, model, data, **given):
    """Eight steps in one go, and in two."""
    given = {"save_strategy": "steps", "save_steps": 4, "max_steps": 8, "optim": "adamw_torch"} | given
    whole = train(folder, name, model(), data, **given)
    checkpoint = Path(folder) / name / f"checkpoint-{given['save_steps']}"
    again = train(folder, f"{name}_again", model(), data, resume=str(checkpoint), **given)
    return {"whole": course(whole), "again": course(again), "files": sorted(p.name for p in checkpoint.iterdir())}


class Freezing(TrainerCallback):
    """One layer is trained for two steps, and after five again."""

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        KIT.freeze(model.head, 2 <= state.global_step < 5)


@case
def frozen(folder):
    """Saved while the layer is frozen; the resumed run begins with a fresh model."""
    return in_two(folder, "frozen", KIT.classifier, rows(32), callbacks=[Freezing()], learning_rate=0.01)


@case
def own_means(folder):
    """Every process keeps its own running means, also across a resume."""
    model = lambda: KIT.classifier(dropout=0.3, norm=True)  # noqa: E731
    return in_two(folder, "own_means", model, rows(32), ddp_broadcast_buffers=False)


@case
def resumed(folder):
    return in_two(folder, "whole", lambda: KIT.classifier(dropout=0.3, norm=True), rows(32))


class SeesDropout(Trainer):
    """Keeps the logits of every micro-batch of this process, as training sees them."""

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        loss, outputs = super().compute_loss(model, inputs, True, **kwargs)
        self.logits = [*getattr(self, "logits", []), KIT.numpy(outputs["logits"]).tolist()]
        return (loss, outputs) if return_outputs else loss


class Alike:
    """The same sample again and again, of data that is walked through and draws a number for each."""

    def __init__(self):
        self.given, self.drawn = 0, []

    def __iter__(self):
        while self.given < 32:
            self.given += 1
            self.drawn.append(random.random() + np.random.rand())
            yield rows(1)[0]
        self.given = 0


class Positioned(Alike):
    """The same, of data that keeps its place."""

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given = state["given"]


@case
def dropout_of_each(folder):
    """Samples and weights are always the same, so that logits differ by what dropout has drawn alone."""
    given = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4, "learning_rate": 0.0}

    def training(name, data, resume=None):
        model = KIT.classifier(dropout=0.5)
        checkpoint = resume and str(Path(folder) / resume / "checkpoint-2")
        trainer = train(folder, name, model, data, SeesDropout, resume=checkpoint, **given)
        return {"logits": trainer.logits, "drawn": getattr(data, "drawn", None)}

    return {
        "indexed": training("dropout_indexed", rows(1) * 32),
        "walked": training("dropout_walked", Alike()),
        "walked_on": training("dropout_walked_on", Alike(), "dropout_walked"),
        "positioned": training("dropout_positioned", Positioned()),
        "positioned_on": training("dropout_positioned_on", Positioned(), "dropout_positioned"),
    }


def main(folder, *names, cases=CASES):
    found = {}
    for name in names or cases:
        if name.startswith("from:"):  # the checkpoint of another run, and what it is found by is that run's name
            path = Path(name.removeprefix("from:"))
            found[f"from:{path.parent.name}"] = elastic_run(folder, f"from_{path.parent.name}", str(path))
        else:
            found[name] = cases[name](folder)
    path = Path(folder) / f"rank{world().rank}.json"
    path.write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
