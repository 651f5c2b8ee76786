"""Small checkpoints of one release, which every later one has to go on from; and the run that they are of.

    python -m tests.checkpoint.make_fixtures [FRAMEWORK ...]   writes fixtures/FRAMEWORK anew

A fixture is a checkpoint from the middle of an epoch, and expected.json: what the unbroken run saw, drew and ended with
after it. Nothing here comes from another test, and of oneloop only what its users import: a fixture outlives both.
Write them anew only when the format gets another number.
"""

import contextlib
import json
import os
import platform
import random
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np

from oneloop import EarlyStoppingCallback, Trainer, TrainingArguments

FOLDER = Path(__file__).parent / "fixtures"
PACKAGES = {"torch": "torch", "paddle": "paddlepaddle", "mindspore": "mindspore"}
FEATURES, HIDDEN, CLASSES, DROPOUT = 5, 6, 3, 0.25
SAVED, STEPS = 7, 20  # five updates an epoch: saved two updates into the second
RECORDED = 20  # batches after the checkpoint
ARGUMENTS = {
    "output_dir": "run",  # relative, so that no machine's paths are in a fixture
    "logging_dir": "run/logs",
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
    "seed": 11,
    "max_steps": STEPS,
    "per_device_train_batch_size": 3,
    "per_device_eval_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "learning_rate": 0.02,
    "weight_decay": 0.1,
    "warmup_steps": 3,
    "lr_scheduler_type": "cosine",
    "logging_steps": 2,
    "eval_strategy": "steps",
    "eval_steps": 3,
    "metric_for_best_model": "loss",
    "save_strategy": "steps",
    "save_steps": SAVED,
    "save_async": False,
    "include_num_input_tokens_seen": "all",
    "remove_unused_columns": False,
}


def samples(count, seed):
    numbers = np.random.RandomState(seed)
    x = numbers.randn(count, FEATURES).astype(np.float32)
    labels = (np.abs(x).sum(axis=1) * 3).astype(np.int64) % CLASSES
    return [{"index": i, "input_ids": x[i], "labels": labels[i]} for i in range(count)]


def initial(seed):
    """Weights by layer, as (inputs, outputs) matrices."""
    numbers = np.random.RandomState(seed)
    sizes = {"hidden": (FEATURES, HIDDEN), "head": (HIDDEN, CLASSES)}
    return {name: [numbers.uniform(-0.4, 0.4, shape) for shape in (size, size[1])] for name, size in sizes.items()}


# -- the same network in each framework. `kept` gets the pattern of every dropout while training.


def torch_model(seed, kept):
    import torch
    from torch import nn

    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden, self.head = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, CLASSES)
            self.dropout = nn.Dropout(DROPOUT)

        def forward(self, input_ids, labels):
            hidden = torch.tanh(self.hidden(input_ids))
            mask = self.dropout(torch.ones_like(hidden))
            if self.training:
                kept.append(pattern(mask.numpy()))
            logits = self.head(hidden * mask)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    model = Mlp()
    for name, (matrix, bias) in initial(seed).items():
        layer = getattr(model, name)
        layer.weight.data, layer.bias.data = torch.tensor(matrix.T).float().contiguous(), torch.tensor(bias).float()
    return model


def paddle_model(seed, kept):
    import paddle
    from paddle import nn

    class Mlp(nn.Layer):
        def __init__(self):
            super().__init__()
            self.hidden, self.head = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, CLASSES)
            self.dropout = nn.Dropout(DROPOUT)

        def forward(self, input_ids, labels):
            hidden = paddle.tanh(self.hidden(input_ids))
            mask = self.dropout(paddle.ones_like(hidden))
            if self.training:
                kept.append(pattern(mask.numpy()))
            logits = self.head(hidden * mask)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    model = Mlp()
    for name, (matrix, bias) in initial(seed).items():
        getattr(model, name).weight.set_value(matrix.astype(np.float32))
        getattr(model, name).bias.set_value(bias.astype(np.float32))
    return model


