"""Short runs of a Paddle model whose layers are divided (tensor_parallel_size), as a program under Paddle's launcher:
`paddle_layouts_job.py FOLDER CASE[=CHECKPOINT] ...`.

A case runs with the layout of the variable LAYOUT: `alone`, `dp` or `tp` (pairs of processes, and data parallelism over
the rest). Each process writes what it had to FOLDER/rankN.json.
"""

import hashlib
import json
import math
import os
import shutil
import sys
from functools import partial
from pathlib import Path

import numpy as np
import paddle
from paddle import nn

import oneloop.backends.paddle.shards as shards
from oneloop import Trainer, TrainerCallback
from oneloop.distributed.world import world
from tests.distributed.cases import train as train_with
from tests.internals import strategy_of

GLOBAL_BATCH, WORDS, WIDTH, HEADS = 8, 48, 16, 4
POISON = WORDS - 1  # a row of this word alone has a loss that is not finite
TENSOR = os.environ.get("LAYOUT", "alone") == "tp"
PLAN = {
    "embed": "embedding_rowwise",
    "layers.*.query": "colwise",
    "layers.*.key": "colwise",
    "layers.*.value": "colwise",
    "layers.*.out": "rowwise",
    "layers.*.up": "colwise",
    "layers.*.down": "rowwise",
    "head": "colwise_gather_output",
}
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


# -- the model


