"""Small runs to look at: a model that notes what it is given, sixteen samples, and a Trainer over both.

The models here are torch's; tiny_runs_paddle.py and tiny_runs_mindspore.py have those of the same names.
"""

import importlib
import logging
import os

import numpy as np
import torch
from torch import nn

from oneloop import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainerCallback, TrainingArguments
from tests.arguments.config import Config

SAMPLES = 16
USUAL = {
    "max_steps": 4,
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 8,
    "learning_rate": 0.01,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "device": "cpu",
}


class Block(nn.Module):
    """A layer that counts how often it is computed."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.computed = 0

    def forward(self, x):
        self.computed += 1
        return torch.tanh(self.linear(x))


class Notes(nn.Module):
    """A classifier over four numbers. `calls` has a note of every forward pass."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(Block(4, 8))
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(8, 3)
        self.config = Config()
        self.calls = []
        self.generated = []

    def forward(self, x, labels=None, number=None, origin=None, mems=None, **rest):
        logits = self.head(self.dropout(self.layers(x)))
        note = {"training": self.training, "rows": len(x), "rest": sorted(rest), "mems": mems is not None}
        note |= {"logits": logits.dtype, "weights": self.head.weight.dtype}
        note |= {"number": number, "origin": origin}
        self.calls.append({key: value.tolist() if torch.is_tensor(value) else value for key, value in note.items()})
        loss = None if labels is None else nn.functional.cross_entropy(logits.float(), labels)
        return {"loss": loss, "logits": logits, "memory": logits.sum(0)}

    def generate(self, x, **options):
        self.generated.append(options)
        return torch.zeros(len(x), options.get("max_length", 5), dtype=torch.long)


class Plain(nn.Module):
    """The same without notes, for the compiler."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(4, 3)

    def forward(self, x, labels):
        logits = self.head(x)
        return nn.functional.cross_entropy(logits, labels), logits


class Words(nn.Module):
    """A classifier over tokens, with an embedding."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, input_ids, attention_mask, labels):
        return {"loss": nn.functional.cross_entropy(self.head(self.embedding(input_ids).mean(1)), labels)}


def samples(count=SAMPLES, **columns):
    """Samples with their number; further columns are functions of it."""
    made = np.random.RandomState(1).randn(count, 4).astype(np.float32)
    rows = [{"x": made[i], "labels": i % 3, "number": i} for i in range(count)]
    return [row | {name: value(row["number"]) for name, value in columns.items()} for row in rows]


def sentences(count=SAMPLES):
    """Five tokens each, of which two are padding."""
    return [{"input_ids": [i % 10] * 5, "attention_mask": [1, 1, 1, 0, 0], "labels": i % 3} for i in range(count)]


class Located(torch.utils.data.Dataset):
    """Samples that know which process loaded them."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return samples()[index] | {"origin": os.getpid()}


class Watch(TrainerCallback):
    """Notes the steps of a run, and the weights after each of them."""

    def __init__(self, weights_of):
        self.steps, self.weights, self.weights_of = [], {}, weights_of

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.steps.append(state.global_step)
        self.weights[state.global_step] = self.weights_of(model)


def weights_of(model):
    return [value.tolist() for value in model.state_dict().values()]


class TinyRun:
    """A folder, the arguments under test, and what is said while a Trainer works with them."""

    def __init__(self, folder, monkeypatch, capsys, framework="torch", **given):
        self.folder, self.monkeypatch, self.capsys = folder, monkeypatch, capsys
        self.framework = framework
        suffix = "" if framework == "torch" else f"_{framework}"
        self.stage = importlib.import_module(f"tests.arguments.tiny_runs{suffix}")
        self.given = USUAL | given
        self.messages = []
        self.watch = Watch(self.weights_of)
        self.seq2seq = False

    def weights_of(self, model):
        return self.stage.weights_of(model)

    @property
    def output(self):
        return self.folder / self.given.get("output_dir", "out")

    def arguments(self, **more):
        cls = Seq2SeqTrainingArguments if self.seq2seq else TrainingArguments
        return cls(**self.given | {"output_dir": str(self.output)} | more)

    def trainer(self, model=None, data=None, evaluated=None, args=None, callbacks=(), **parts):
        """A Trainer over a new model; `model` is torch's class, in whose place comes that of the framework."""
        model = model or Notes
        if self.framework != "torch":
            model = getattr(self.stage, model.__name__)
        cls = Seq2SeqTrainer if self.seq2seq else Trainer
        data = samples() if data is None else data
        return cls(
            model(),
            args or self.arguments(),
            train_dataset=data,
            eval_dataset=samples() if evaluated is None else evaluated,
            callbacks=[self.watch, *callbacks],
            **parts,
        )

    def train(self, **parts):
        trainer = self.trainer(**parts)
        trainer.train()
        return trainer

    def listen(self):
        """Collect oneloop's messages until the test ends."""
        handler = logging.Handler()
        handler.emit = lambda record: self.messages.append(record.getMessage())
        logger = logging.getLogger("oneloop")
        self.monkeypatch.setattr(logger, "handlers", [*logger.handlers, handler])

    def checkpoints(self):
        return sorted(path.name for path in self.output.glob("checkpoint-*"))