def mindspore_model(seed, kept):
    import mindspore
    from mindspore import nn, ops

    class Mlp(nn.Cell):
        def __init__(self):
            super().__init__()
            self.hidden, self.head = nn.Dense(FEATURES, HIDDEN), nn.Dense(HIDDEN, CLASSES)
            self.dropout = nn.Dropout(p=DROPOUT)

        def construct(self, input_ids, labels):
            hidden = ops.tanh(self.hidden(input_ids))
            mask = self.dropout(ops.ones_like(hidden))
            if self.training:
                kept.append(pattern(mask.asnumpy()))
            logits = self.head(hidden * mask)
            loss = ops.nll_loss(ops.log_softmax(logits), labels.astype(mindspore.int32))
            return {"loss": loss, "logits": logits}

    model = Mlp()
    for name, (matrix, bias) in initial(seed).items():
        getattr(model, name).weight.set_data(mindspore.Tensor(matrix.T, mindspore.float32))
        getattr(model, name).bias.set_data(mindspore.Tensor(bias, mindspore.float32))
    return model


MODELS = {"torch": torch_model, "paddle": paddle_model, "mindspore": mindspore_model}


def pattern(mask):
    return "".join("1" if value else "0" for value in mask.ravel())


def draw(framework):
    """A number from the framework's own stream."""
    if framework == "torch":
        import torch

        return float(torch.rand(()))
    if framework == "paddle":
        import paddle

        return float(paddle.rand([]))
    from mindspore import ops

    return float(ops.rand(1).asnumpy()[0])


# -- the run


class Collator:
    """Draws from all streams, as data augmentation does, and notes what it saw and drew while training."""

    def __init__(self, framework):
        self.framework, self.noted = framework, []

    def __call__(self, batch):
        if len(batch) == ARGUMENTS["per_device_train_batch_size"]:  # evaluations have batches of four
            drawn = {"python": random.random(), "numpy": float(np.random.rand()), "framework": draw(self.framework)}
            self.noted.append({"indices": [sample["index"] for sample in batch], **drawn})
        return {name: np.stack([sample[name] for sample in batch]) for name in ("input_ids", "labels")}


def build(framework, seed, callbacks=()):
    """(the Trainer, its collator, the patterns that dropout kept); the working directory holds its output_dir."""
    kept, collator = [], Collator(framework)
    trainer = Trainer(
        MODELS[framework](seed, kept),
        TrainingArguments(**ARGUMENTS),
        collator,
        samples(30, seed=1),
        samples(8, seed=2),
        callbacks=[EarlyStoppingCallback(early_stopping_patience=100), *callbacks],
    )
    return trainer, collator, kept


def made_with(framework):
    """What the framework's random numbers depend on beside its state."""
    release = ".".join(version(PACKAGES[framework]).split("+")[0].split(".")[:2])
    return {"framework": f"{framework} {release}", "machine": platform.machine()}


@contextlib.contextmanager
def within(folder):
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def weights_of(checkpoint):
    from safetensors.numpy import load_file

    return {name: value.tolist() for name, value in sorted(load_file(checkpoint / "model.safetensors").items())}


def make(framework):
    """Train without a break and keep the checkpoint of the middle with what came after it."""
    target = FOLDER / framework
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder, within(folder):
        trainer, collator, kept = build(framework, seed=3)
        trainer.train()
        shutil.copytree(Path("run") / f"checkpoint-{SAVED}", target / f"checkpoint-{SAVED}")
        before = SAVED * ARGUMENTS["gradient_accumulation_steps"]
        expected = {
            "made_with": made_with(framework),
            "batches": collator.noted[before : before + RECORDED],
            "dropout": kept[before : before + RECORDED],
            "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
            "weights": weights_of(Path("run") / f"checkpoint-{STEPS}"),
        }
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in expected.items()]
    (target / "expected.json").write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:] or PACKAGES:
        make(name)