class Layer(nn.Layer):
    """Attention with a norm of each head, whose number is written down, as in most models of Paddle."""

    def __init__(self, inside, outside):
        super().__init__()
        self.norm, self.head_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH // HEADS)
        self.query, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.key = nn.Linear(WIDTH, WIDTH, bias_attr=False)  # the gradient of its bias is zero, and rounding
        self.up, self.down = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)
        self.inside, self.outside = nn.Dropout(inside), nn.Dropout(outside)

    def heads(self, x):
        return x.reshape([0, 0, HEADS, WIDTH // HEADS]).transpose([0, 2, 1, 3])

    def forward(self, x):
        whole = self.norm(x)
        query, key = self.head_norm(self.heads(self.query(whole))), self.heads(self.key(whole))
        found = paddle.matmul(query, key, transpose_y=True) / math.sqrt(WIDTH // HEADS)
        found = nn.functional.dropout(nn.functional.softmax(found), self.inside.p, training=self.training)
        found = paddle.matmul(found, self.heads(self.value(whole))).transpose([0, 2, 1, 3]).reshape([0, 0, WIDTH])
        x = x + self.outside(self.out(found))
        return x + self.outside(self.down(self.inside(paddle.tanh(self.up(self.norm(x))))))


class Model(nn.Layer):
    """A number as a parameter, a count as a buffer, and the weights of the embedding used by another layer too."""

    def __init__(self, inside=0.0, outside=0.0, seed=4):
        super().__init__()
        paddle.seed(seed)
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.layers = nn.LayerList([Layer(inside, outside) for _ in range(2)])
        self.warmth = self.create_parameter([1], default_initializer=nn.initializer.Constant(1.5))
        self.register_buffer("seen", paddle.zeros([1]))

    def forward(self, input_ids, labels=None):
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        if self.training:
            self._buffers["seen"] += 1
        logits = (self.head(x) + x @ self.embed.weight.T) * self.warmth
        if bool((input_ids == POISON).all(axis=-1).any()):
            logits = logits * float("nan")
        if labels is None:
            return {"logits": logits}
        losses = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        return {"loss": losses.sum() / (labels != -100).sum(), "logits": logits}


def texts(count=40, length=9, seed=0):
    generator = np.random.default_rng(seed)
    found = []
    for number in range(count):
        ids = generator.integers(0, POISON, length)
        labels = np.where(generator.random(length) < 0.2, -100, ids)
        if number % 11 == 5:
            labels[:] = -100
        found.append({"input_ids": ids, "labels": labels})
    return found


# -- runs


def train(folder, name, model=None, data=None, spelling="tensor_parallel_size", **given):
    """A run of the global batch, whatever divides it."""
    own = {spelling: 2, "tensor_parallel_plan": PLAN} if TENSOR else {}
    given = own | given
    batches = world().size // given.get(spelling, 1)
    options = {
        "per_device_train_batch_size": GLOBAL_BATCH // batches // given.get("gradient_accumulation_steps", 1),
        "optim": "adamw_torch",
        "learning_rate": 0.01,
        "lr_scheduler_type": "linear",
        "max_steps": 6,
        "max_grad_norm": 0.5,
        "weight_decay": 0.1,
        "eval_dataset": texts(11, seed=1),
    }
    model = Model(seed=4 + world().rank) if model is None else model  # the weights are those of the main process
    return train_with(folder, name, model, texts() if data is None else data, **options | given)


def digest(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(Path(folder).glob("*.safet*"))}


def course(trainer):
    """What runs of all layouts have in common, and the bits of this process."""
    own = hashlib.sha256()
    for _, p in sorted(trainer.model.state_dict().items()):
        own.update(p.numpy().tobytes())
    predicted = trainer.predict(texts(7, seed=2))
    return {
        "losses": trainer.seen.losses,
        "norms": trainer.seen.norms,
        "eval_loss": trainer.evaluate()["eval_loss"],
        "predictions": np.asarray(predicted.predictions).tolist(),
        "flos": trainer.state.total_flos,
        "skipped": trainer.result.metrics.get("skipped_steps", 0),
        "seen": float(trainer.model.state_dict()["seen"]),
        "bits": own.hexdigest(),
    }


class Clipping(Trainer):
    """Its norm would be that of the parts, and is not asked for."""

    def _clip_grad_norm(self, model):
        raise AssertionError("called with a part of the gradients")


GRID = {
    "plain": {"trainer_class": Clipping} if TENSOR else {},
    "accumulated": {"gradient_accumulation_steps": 2, "label_smoothing_factor": 0.1},
    "dropped": {"inside": 0.2, "outside": 0.1, "gradient_checkpointing": True, "optim": "rmsprop"},
    # From zero, Adagrad makes whole steps of gradients that are rounding errors.
    "averaged": {
        "ema_decay": 0.8,
        "optim": "adagrad",
        "optim_args": "initial_accumulator_value=0.1",
        "max_grad_norm": 0.0,
    },
    "skipped": {"nonfinite": "skip", "optim": "sgd", "optim_args": "momentum=0.9", "learning_rate": 0.05},
}


def grid_run(folder, name, **more):
    given = dict(GRID[name]) | more
    inside, outside = given.pop("inside", 0.0), given.pop("outside", 0.0)
    data = texts()
    if name == "skipped":
        data[7] = {"input_ids": np.full(9, POISON), "labels": np.full(9, 3)}
    return course(train(folder, name, Model(inside, outside, seed=4 + world().rank), data, **given))


@case
def grid(folder):
    return {name: grid_run(folder, name) for name in GRID}


@case
def thirty(folder):
    return {name: grid_run(folder, name, max_steps=30) for name in GRID}


SAVING = {"save_strategy": "steps", "save_steps": 3, "ema_decay": 0.8}


def saving_run(folder, name, resume=None, **given):
    trainer = train(folder, name, Model(0.1, 0.1), resume=resume, **SAVING | given)
    found = course(trainer)
    target = Path(folder) / name
    trainer.save_model(str(target / "final"))
    if world().rank > 0:  # the main process writes them, perhaps still
        return found | {"files": None}
    return found | {"files": {"final": digest(target / "final"), "last": digest(target / "checkpoint-6")}}


@case
def saved(folder):
    """In one go."""
    return saving_run(folder, "saved")


@case
def still(folder):
    """Without dropout, of which each framework draws its own; and a flag that one process sets, as an overflow."""
    trainer = train(folder, "still", **SAVING)
    flags = []
    if hasattr(strategy_of(trainer), "in_any"):
        for setter in (None, 0, 1):
            flag = paddle.to_tensor([world().rank == setter])
            flags.append(bool(strategy_of(trainer).in_any(flag)))
    return course(trainer) | {"flags": flags}


@case
def again(folder):
    """From the checkpoint in the middle of `saved`, to the same bytes; and what each process reads of it."""
    checkpoint = Path(folder) / "saved" / "checkpoint-3"
    sizes, made = [], shards.load_parts

    def counting(path, parts):
        return made(path, parts, lambda raw: sizes.append(raw.size) or shards.weights.from_raw(raw))

    shards.load_parts = counting
    try:
        found = saving_run(folder, "again", str(checkpoint))
    finally:
        shards.load_parts = made
    stored = sum((checkpoint / name).stat().st_size for name in ("model.safetensors", "optimizer.safetensors"))
    return found | {"read": sum(sizes), "stored": stored + (checkpoint / "average.safetensors").stat().st_size}


class SharedModel(Model):
    """Two of its layers have one norm, whose weights have two names."""

    def __init__(self):
        super().__init__()
        self.layers[1].norm = self.layers[0].norm


@case
def shared(folder):
    """In one go, and from the checkpoint in the middle."""
    whole = train(folder, "shared", SharedModel(), **SAVING)
    checkpoint = str(Path(folder) / "shared" / "checkpoint-3")
    again = train(folder, "shared_again", SharedModel(), resume=checkpoint, **SAVING)
    return course(whole) | {"again": course(again)["bits"]}


class Dying(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == int(os.environ["DIES_AT"]) and world().rank == world().size - 1:
            os._exit(9)


@case
def killed(folder):
    shutil.rmtree(Path(folder) / "killed", ignore_errors=True) if world().rank == 0 else None
    return course(train(folder, "killed", Model(0.1, 0.1), **SAVING | {"callbacks": [Dying()], "save_steps": 2}))


@case
def resumed(folder):
    return saving_run(folder, "killed", any(Path(folder, "killed").glob("checkpoint-*")), save_steps=2)


@case
def crossed(folder, checkpoint):
    """From a checkpoint of another layout or framework."""
    name = Path(checkpoint).parent.name
    dropout = 0.1 if name == "saved" else 0.0
    return course(train(folder, f"from_{name}", Model(dropout, dropout), resume=checkpoint, ema_decay=0.8))


# -- what is refused


class ListedModel(Model):
    def __init__(self):
        super().__init__()
        self.more = nn.ParameterList([self.create_parameter([2])])


class TiedModel(Model):
    def __init__(self):
        super().__init__()
        self.layers[1].up.weight = self.layers[0].up.weight


def planned(**plan):
    return {"tensor_parallel_plan": {name.replace("__", "."): style for name, style in plan.items()}}


class OwnOptimizer(Trainer):
    def create_optimizer(self, model=None):
        self.optimizer = paddle.optimizer.Lamb(0.01, parameters=self.model.parameters())
        return self.optimizer


class SteppedModel(Model):
    """With an optimizer that has made a step."""

    def __init__(self):
        super().__init__()
        self.stepped = paddle.optimizer.AdamW(0.01, parameters=self.parameters())
        ids = paddle.ones([1, 2], "int64")
        self(ids, ids)["loss"].backward()
        self.stepped.step()
        self.stepped.clear_grad()


class SteppedOptimizer(Trainer):
    def create_optimizer(self, model=None):
        self.optimizer = self.model.stepped
        return self.optimizer


class SparseModel(Model):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH, sparse=True)


class PlannedModel(Model):
    tp_plan = PLAN


@case
def once_more(folder):
    """A plan of the model, its best checkpoint, and a second Trainer for the model that is divided already; in the
    words of PaddleNLP and of PaddleFormers."""
    given = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    given |= {"load_best_model_at_end": True, "learning_rate": 0.2}
    if TENSOR:
        given["tensor_parallel_plan"] = None
    trainer = train(folder, "best", PlannedModel(seed=4 + world().rank), spelling="tensor_parallel_degree", **given)
    given |= {"spelling": "tensor_model_parallel_size", "learning_rate": 0.01}
    second = train(folder, "second", trainer.model, **given)
    return {"best": course(trainer) | {"step": trainer.state.best_global_step}, "second": course(second)}


REFUSED = {
    "no plan": {"tensor_parallel_plan": None},
    "no layer": planned(layers__o="colwise"),
    "nothing divided": planned(head="replicate"),
    "not a Linear": planned(embed="colwise"),
    "does not divide": {"model": lambda: Model(), "wide": 23},
    "tied weights": {"model": TiedModel, **planned(layers__0__up="colwise", layers__1__up="rowwise")},
    "parameter list": {"model": ListedModel},
    "sharding": {"sharding": "stage1"},
    "compiled": {"torch_compile": True},
    "auto_find_batch_size": {"auto_find_batch_size": True},
    "export": {"exports": True},
    "an optimizer of whole steps": {"optimizer": "Lamb"},
    "an optimizer with steps": {"model": SteppedModel, "trainer_class": SteppedOptimizer},
    "sparse gradients": {"model": SparseModel},
    "sequence": {"sequence_parallel_size": 2, "tensor_parallel_size": 1},
    "experts": {"expert_parallel_size": 2, "tensor_parallel_size": 1},
}


@case
def refused(folder):
    found = {}
    for name, given in REFUSED.items():
        given = dict(given)
        model = given.pop("model", Model)()
        if wide := given.pop("wide", None):
            model.layers[1].up, model.layers[1].down = nn.Linear(WIDTH, wide), nn.Linear(wide, WIDTH)
        if given.pop("optimizer", None):
            given["trainer_class"] = OwnOptimizer
        exports = given.pop("exports", False)
        try:
            trainer = train(folder, f"refused {name}", model, **given)
            if exports:
                trainer.export(str(Path(folder) / "exported"))
            found[name] = f"trained {trainer.state.global_step} steps"
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def main(folder, *names):
    found = {}
    for name in names:
        name, _, checkpoint = name.partition("=")
        run = partial(CASES[name], folder, checkpoint) if checkpoint else partial(CASES[name], folder)
        found[f"{name}={Path(checkpoint).parent.name}" if checkpoint else name] = run()
    (Path(folder) / f"rank{world().rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
