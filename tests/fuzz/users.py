"""What users write, drawn at random: the configurations of tests/fuzz/runs.py.

A `Script` is plain data. `draw` makes one from a seed; `build` makes the Trainer of one process from it, as a script of
a user would. A trait is one thing that a script may have (its own optimizer, LoRA, a NaN ...): `TRAITS` has a function
for each that draws its value, so that a finding is made smaller by taking traits away.
"""

import math
import os
import random
import signal
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from oneloop import EarlyStoppingCallback, Mixture, TrainerCallback, TrainingArguments
from tests.backends.support import DEVICE, kit_module
from tests.checkpoint import interrupted_data, interrupted_runs
from tests.checkpoint.interrupted_data import Stream, StreamWithOffset
from tests.checkpoint.interrupted_runs import Aborted, CollatorWithState, Evaluated, Recording, StopsEpoch
from tests.checkpoint.job import NoisyCollator, NoisyDocuments, NoisyStream, NoisyTexts, Walk

SCHEDULES = ("cosine", "linear", "constant", "polynomial", "cosine_with_restarts", "cosine_with_min_lr")
RANDOM_KINDS = ("map with state", "sampler of data with state")
RANDOM = ("adapter", "draws", "collator")  # traits that draw other numbers on another number of processes
LENGTH = 8  # tokens of a packed sequence
EVENTS = (*interrupted_runs.EVENTS, "on_train_begin", "on_substep_end", "on_pre_optimizer_step", "on_optimizer_step")
EVENTS += ("on_prediction_step", "on_train_end")
OF_EVALUATIONS = ("evaluation", "on_evaluate", "on_log", "on_prediction_step")
AFTER_CALLBACKS = ("on_step_end", "on_save", "on_epoch_end", "on_train_end")
BEFORE_CALLBACKS_EVALUATE = tuple(event for event in EVENTS if event not in AFTER_CALLBACKS)


def _mixture(script, kit):
    parts = {"a": NoisyTexts(script.samples, 5, kit), "b": NoisyTexts(5, 6, kit)}
    return interrupted_data.dataset(Mixture(parts, [0.7, 0.3], stop=script.samples))


def _mixture_of_streams(script, kit):
    parts = {"a": StreamWithOffset(NoisyTexts(script.samples, 5, kit)), "b": NoisyTexts(5, 6, kit)}
    return interrupted_data.dataset(Mixture(parts, [0.7, 0.3], stop=script.samples))


MIXTURES = {"mixture": _mixture, "stream with offset in a mixture": _mixture_of_streams}
KINDS = {framework: kinds | MIXTURES for framework, kinds in interrupted_data.KINDS.items()}


@dataclass(frozen=True)
class Phase:
    """One start of the script: on how many processes, and how it ends."""

    processes: int = 1
    where: str | None = None  # an event of callbacks, "evaluation" or "write"; None: it runs to its end
    number: int = 1  # at the n-th time
    how: str = "signal"  # "abort": an exception; "kill": SIGKILL
    rank: int = 0  # the process that is interrupted
    share: float | None = None  # of the times that the undisturbed run gets there, in place of the number

    def placed(self, counts):
        """With a number, given how often the undisturbed run gets to each place."""
        if self.share is None:
            return self
        where = self.where if counts.get(self.where) else "on_step_end"
        return replace(self, where=where, number=1 + int(self.share * counts[where]), share=None)


@dataclass
class Script:
    framework: str = "torch"
    kind: str = "map"
    samples: int = 11
    batch: int = 2
    options: dict = field(default_factory=dict)  # of TrainingArguments
    traits: dict = field(default_factory=dict)
    phases: tuple = (Phase(),)
    # Whether it moves to other numbers of processes. Sums are rounded differently there, and random numbers are others:
    # then nothing draws any, and the logs are the same up to rounding. Otherwise all bytes are the same.
    moves: bool = False

    @property
    def world(self):
        """The processes of the undisturbed run."""
        return self.phases[0].processes


# -- traits: name -> the value of a script that has it, or None


def _optimizer(draw, script):
    if script.framework != "torch":
        return None
    makers = ["sgd", "amsgrad", "radam", "tensor rate", "rmsprop", "asgd"]
    schedules = [None, "LambdaLR", "StepLR", "OneCycleLR", "restarts", "cyclic", "SequentialLR", "ChainedScheduler"]
    return [draw.choice(makers), draw.choice(schedules), draw.random() < 0.3]


