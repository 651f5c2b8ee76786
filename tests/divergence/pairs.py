"""Runs of the small transformer on each framework and layout, for pairs that `oneloop diff` compares.

As a program, under torchrun on several processes: `pairs.py FOLDER FRAMEWORK LAYOUT [KIND@PLACE@SEED ...]` trains the
model once for each fault and seed, or without one ("clean@@3").
"""

import logging
import sys
from importlib import import_module
from pathlib import Path

import numpy as np

from oneloop import Trainer, TrainerCallback, TrainingArguments
from oneloop.backends import loading
from oneloop.converters.framework_layout import turned
from tests.divergence.faults import Fault, options_of, spoil_data, spoil_model
from tests.internals import engine_of

ROWS, BATCH = 32, 8
CLEAN = Fault("clean", "")
SMALL = Fault("clean", "small")  # weights as small as those of a new model
LAYOUTS = {
    "alone": {},
    "accumulated": {"gradient_accumulation_steps": 2, "per_device_train_batch_size": BATCH // 2},
    "bf16": {"bf16": True},
    "fp16": {"fp16": True},
    "dp2": {"per_device_train_batch_size": BATCH // 2},
    "shard2": {"per_device_train_batch_size": BATCH // 2, "sharding": "stage2"},
    "stage1": {"per_device_train_batch_size": BATCH // 2, "sharding": "stage1"},
    "tp2": {
        "tensor_parallel_size": 2,
        "tensor_parallel_plan": {"blocks.*.mlp.inner": "colwise", "blocks.*.mlp.outer": "rowwise"},
    },
    "sp2": {"sequence_parallel_size": 2},
    "dropout": {},
    "overridden": {},
    "muon": {"optim": "muon"},
    "schedule_free": {"optim": "schedule_free_adamw"},
}
ALIKE = ("alone", "dropout", "overridden", "muon", "schedule_free")  # computed as by one process in float32


def samples(seed, length=10):
    random = np.random.default_rng(seed)
    return [
        {"input_ids": random.integers(0, 29, length).astype(np.int64), "labels": int(random.integers(0, 5))}
        for _ in range(ROWS)
    ]


def set_weights(model, framework, seed, sizes=(0.3, 0.1)):
    """Weights that depend on the seed and their common names alone. `sizes`: of matrices and of vectors."""
    random = np.random.default_rng(seed)
    layout = loading.of_model(model).framework_layout.layout(model)
    letters = {"weight": "oi", "embed.weight": "nv", "places.weight": "nv"}
    parameters = dict(loading.of_model(model).models.named_parameters(model))
    for name in sorted(parameters, key=lambda name: layout[name].name):
        common, axes = layout[name].name.removeprefix("encoder."), layout[name].axes
        shape = [*parameters[name].shape]
        if axes == "io":
            shape = shape[::-1]
        array = random.standard_normal(shape).astype(np.float32) * sizes[len(shape) == 1]
        if "norm" in common and common.endswith("weight") or common == "stats.weight":
            array += 1.0
        target = letters.get(common, "oi") if len(shape) > 1 else ""
        framework.assign(parameters[name], turned(array, target, axes) if axes else array)


class LosesMicroBatch(TrainerCallback):
    """After the first micro-batch its gradients are gone."""

    def __init__(self, trainer):
        self.trainer = trainer

    def on_substep_end(self, args, state, control, **kwargs):
        engine_of(self.trainer).clear()


class SumsLoss(Trainer):
    """Takes the sum over samples for their mean."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return len(inputs["labels"]) * super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)


class Overrides(Trainer):
    """It may have side effects, so it is not called again to measure rounding errors."""

    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs)


def train(folder, name, layout, seed, fault=CLEAN, with_stats=None):
    """Train two steps, which are recorded in a folder."""
    framework = import_module(f"tests.divergence.{name}_model")
    model = framework.Model()
    if fault.name == "lost micro-batch" and "gradient_accumulation_steps" not in LAYOUTS[layout]:
        layout = "accumulated"
    model.with_stats = has_stats(name, layout) if with_stats is None else with_stats
    set_weights(model, framework, seed, *([(0.004, 0.002)] if fault == SMALL else []))
    if layout == "dropout" or fault.name == "order of dropout":
        for block in model.blocks:
            framework.set_dropout(block.drop, 0.1)
    spoil_model(fault, model, framework)
    options = {"per_device_train_batch_size": BATCH, "learning_rate": 1e-3, "max_grad_norm": 0.1}
    options |= LAYOUTS[layout] | options_of(fault)
    args = TrainingArguments(
        str(folder), max_steps=2, trace_steps="0-1", report_to="none", save_strategy="no", device="cpu",
        disable_tqdm=True, logging_strategy="no", seed=seed % 1000, **options,
    )  # fmt: skip
    data = samples(seed, 11 if name == "sequence" else 10)  # one that two processes cannot divide
    trainer_class = SumsLoss if fault.name == "sum as loss" else Overrides if layout == "overridden" else Trainer
    trainer = trainer_class(model, args, train_dataset=spoil_data(fault, data))
    if fault.name == "lost micro-batch":
        trainer.add_callback(LosesMicroBatch(trainer))
    with spoiled_exchange(fault):
        trainer.train()
    return Path(folder)


class spoiled_exchange:  # a context
    """Gradients of torch's processes that do not come together as they should."""

    def __init__(self, fault):
        self.fault = fault

    def __enter__(self):
        if self.fault.name not in ("missing shard", "no sum over processes"):
            return
        import torch.distributed as dist

        from oneloop.backends.torch import ddp

        self.module, self.average = ddp, ddp.average
        lost = self.fault.name == "missing shard"

        def average(parameters, group):
            if not lost:
                return
            if dist.get_rank() == 1:
                for p in parameters:
                    if p.grad is not None:
                        p.grad.zero_()
            self.average(parameters, group)

        ddp.average = average

    def __exit__(self, *error):
        if hasattr(self, "module"):
            self.module.average = self.average


def main(folder, name, layout, *words):
    logging.getLogger("oneloop").setLevel(logging.ERROR)
    for number, word in enumerate(words):
        kind, place, seed = word.split("@")
        train(Path(folder, str(number)), name, layout, int(seed), Fault(kind, place))


def has_stats(name, layout):
    """Batch norm has the statistics of a micro-batch, so it is left out where a batch is divided; Paddle's running
    variance is another one than torch's."""
    return layout in (*ALIKE, "bf16", "fp16") and name not in ("paddle", "sequence")


if __name__ == "__main__":
    main(*sys.argv[1:])
