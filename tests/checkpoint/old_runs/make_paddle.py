"""Checkpoints that PaddleNLP or PaddleFormers writes, and what its own run ended with, as fixtures.

    python tests/checkpoint/old_runs/make_paddle.py paddlenlp      in an environment with PaddleNLP
    python tests/checkpoint/old_runs/make_paddle.py paddleformers  in one with PaddleFormers

Each run is one of theirs from beginning to end, with the data in their order and no dropout. Kept are the checkpoint of
step SAVED, without the files that oneloop does not read, and the weights and losses of the last step.
"""

import importlib
import importlib.metadata
import json
import shutil
import sys
import tempfile
from pathlib import Path

import datasets  # noqa: F401  PyArrow has to be loaded before Paddle 2.6, whose zlib it would use otherwise
import numpy as np
import paddle
from paddle import nn

FOLDER = Path(__file__).parent
SAMPLES, BATCH, SAVED, STEPS = 12, 2, 8, 11  # six updates an epoch: saved two updates into the second
WORDS, SIZE, CLASSES = 7, 4, 3
SHARED = {
    "max_steps": STEPS,
    "per_device_train_batch_size": BATCH,
    "learning_rate": 0.02,
    "warmup_steps": 3,
    "weight_decay": 0.1,
    "max_grad_norm": 0.5,
    "lr_scheduler_type": "linear",
    "logging_steps": 1,
    "save_steps": SAVED,
    "seed": 11,
    "disable_tqdm": True,
    "report_to": [],
    "do_train": True,
}
OF_LIBRARY = {"paddlenlp": {}, "paddleformers": {"amp_master_grad": False, "device": "cpu"}}
# Not read by oneloop; training_args.bin and rng_state.pth contain paths and states of the machine.
DROPPED = ("training_args.bin", "rng_state*.pth", "saved_signal_0", "*.metadata")


def rows():
    numbers = np.random.RandomState(3)
    words = numbers.randint(0, WORDS, size=(SAMPLES, 5)).astype(np.int64)
    return [{"words": row, "labels": np.int64(row.sum() % CLASSES)} for row in words]


def collate(samples):
    return {key: paddle.to_tensor(np.stack([sample[key] for sample in samples])) for key in samples[0]}


def build(model):
    """The layers of the fixture's model, made in another order than they are named in."""
    head = nn.Linear(SIZE, CLASSES)
    model.embedding = nn.Embedding(WORDS, SIZE)
    model.dense = nn.Linear(SIZE, SIZE)
    model.norm = nn.LayerNorm(SIZE)
    model.head = head


def forward(model, words, labels=None):
    hidden = paddle.tanh(model.dense(model.embedding(words).mean(axis=1)))
    scores = model.head(model.norm(hidden))
    return scores if labels is None else (nn.functional.cross_entropy(scores, labels), scores)


def pretrained_model(library):
    """The same layers in a PretrainedModel, which unified checkpoints need."""
    transformers = importlib.import_module(f"{library}.transformers")

    class Config(transformers.PretrainedConfig):
        model_type = "tiny"

    class Tiny(transformers.PretrainedModel):
        config_class = Config
        base_model_prefix = "tiny"
        transpose_weight_keys = ["dense"]  # PaddleFormers writes these as PyTorch has them; PaddleNLP has no such list

        def __init__(self, config):
            super().__init__(config)
            build(self)

        def forward(self, words, labels=None):
            return forward(self, words, labels)

    return Tiny(Config())


class Plain(nn.Layer):
    def __init__(self):
        super().__init__()
        build(self)

    def forward(self, words, labels=None):
        return forward(self, words, labels)


def write(library, name, model, **options):
    trainer_module = importlib.import_module(f"{library}.trainer")

    class InOrder(trainer_module.Trainer):
        def _get_train_sampler(self):
            return paddle.io.BatchSampler(dataset=self.train_dataset, shuffle=False, batch_size=BATCH)

        def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
            outputs = model(**inputs)
            return outputs if return_outputs else outputs[0]

    class Losses(trainer_module.TrainerCallback):
        found = {}

        def on_log(self, args, state, control, logs=None, **kwargs):
            if logs and "loss" in logs:
                self.found[state.global_step] = logs["loss"]

    target, losses = FOLDER / library / name, Losses()
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        args = trainer_module.TrainingArguments(output_dir=f"{folder}/out", **SHARED | OF_LIBRARY[library] | options)
        trainer = InOrder(model=model, args=args, train_dataset=rows(), data_collator=collate, callbacks=[losses])
        trainer.train()
        source = Path(folder) / "out" / f"checkpoint-{SAVED}"
        print(name, sorted(str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()))
        shutil.copytree(source, target / source.name, ignore=shutil.ignore_patterns(*DROPPED))
    expected = {
        "versions": {each: importlib.metadata.version(each) for each in (library, "paddlepaddle")},
        "losses": losses.found,
        "weights": {key: np.asarray(value).tolist() for key, value in model.state_dict().items()},
    }
    (target / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def main(library):
    paddle.set_device("cpu")
    if library == "paddlenlp":
        write(library, "classic", Plain())
        write(library, "unified", pretrained_model(library), unified_checkpoint=True)
        return
    write(library, "flex", Plain())
    write(library, "classic", Plain(), save_checkpoint_format="sharding_io")
    write(library, "pretrained", pretrained_model(library), save_checkpoint_format="sharding_io")
    write(library, "unified", pretrained_model(library), save_checkpoint_format="unified_checkpoint")


if __name__ == "__main__":
    main(sys.argv[1])