def _optim(draw, script):
    return draw.choice(["sgd", "adafactor", "rmsprop", "adagrad"] if script.framework == "torch" else ["sgd"])


def _average(draw, script):
    found = {"averaging_steps": draw.choice([1, 1, 2, 3]), "eval_with_average": draw.random() < 0.5}
    return found | draw.choice([{"ema_decay": 0.8}, {"ema_decay": 0.99}, {"swa_start": 0.3}, {"swa_start": 2}])


def _spikes(draw, script):
    found = {"loss_spike": draw.choice(["warn", "rollback", "rollback"]), "loss_spike_window": 8}
    found |= {"loss_spike_skip_steps": draw.choice([1, 1, 2]), "loss_spike_limit": 50}
    return [found, sorted(draw.sample(range(9, 17), draw.choice([1, 2])))]


def _nan(draw, script):
    return [draw.choice(["skip", "skip", "ignore"]), sorted(draw.sample(range(1, 10), draw.choice([1, 2, 3])))]


def _precision(draw, script):
    return draw.choice(kit_module(script.framework).Kit.half or (None,))


def _workers(draw, script):
    # A dataset's own state is not in checkpoints where workers read it: a warning says so.
    if script.framework == "mindspore" or script.kind.startswith("torch ") or script.kind in RANDOM_KINDS:
        return None
    return [draw.choice([1, 2]), draw.random() < 0.5]


def _packing(draw, script):
    return [draw.choice(["list", "mixture", "stream"]), draw.choice([True, "best_fit", "wrapped"])]


TRAITS = {
    "optimizer": (0.25, _optimizer),
    "optim": (0.3, _optim),
    "average": (0.25, _average),
    "spikes": (0.2, _spikes),
    "nan": (0.2, _nan),
    "precision": (0.15, _precision),
    "workers": (0.08, _workers),
    "packing": (0.15, _packing),
    "adapter": (0.12, lambda draw, script: script.framework == "torch" or None),
    "storage": (0.15, lambda draw, script: True),
    "collator": (0.2, lambda draw, script: True),
    "patience": (0.3, lambda draw, script: draw.choice([1, 2, 100])),
    "stops_epoch": (0.2, lambda draw, script: draw.choice([2, 3])),
    "draws": (0.3, lambda draw, script: draw.choice(["compute_loss", "on_step_end", "compute_metrics"])),
    "evaluates": (0.12, lambda draw, script: draw.choice(["evaluate", "predict"])),
    "evaluated": (0.2, lambda draw, script: draw.choice(["several", "stream"])),
    # What the arguments of a resumed script say of these is not used: the checkpoint's are.
    "other_rates": (0.2, lambda draw, script: {"learning_rate": 0.7, "adam_beta1": 0.5}),
}
# Pairs that cannot be together: an error of the arguments, or not defined.
EXCLUDED = (
    ("optimizer", "optim"),
    ("packing", "collator"),
    ("workers", "collator"),  # likewise
    ("packing", "adapter"),
    ("packing", "precision"),  # the mask of the small language model is not one of half precision
    ("packing", "nan"),  # weights that are NaN keep no documents apart
    ("spikes", "nan"),
    ("adapter", "average"),
    ("evaluated", "packing"),
    ("other_rates", "optimizer"),
)


def draw(seed, framework="torch", worlds=(1,)):
    """The script of this seed."""
    source = random.Random(f"{framework} {seed}")
    script = Script(framework, source.choice(sorted(KINDS[framework])), batch=source.choice([2, 2, 3]))
    script.samples = source.choice([count for count in range(5, 15) if count % script.batch != 1])
    if max(worlds) > 1 and script.kind.endswith(" BatchSampler"):  # refused on several processes
        script.kind = "sampler"
    if script.kind == "long sampler":  # an update that is not full would read beyond
        whole = script.batch * math.lcm(*worlds)
        script.samples = max(whole, script.samples - script.samples % whole)
    for name, (share, value) in TRAITS.items():
        if source.random() < share and (found := value(source, script)) is not None:
            script.traits[name] = found
    for first, second in EXCLUDED:
        if first in script.traits and second in script.traits:
            del script.traits[source.choice([first, second])]
    if script.kind.startswith("stream with"):
        script.traits.pop("stops_epoch", None)  # after an epoch that was cut short, it starts the next one as it likes
    if "packing" in script.traits:
        script.kind = "map"
        if script.traits["packing"][0] == "stream":  # likewise
            script.traits.pop("stops_epoch", None)
    script.options = _options(source, script)
    places = [*EVENTS, "evaluation", "evaluation", "write", "write"]
    if "evaluates" in script.traits:
        places = [place for place in places if place not in OF_EVALUATIONS]
    script.phases = _phases(source, worlds, places)
    if "evaluates" in script.traits:  # what a callback evaluates after a signal is given up, and not repeated
        script.phases = tuple(
            replace(phase, how="kill") if phase.how == "signal" and phase.where in BEFORE_CALLBACKS_EVALUATE else phase
            for phase in script.phases
        )
    sizes = {phase.processes for phase in script.phases}
    script.moves = len(sizes) > 1
    if script.moves:  # an update keeps its samples on every number of processes
        script.options["gradient_accumulation_steps"] = math.lcm(*sizes) // script.world
        script.options["dataloader_drop_last"] = False  # of batches of all processes
        script.kind = "map" if script.kind in RANDOM_KINDS else script.kind
        for name in RANDOM:
            script.traits.pop(name, None)
    return script


