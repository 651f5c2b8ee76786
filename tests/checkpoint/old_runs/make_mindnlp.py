"""A checkpoint that mindnlp 0.4.1 writes, and what its own run ended with, as a fixture.

    python tests/checkpoint/old_runs/make_mindnlp.py      in an environment with mindnlp 0.4.1 and MindSpore 2.7

The run is one of mindnlp's from beginning to end, with the data in their order and no dropout. Kept are the checkpoint
of step SAVED and the weights and losses of the last step.
"""

import importlib.metadata
import json
import shutil
import sys
import tempfile
import types
from pathlib import Path

import mindspore
import numpy as np

# MindSpore 2.7 has no StubTensor any more, which mindnlp 0.4.1 adds methods to: its tensors are plain ones.
stubs = types.ModuleType("mindspore.common._stub_tensor")
stubs.StubTensor, stubs._convert_stub = type("StubTensor", (), {}), lambda value: value
sys.modules[stubs.__name__] = mindspore.common._stub_tensor = stubs

from mindnlp.core import nn, ops  # noqa: E402
from mindnlp.core.ops import creation  # noqa: E402
from mindnlp.engine import Trainer, TrainerCallback, TrainingArguments  # noqa: E402


def empty(*size, dtype=None, **options):
    """Of MindSpore 2.7, whose function takes other arguments."""
    shape = size[0] if isinstance(size[0], (tuple, list)) else size
    return mindspore.Tensor(np.zeros(shape), dtype or mindspore.float32)


creation.empty = ops.empty = empty
nn.Parameter.grad = None

TARGET = Path(__file__).parent / "mindnlp" / "plain"
SAMPLES, BATCH, SAVED, STEPS = 12, 2, 8, 11  # six updates an epoch: saved two updates into the second
WORDS, SIZE, CLASSES = 7, 4, 3


def rows():
    numbers = np.random.RandomState(3)
    words = numbers.randint(0, WORDS, size=(SAMPLES, 5)).astype(np.int64)
    return [(row, np.int64(row.sum() % CLASSES)) for row in words]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, SIZE)
        self.dense = nn.Linear(SIZE, SIZE)
        self.norm = nn.LayerNorm(SIZE)
        self.head = nn.Linear(SIZE, CLASSES)

    def forward(self, words, labels=None):
        hidden = ops.tanh(self.dense(ops.mean(self.embedding(words), 1)))
        scores = self.head(self.norm(hidden))
        return (
            scores if labels is None else (nn.functional.cross_entropy(scores, labels.astype(mindspore.int32)), scores)
        )


class Losses(TrainerCallback):
    found = {}

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            self.found[state.global_step] = logs["loss"]


def main():
    mindspore.set_seed(5)
    model = Model()
    dataset = mindspore.dataset.GeneratorDataset(rows(), ["words", "labels"], shuffle=False).batch(BATCH)
    shutil.rmtree(TARGET, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=f"{folder}/out",
            max_steps=STEPS,
            per_device_train_batch_size=BATCH,
            learning_rate=0.02,
            warmup_steps=3,
            weight_decay=0.1,
            max_grad_norm=0.5,
            logging_steps=1,
            save_steps=SAVED,
            seed=11,
        )
        losses = Losses()
        trainer = Trainer(model=model, args=args, train_dataset=dataset, callbacks=[losses])
        trainer.train()
        source = Path(folder) / "out" / f"checkpoint-{SAVED}"
        print(sorted(str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()))
        shutil.copytree(source, TARGET / source.name)
    expected = {
        "versions": {each: importlib.metadata.version(each) for each in ("mindnlp", "mindspore")},
        "losses": losses.found,
        "weights": {name: p.asnumpy().tolist() for name, p in model.named_parameters()},
    }
    (TARGET / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