def _options(source, script):
    accumulation = source.choice([1, 2, 2, 3, 4])
    per_epoch = max(1, -(-script.samples // (script.batch * accumulation)))
    found = {
        "gradient_accumulation_steps": accumulation,
        "max_steps": min(source.randint(3, 3 * per_epoch + 4), 14),
        "logging_strategy": source.choice(["steps", "steps", "epoch"]),
        "logging_steps": source.choice([1, 2, 3, 0.3]),
        "logging_first_step": source.random() < 0.2,
        "eval_strategy": source.choice(["steps", "steps", "epoch", "no"]),
        "eval_steps": source.choice([1, 1, 2, 3]),
        "eval_on_start": source.random() < 0.15,
        "eval_delay": source.choice([0, 0, 0, 2]),
        "save_strategy": source.choice(["steps", "steps", "epoch", "best"]),
        "save_steps": source.choice([1, 2, 3, 100]),
        "save_total_limit": source.choice([None, None, 1, 2]),
        "save_async": source.random() < 0.8,
        "load_best_model_at_end": source.random() < 0.5,
        "dataloader_drop_last": source.random() < 0.15 and script.samples > 2 * script.batch,
        "max_grad_norm": source.choice([1.0, 0.05, 0.0]),
        "weight_decay": source.choice([0.0, 0.1]),
        "warmup_steps": source.choice([0, 0, 3]),
        "lr_scheduler_type": source.choice([*SCHEDULES]),
        "label_smoothing_factor": source.choice([0.0, 0.0, 0.1]),
        "nonfinite": "stop",
    }
    if found["eval_strategy"] == "no":
        found |= {"load_best_model_at_end": False, "eval_on_start": False}
        found["save_strategy"] = "steps" if found["save_strategy"] == "best" else found["save_strategy"]
    if found["load_best_model_at_end"] and found["save_strategy"] != "best":
        found |= {"save_strategy": found["eval_strategy"], "save_steps": found["eval_steps"]}
    if found["save_strategy"] == "best" or found["load_best_model_at_end"]:
        found |= source.choice([{"metric_for_best_model": "loss"}, {"metric_for_best_model": "step"}])
        found["greater_is_better"] = found["metric_for_best_model"] == "step"
    if "spikes" in script.traits and script.kind == "stream with own iterator":  # which can be read once
        script.traits["spikes"][0]["loss_spike"] = "warn"
    if "spikes" in script.traits:
        found["max_steps"] = source.choice([12, 15, 18])
    if "spikes" in script.traits and script.traits["spikes"][0]["loss_spike"] == "rollback":
        found |= {"save_strategy": "steps", "save_steps": source.choice([1, 2, 3]), "load_best_model_at_end": False}
    # In the order of transformers, a sampler is read until it has nothing more; a mixture has an order of its own.
    # On several processes, the state of a stream is not used in it.
    has_other_order = script.kind not in ("long sampler", "stream with generator", "stream with epoch")
    has_other_order = has_other_order and "mixture" not in script.kind and "packing" not in script.traits
    if script.framework == "torch" and source.random() < 0.2 and has_other_order:
        found["data_order"] = "transformers"
    if script.kind.startswith("map") and "packing" not in script.traits and source.random() < 0.3:
        found["group_by_length"] = True
    if source.random() < 0.25:
        found |= {"max_steps": -1, "num_train_epochs": source.choice([1, 2, 2.5])}
        is_open = any(word in script.kind for word in ("Iterable", "stream")) or not script.kind.startswith(
            ("map", "sampler", "lazy", "torch ")
        )
        if is_open or "packing" in script.traits:  # the number of steps may not be known
            found |= {"lr_scheduler_type": "constant", "warmup_steps": 0, "logging_steps": 2}
            if script.traits.get("packing", [""])[0] in ("stream", "mixture"):
                found |= {"max_steps": 7}
    if found["lr_scheduler_type"] == "cosine_with_min_lr":
        found["lr_scheduler_kwargs"] = {"min_lr": 0.01}
    return found


def _phases(source, worlds, places):
    """The first interruption is anywhere in the run; those that follow come soon, in what a resume still has to do."""
    phases, world = [], source.choice(worlds)
    moves = len(worlds) > 1 and source.random() < 0.4
    for i in range(source.choice([1, 2, 2, 3])):
        where = source.choice(places)
        how = "kill" if where == "write" else source.choice(["signal", "signal", "abort", "kill"])
        number, share = source.choice([1, 1, 2, 3, 5]), None if i else source.random()
        phases.append(Phase(world, where, number, how, source.randrange(world), share))
        world = source.choice(worlds) if moves else world
    return (*phases, Phase(world))


# -- the Trainer of a script


def _user_optimizer(trait, model, steps):
    """The optimizer and the scheduler of a user, with torch's own classes."""
    import torch
    from torch.optim import lr_scheduler as schedules

    name, schedule, several = trait
    parameters = list(model.parameters())
    groups = [{"params": parameters[:1], "lr": 0.02}, {"params": parameters[1:]}] if several else parameters
    made = {
        "sgd": lambda: torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True),
        "amsgrad": lambda: torch.optim.Adam(groups, lr=0.05, amsgrad=True),
        "radam": lambda: torch.optim.RAdam(groups, lr=0.05),
        "rmsprop": lambda: torch.optim.RMSprop(groups, lr=0.01, momentum=0.5, centered=True),
        "asgd": lambda: torch.optim.ASGD(groups, lr=0.05, t0=3),
        "tensor rate": lambda: torch.optim.Adam(parameters, lr=torch.tensor(0.05)),
    }[name]()
    chained = lambda: [schedules.ConstantLR(made, 0.5, 2), schedules.ExponentialLR(made, 0.9)]  # noqa: E731
    scheduler = {
        None: lambda: None,
        "LambdaLR": lambda: schedules.LambdaLR(made, lambda step: 0.9**step),
        "StepLR": lambda: schedules.StepLR(made, 2, 0.7),
        "OneCycleLR": lambda: schedules.OneCycleLR(made, 0.05, total_steps=steps + 1, cycle_momentum=False),
        "restarts": lambda: schedules.CosineAnnealingWarmRestarts(made, 3),
        "cyclic": lambda: schedules.CyclicLR(made, 0.01, 0.05, step_size_up=3, cycle_momentum=False),
        "SequentialLR": lambda: schedules.SequentialLR(made, chained(), [3]),
        "ChainedScheduler": lambda: schedules.ChainedScheduler(chained(), made),
    }[schedule]()
    return made, scheduler


class User(Recording):
    """The subclass of a user, with what the traits ask for. Notes the samples of each micro-batch at once."""

    script = samples = None

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = super().training_step(model, inputs, num_items_in_batch)
        step = self.state.global_step + 1
        with open(self.samples, "a", encoding="utf-8") as file:
            file.write(f"{step}.{len(self.recorded[step])} {self.recorded[step][-1]}\n")
        return loss

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        found = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        traits, step = self.script.traits, self.state.global_step + 1
        if return_outputs or not self.model.training:
            return found
        if traits.get("draws") == "compute_loss":
            found = found * (1 + 0.1 * (random.random() + float(np.random.rand())))
        if step in traits.get("spikes", [None, ()])[1]:
            return found * 1e4
        return found * math.nan if step in traits.get("nan", [None, ()])[1] else found


class Places(TrainerCallback):
    """Counts how often the process gets to each place, and interrupts it where the phase says."""

    def __init__(self, phase):
        self.phase, self.counts, self.process = phase, Counter(), os.getpid()

    def at(self, where):
        if os.getpid() != self.process:  # a worker of a loader
            return
        self.counts[where] += 1
        if where != self.phase.where or self.counts[where] != self.phase.number:
            return
        if self.phase.how == "abort":
            raise Aborted
        os.kill(os.getpid(), signal.SIGKILL if self.phase.how == "kill" else signal.SIGTERM)


def _at(event):
    return lambda self, args, state, control, **kwargs: self.at(event)


for _event in EVENTS:
    setattr(Places, _event, _at(_event))


class Walks(Walk):
    """With a state that depends on every evaluation, of whichever dataset."""

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        self.place += sum(value for name, value in metrics.items() if name.endswith("_loss"))


class Evaluates(TrainerCallback):
    """After every third step, on data that draw random numbers."""

    trainer = None

    def __init__(self, what, data):
        self.what, self.data = what, data

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % 3 == 0:
            getattr(self.trainer, self.what)(self.data)


class Draws:
    """Metrics that draw random numbers, as bootstraps do."""

    def __call__(self, prediction):
        return {"drawn": float(np.random.rand()) + random.random()}


def _packed(script, kit):
    kind, packing = script.traits["packing"]
    parts = {"a": NoisyDocuments(9, 5, kit), "b": NoisyDocuments(4, 7, kit)}
    made = {
        "list": lambda: parts["a"],
        "mixture": lambda: Mixture(parts, [0.7, 0.3], stop=23),
        "stream": lambda: NoisyStream(parts["a"]),
    }
    return made[kind](), {"packing": packing, "max_length": LENGTH}


def build(script, output, samples, places, is_resumed):
    """The Trainer of one process. One that is resumed starts with other weights: they are the checkpoint's."""
    kit, traits = kit_module(script.framework).Job(), script.traits
    options = {
        "per_device_eval_batch_size": 2,
        "per_device_train_batch_size": script.batch,
        "learning_rate": 0.05,
        "seed": 11,
        "report_to": "none",
        "disable_tqdm": True,
        "device": DEVICE,
    } | script.options
    evaluated, members = Evaluated(kit, places), {"script": script, "samples": samples}
    if "packing" in traits:
        data, own = _packed(script, kit)
        model, collator = kit_module(script.framework).Kit().language_model(), None
        evaluated = NoisyDocuments(5, 6, kit)
    else:
        given = KINDS[script.framework][script.kind](script, kit)
        data, own = given.pop("data"), given.pop("options", {})
        members |= given
        seed, random_parts = 4 if is_resumed else 3, {"dropout": 0.0, "norm": False} if script.moves else {}
        model = kit.adapted() if "adapter" in traits else kit.model(seed, **random_parts)
        collator = (CollatorWithState if "collator" in traits else NoisyCollator)(kit)
    options |= own | traits.get("average", {}) | traits.get("spikes", [{}])[0]
    if "nan" in traits:
        options["nonfinite"] = traits["nan"][0]
    if "optim" in traits:
        options["optim"] = traits["optim"]
    if "precision" in traits:
        options[traits["precision"]] = True
    if "workers" in traits:
        options["dataloader_num_workers"], options["dataloader_persistent_workers"] = traits["workers"]
    if "other_rates" in traits and is_resumed:
        options |= traits["other_rates"]
    if traits.get("evaluated") == "several":
        evaluated = {"a": evaluated, "b": NoisyTexts(3, 8, kit)}
        if options.get("metric_for_best_model") == "loss":
            options["metric_for_best_model"] = "a_loss"
    elif traits.get("evaluated") == "stream":
        evaluated = Stream(evaluated)
    callbacks = [Walks(0.5), places]
    if "evaluates" in traits:
        more = NoisyDocuments(3, 9, kit) if "packing" in traits else NoisyTexts(3, 9, kit)
        callbacks.insert(0, Evaluates(traits["evaluates"], more))
    if options["load_best_model_at_end"] and "patience" in traits:
        callbacks.insert(0, EarlyStoppingCallback(traits["patience"]))
    if "stops_epoch" in traits:
        callbacks.insert(0, StopsEpoch(traits["stops_epoch"]))
    optimizers = (None, None)
    if "optimizer" in traits:
        optimizers = _user_optimizer(traits["optimizer"], model, 60)
    made = type("User", (User,), members | {"recorded": {}, "recorded_step": None})(
        model,
        TrainingArguments(output_dir=str(output), **options),
        collator,
        data,
        None if options["eval_strategy"] == "no" else evaluated,
        callbacks=callbacks,
        optimizers=optimizers,
        compute_metrics=Draws() if traits.get("draws") == "compute_metrics" else None,
    )
    for each in callbacks:
        each.trainer = made
    return made
