"""Every public method and property of Trainer in one table: how to call it, and what has to come of it.

test_lifetimes.py goes through the table before, during and after train(), and after one that failed. Expected values
are computed here with NumPy from the weights of the moment, or follow from the state's own step.
"""

import contextlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, load_file

from oneloop import EvalLoopOutput, PredictionOutput, TrainerCallback, TrainerState
from oneloop.errors import ArgumentError, UnsupportedError
from oneloop.integrations.writers.base import Writer
from tests.backends.support import CLASSES, FEATURES, rows, same_bytes

TRAIN, EVAL = rows(40), rows(6, 1)
STEPS, RATE, DECAY = 6, 0.1, 0.01
RUN = {
    "max_steps": STEPS,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "learning_rate": RATE,
    "weight_decay": DECAY,
    "logging_steps": 2,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "save_strategy": "steps",
    "save_steps": 2,
    "save_async": False,
    "hub_model_id": "me/model",
    "hub_token": "hf_neverseenanywhere",
}
PARAMETERS = FEATURES * 8 + 8 + 8 * CLASSES + CLASSES
FLOPS = 6 * (4 * 2 * FEATURES) * PARAMETERS  # of one update

BEFORE, AFTER = "before train()", "after train()"
EVENTS = {"on_train_begin": 0, "on_step_end": 4, "on_log": 4, "on_evaluate": 4, "on_save": 4, "on_train_end": STEPS}
NO_DATA = "after a train() whose data could not be loaded"
NONFINITE = "after a train() that stopped at a loss that is not finite"
FAILED = (
    "after a train() that failed in a callback",
    "after a train() that failed in compute_loss",
    "after a train() that failed in an evaluation",
    "after a train() that a signal ended",
    NONFINITE,
    NO_DATA,
)
OUTSIDE = (BEFORE, AFTER, *FAILED)
NO_OPTIMIZER = (BEFORE, NO_DATA)
NO_STEP = (*NO_OPTIMIZER, "on_train_begin")


@dataclass
class Scene:
    """A Trainer at one moment of its life."""

    trainer: Any
    kit: Any  # of its framework
    moment: str
    folder: Path  # to write into, fresh for each row
    hub: Any = None
    first_epoch: Any = None  # indices of the samples in each batch, as an undisturbed run sees them

    def __post_init__(self):
        self.batches = [self.batch(count)[0] for count in (3, 5, 2)]

    @property
    def model(self):
        return self.trainer.model

    @property
    def step(self):
        return self.trainer.state.global_step

    @property
    def output_dir(self):
        return Path(self.trainer.args.output_dir)

    def batch(self, count=6):
        data = rows(count, 2)
        x, labels = np.stack([d["x"] for d in data]), np.array([d["labels"] for d in data])
        return {"x": self.kit.tensor(x), "labels": self.kit.tensor(labels)}, x, labels

    def logits(self, x):
        return logits(self.kit.weights(self.model), x)

    def loss(self, x, labels):
        return cross_entropy(self.logits(x), labels)

    def indices(self, loader, data):
        """Which samples of the data are in each batch of a loader."""
        known = np.stack([sample["x"] for sample in data])
        found = []
        for batch in loader:
            x = self.kit.numpy(batch["x"])
            found.append([int(np.flatnonzero((known == row).all(1))[0]) for row in x])
        return found


def logits(weights, x):
    """The classifier of the kits in NumPy; frameworks have their matrices one way or the other."""

    def layer(name, x, width):
        matrix = next(value for key, value in weights.items() if key.startswith(name) and value.ndim == 2)
        bias = next(value for key, value in weights.items() if key.startswith(name) and value.ndim == 1)
        assert bias.shape == (width,)
        return x @ (matrix if matrix.shape == (x.shape[1], width) else matrix.T) + bias

    return layer("head", np.maximum(layer("hidden", x, 8), 0), CLASSES)


def cross_entropy(scores, labels):
    scores = scores - scores.max(axis=1, keepdims=True)
    return float(np.mean(np.log(np.exp(scores).sum(1)) - scores[np.arange(len(labels)), labels]))


def columns(data):
    return np.stack([sample["x"] for sample in data]), np.array([sample["labels"] for sample in data])


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def near(value):
    return pytest.approx(value, rel=1e-4, abs=1e-5)


@dataclass
class Row:
    """`moments` None: at all of them. `disturbs`: while training it adds gradients, or draws as dropout does."""

    name: str
    call: Callable[[Scene], Any]
    check: Callable[[Scene, Any], None]
    moments: tuple[str, ...] | None = None
    refused: dict[str, tuple[type, str]] | None = None  # moments at which it is an error, and which
    disturbs: bool = False

    def fits(self, moment):
        return self.moments is None or moment in self.moments

    def run(self, scene):
        if self.refused and scene.moment in self.refused:
            error, words = self.refused[scene.moment]
            with pytest.raises(error, match=words):
                self.call(scene)
            return
        self.check(scene, self.call(scene))


TABLE: list[Row] = []


def row(name, call, **given):
    """Decorates the check of a row."""

    def add(check):
        TABLE.append(Row(name, call, check, **given))
        return check

    return add


def constant(name, expected, **given):
    TABLE.append(Row(name, lambda s: getattr(s.trainer, name), lambda s, found: equal(found, expected), **given))


def equal(found, expected):
    assert found == expected and type(found) is type(expected)


def always_refused(name, call, error, words):
    TABLE.append(Row(name, call, lambda s, found: None, refused=dict.fromkeys((*OUTSIDE, *EVENTS), (error, words))))


def printed(call):
    """What a call prints."""

    def run(scene):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            call(scene)
        return out.getvalue()

    return run


class Hears(TrainerCallback):
    def __init__(self):
        self.logs = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logs.append(dict(logs))


class Service(Writer):
    """A writer that keeps what it is told."""

    name = "service"

    def __init__(self):
        super().__init__()
        self.values = {}

    def open(self, args, state):
        self.run = {"id": "one"}

    def write(self, values, step):
        self.values |= values

    def close(self):
        pass


# -- evaluation


@row("evaluate", lambda s: s.trainer.evaluate())
def _(s, metrics):
    x, labels = columns(EVAL)
    assert metrics["eval_loss"] == near(s.loss(x, labels))
    assert metrics["eval_accuracy"] == float((s.logits(x).argmax(-1) == labels).mean())
    last = s.trainer.state.log_history[-1]
    assert last["eval_loss"] == metrics["eval_loss"] and last["step"] == s.step


@row("evaluate", lambda s: s.trainer.evaluate({"a": EVAL[:4], "b": EVAL[4:]}, metric_key_prefix="some"))
def _(s, metrics):
    for name, part in (("a", EVAL[:4]), ("b", EVAL[4:])):
        assert metrics[f"some_{name}_loss"] == near(s.loss(*columns(part)))


@row("predict", lambda s: s.trainer.predict(EVAL))
def _(s, output):
    x, labels = columns(EVAL)
    assert isinstance(output, PredictionOutput)
    assert output.predictions == near(s.logits(x)) and output.label_ids.tolist() == labels.tolist()
    assert output.metrics["test_loss"] == near(s.loss(x, labels))


def loop_over(name):
    def call(s):
        return getattr(s.trainer, name)(s.trainer.get_eval_dataloader(), "Looking", metric_key_prefix="some")

    @row(name, call)
    def _(s, output):
        x, labels = columns(EVAL)
        assert isinstance(output, EvalLoopOutput) and output.num_samples == len(EVAL)
        assert output.predictions == near(s.logits(x)) and output.label_ids.tolist() == labels.tolist()
        assert output.metrics["some_loss"] == near(s.loss(x, labels))


loop_over("evaluation_loop")
loop_over("prediction_loop")


@row("prediction_step", lambda s: s.trainer.prediction_step(s.model, s.batch()[0], False), disturbs=True)
def _(s, found):
    _, x, labels = s.batch()
    loss, scores, given = map(s.kit.numpy, found)
    assert float(loss) == near(s.loss(x, labels)) and scores == near(s.logits(x)) and given.tolist() == labels.tolist()


@row("prediction_step", lambda s: s.trainer.prediction_step(s.model, s.batch()[0], True), disturbs=True)
def _(s, found):
    _, x, labels = s.batch()
    assert float(s.kit.numpy(found[0])) == near(s.loss(x, labels)) and found[1:] == (None, None)


# -- loss and gradients


@row("compute_loss", lambda s: s.trainer.compute_loss(s.model, s.batch()[0], return_outputs=True), disturbs=True)
def _(s, found):
    _, x, labels = s.batch()
    loss, outputs = found
    assert float(s.kit.numpy(loss)) == near(s.loss(x, labels))
    assert s.kit.numpy(outputs["logits"]) == near(s.logits(x))


def loss_within(name):
    def call(s):
        with getattr(s.trainer, name)():
            return s.trainer.compute_loss(s.model, s.batch()[0])

    @row(name, call, disturbs=True)
    def _(s, loss):
        assert float(s.kit.numpy(loss)) == near(s.loss(*s.batch()[1:]))


loss_within("compute_loss_context_manager")
loss_within("autocast_smart_context_manager")


@row("training_step", lambda s: s.trainer.training_step(s.model, s.batch()[0]), disturbs=True)
def _(s, loss):
    assert float(s.kit.numpy(loss)) == near(s.loss(*s.batch()[1:]))


@row("batch_cost", lambda s: s.trainer.batch_cost(3, 7))
def _(s, found):
    assert found == 21, "its tokens, with padding"


@row("floating_point_ops", lambda s: s.trainer.floating_point_ops(s.batch(5)[0]))
def _(s, found):
    assert found == 6 * 5 * FEATURES * PARAMETERS


@row("store_flos", lambda s: s.trainer.store_flos())
def _(s, found):
    updates = s.step + (s.moment == NONFINITE)  # that update was computed, and then left out
    assert s.trainer.state.total_flos == FLOPS * updates


# -- data


@row("get_train_dataloader", lambda s: s.indices(s.trainer.get_train_dataloader(), TRAIN))
def _(s, batches):
    assert batches == s.first_epoch and sorted(sum(batches, [])) == list(range(len(TRAIN)))


@row("get_eval_dataloader", lambda s: s.indices(s.trainer.get_eval_dataloader(), EVAL))
def _(s, batches):
    assert batches == [[0, 1, 2, 3, 4, 5]]


@row("get_eval_dataloader", lambda s: s.indices(s.trainer.get_eval_dataloader(TRAIN[:9]), TRAIN))
def _(s, batches):
    assert batches == [list(range(8)), [8]]


@row("get_test_dataloader", lambda s: s.indices(s.trainer.get_test_dataloader(TRAIN[:9]), TRAIN))
def _(s, batches):
    assert batches == [list(range(8)), [8]]


@row("num_examples", lambda s: [s.trainer.num_examples(loader) for loader in loaders(s)])
def _(s, found):
    assert found == [40, 6]


def loaders(s):
    return s.trainer.get_train_dataloader(), s.trainer.get_eval_dataloader()


@row("get_batch_samples", lambda s: s.trainer.get_batch_samples(iter(s.batches), 2, s.trainer.args.device))
def _(s, found):
    batches, items = found
    assert len(batches) == 2 and batches[0] is s.batches[0] and batches[1] is s.batches[1]
    assert items == 3 + 5


@row("set_initial_training_values", lambda s: s.trainer.set_initial_training_values(s.trainer.args, loaders(s)[0]))
def _(s, found):
    assert found == (2, 5, 40, STEPS * 8, 8, 10, STEPS)


@row("get_total_train_batch_size", lambda s: s.trainer.get_total_train_batch_size(s.trainer.args))
def _(s, found):
    assert found == 8


@row("plan", lambda s: s.trainer.plan(world=2, largest=False))
def _(s, found):
    assert (found.model.parameters, found.world, found.length.steps) == (PARAMETERS, 2, STEPS)


# -- optimizer and schedule

NONE_YET = dict.fromkeys(NO_OPTIMIZER, (ArgumentError, "there is no optimizer yet"))


def made_or_kept(create):
    """The optimizer and the schedule before and after a call, with what it returned."""

    def call(s):
        before = s.trainer.optimizer, s.trainer.lr_scheduler
        return before, create(s), (s.trainer.optimizer, s.trainer.lr_scheduler)

    return call


@row("create_optimizer", made_or_kept(lambda s: s.trainer.create_optimizer()))
def _(s, found):
    (before, _), returned, (after, _) = found
    assert returned is after is not None
    if s.moment in NO_OPTIMIZER:
        assert before is None and s.trainer.get_learning_rates()[0] == RATE
    else:
        assert after is before


def both_steps(s):
    s.trainer.create_optimizer()
    return s.trainer.create_scheduler(num_training_steps=4, optimizer=s.trainer.optimizer)


@row("create_scheduler", made_or_kept(both_steps))
def _(s, found):
    (_, before), returned, (_, after) = found
    assert returned is after is not None
    assert_linear(s, before, after)


@row("create_optimizer_and_scheduler", made_or_kept(lambda s: s.trainer.create_optimizer_and_scheduler(4)))
def _(s, found):
    (optimizer, before), returned, (made, after) = found
    assert returned is None and None not in (made, after)
    assert made is optimizer or s.moment in NO_OPTIMIZER
    assert_linear(s, before, after)


def assert_linear(s, before, after):
    """A schedule that is there is kept; a new one goes down over the four steps that were asked for."""
    if s.moment in NO_OPTIMIZER:
        assert before is None
        after.step()
        assert s.trainer.get_learning_rates()[0] == near(RATE * 3 / 4)
    else:
        assert after is before


@row("get_learning_rates", lambda s: s.trainer.get_learning_rates(), refused=NONE_YET)
def _(s, rates):
    assert rates == near([RATE * (1 - s.step / STEPS)] * 2)


@row("get_optimizer_group", lambda s: s.trainer.get_optimizer_group(), refused=NONE_YET)
def _(s, groups):
    assert sorted(map(len, groups)) == [2, 2]


@row("get_optimizer_group", lambda s: s.trainer.get_optimizer_group("hidden.weight"), refused=NONE_YET)
def _(s, group):
    assert float(group["weight_decay"]) == near(DECAY) and len(group["params"]) == 2
    assert any(p is s.model.hidden.weight for p in group["params"])


@row("get_optimizer_group", lambda s: s.trainer.get_optimizer_group(s.model.head.bias), refused=NONE_YET)
def _(s, group):
    assert float(group["weight_decay"]) == 0 and any(p is s.model.head.bias for p in group["params"])


@row("get_decay_parameter_names", lambda s: s.trainer.get_decay_parameter_names(s.model))
def _(s, names):
    assert sorted(names) == ["head.weight", "hidden.weight"]


@row(
    "compare_trainer_and_checkpoint_args",
    lambda s: s.trainer.compare_trainer_and_checkpoint_args(s.trainer.args, s.trainer.state),
)
def _(s, found):
    assert found is None  # it warns, and in scripts of transformers alone


@row("get_num_trainable_parameters", lambda s: s.trainer.get_num_trainable_parameters())
def _(s, found):
    assert found == PARAMETERS


@row("get_optimizer_cls_and_kwargs", lambda s: s.trainer.get_optimizer_cls_and_kwargs(s.trainer.args, s.model))
def _(s, found):
    cls, options = found
    assert isinstance(cls, type) and RATE in (options.get("lr"), options.get("learning_rate"))


# -- logs and files


@row("log_metric", lambda s: s.trainer.log_metric("fact", 1.0) if s.trainer.is_in_train else None)
def _(s, found):
    assert found is None


@row("log", lambda s: s.trainer.log({"fact": 1.0}))
def _(s, found):
    epoch = {} if s.moment in NO_OPTIMIZER else {"epoch": s.step / 5}
    assert s.trainer.state.log_history[-1] == {"fact": 1.0, "step": s.step, **epoch}
    line = json.loads((s.output_dir / "log.jsonl").read_text().splitlines()[-1])
    assert line["fact"] == 1.0 and line["step"] == s.step


def recorded(s):
    s.output_dir.mkdir(exist_ok=True)
    s.trainer.record_event("noted", words=f"at {s.moment}")


@row("record_event", recorded)
def _(s, found):
    line = json.loads((s.output_dir / "run.jsonl").read_text().splitlines()[-1])
    assert (line["event"], line["step"], line["words"]) == ("noted", s.step, f"at {s.moment}")


METRICS = {"eval_loss": 0.123456, "eval_runtime": 61.5, "total_flos": 3e9}


@row("log_metrics", printed(lambda s: s.trainer.log_metrics("eval", METRICS)))
def _(s, text):
    assert text.splitlines()[0] == "***** eval metrics *****"
    assert [line.split() for line in text.splitlines()[1:]] == [
        ["eval_loss", "=", "0.1235"],
        ["eval_runtime", "=", "0:01:01.50"],
        ["total_flos", "=", "3GF"],
    ]


@row("metrics_format", lambda s: s.trainer.metrics_format(METRICS))
def _(s, found):
    assert found == {"eval_loss": 0.1235, "eval_runtime": "0:01:01.50", "total_flos": "3GF"}


@row("save_metrics", lambda s: s.trainer.save_metrics("eval", METRICS))
def _(s, found):
    for name in ("eval_results.json", "all_results.json"):
        assert json.loads((s.output_dir / name).read_text()) == METRICS


@row("save_model", lambda s: s.trainer.save_model(s.folder / "model"))
def _(s, found):
    assert same_bytes(load_file(s.folder / "model" / "model.safetensors"), s.kit.weights(s.model))
    arguments = json.loads((s.folder / "model" / "training_args.json").read_text())
    assert arguments["max_steps"] == STEPS


@row("save_state", lambda s: s.trainer.save_state())
def _(s, found):
    assert TrainerState.load_from_json(s.output_dir / "trainer_state.json") == s.trainer.state


@row("create_model_card", lambda s: s.trainer.create_model_card(license="mit", model_name=f"At {s.moment}"))
def _(s, found):
    text = (s.output_dir / "README.md").read_text()
    assert f"# At {s.moment}" in text and 'license: "mit"' in text


@row("print_config", printed(lambda s: s.trainer.print_config()))
def _(s, text):
    shown = dict(line.split(" = ", 1) for line in text.splitlines()[1:])
    assert {key.strip(): value for key, value in shown.items()}["max_steps"] == str(STEPS)


@row("init_hf_repo", lambda s: s.trainer.init_hf_repo())
def _(s, found):
    assert s.hub.repositories == {"me/model": None} and s.trainer.hub_model_id == "me/model"


@row("push_to_hub", lambda s: s.trainer.push_to_hub(f"Said {s.moment}"))
def _(s, found):
    assert s.hub.commits[-1].message == f"Said {s.moment}"
    assert same_bytes(load(s.hub.tree()["model.safetensors"]), s.kit.weights(s.model))


EXPORTS: list[Row] = []  # apart: tracing a model takes long


def exported(name, call):
    def check(s, written):
        assert written and all((s.folder / "exported" / file).is_file() for file in written)

    EXPORTS.append(Row(name, call, check))


exported("export", lambda s: s.trainer.export(s.folder / "exported"))
exported("export_model", lambda s: s.trainer.export_model(output_dir=s.folder / "exported"))


# -- callbacks


def heard(add, remove):
    """The logs that a callback hears while it is there, and what removing it returns."""

    def call(s):
        callback = Hears()
        add(s, callback)
        s.trainer.log({"heard": 1.0})
        removed = remove(s, callback)
        s.trainer.log({"heard": 2.0})
        return callback, removed

    return call


def added(s, callback):
    s.trainer.add_callback(callback)


@row("add_callback", heard(added, lambda s, callback: s.trainer.pop_callback(Hears)))
@row("pop_callback", heard(added, lambda s, callback: s.trainer.pop_callback(callback)))
def _(s, found):
    callback, removed = found
    assert removed is callback and [logs["heard"] for logs in callback.logs] == [1.0]
    assert s.trainer.pop_callback(Hears) is None


@row("remove_callback", heard(added, lambda s, callback: s.trainer.remove_callback(callback)))
def _(s, found):
    callback, removed = found
    assert removed is None and [logs["heard"] for logs in callback.logs] == [1.0]
    assert callback not in s.trainer.callback_handler.callbacks


# -- questions and names of other trainers

for name in ("is_local_process_zero", "is_world_process_zero"):
    TABLE.append(Row(name, lambda s, name=name: getattr(s.trainer, name)(), lambda s, found: equal(found, True)))
for name in ("get_tp_size", "get_cp_size", "get_sp_size"):
    TABLE.append(Row(name, lambda s, name=name: getattr(s.trainer, name)(), lambda s, found: equal(found, 1)))
for name in ("use_apex", "is_deepspeed_enabled", "is_fsdp_enabled", "is_fsdp_xla_enabled", "is_tp_enabled"):
    constant(name, False)
for name in ("is_model_parallel", "can_return_loss", "do_grad_scaling"):
    constant(name, False)
for name in ("is_fsdp_xla_v1_enabled", "is_fsdp_xla_v2_enabled", "is_distributed_loading_by_transformers"):
    constant(name, False)
constant("place_model_on_device", True)
for name in ("deepspeed", "scaler", "label_smoother", "neftune_noise_alpha", "tokenizer"):
    constant(name, None)
for name in ("hp_name", "hp_search_backend", "hp_space", "compute_objective", "objective"):
    constant(name, None)
constant("hub_model_id", "me/model")
constant("model_accepts_loss_kwargs", True)
constant("loss_is_scaled_for_ga", None)
# Micro-batches of the update under way, or of the last one.
constant(
    "current_gradient_accumulation_steps", 2, moments=tuple(m for m in (*EVENTS, AFTER, *FAILED) if m not in NO_STEP)
)
constant("current_gradient_accumulation_steps", 1, moments=(BEFORE,))


@row("gather_function", lambda s: s.trainer.gather_function([1, 2]))
def _(s, found):
    assert found == [1, 2]


@row("push_in_progress", lambda s: s.trainer.push_in_progress)
def _(s, found):
    assert found is None or callable(found.is_done)


@row("call_model_init", lambda s: s.trainer.call_model_init())
def _(s, model):
    assert model is not s.model and same_bytes(s.kit.weights(model), s.kit.weights(s.trainer.model_init()))


@row("rename_parameter", lambda s: s.trainer.rename_parameter("head.weight", "paddle"))
def _(s, name):
    assert name == "head.weight"


def renewed(s):
    before = s.trainer.accelerator
    return before, s.trainer.create_accelerator_and_postprocess()


@row("create_accelerator_and_postprocess", renewed)
def _(s, found):
    before, returned = found
    accelerator = s.trainer.accelerator
    assert returned is None and accelerator is not before and accelerator.unwrap_model(s.model) is s.model
    assert accelerator.gradient_accumulation_steps == 2


@row("torch_jit_model_eval", lambda s: s.trainer.torch_jit_model_eval(s.model, training=True))
@row("torch_jit_model_eval", lambda s: s.trainer.torch_jit_model_eval(s.model))
@row("ipex_optimize_model", lambda s: s.trainer.ipex_optimize_model(s.model))
def _(s, model):
    assert model is s.model


def ended(s):
    (writer,) = (each for each in s.trainer.callback_handler.callbacks if isinstance(each, Service))
    s.trainer.log({"before_the_end": 1.0})
    was_open = writer.is_open
    s.trainer.end()
    return writer, was_open, writer.is_open


@row("end", ended)
def _(s, found):
    writer, before, after = found
    assert (before, after) == (True, False)
    s.trainer.log({"after_the_end": 2.0})  # opens it again
    assert writer.is_open and writer.values["before_the_end"] == 1.0 and writer.values["after_the_end"] == 2.0


always_refused("init_git_repo", lambda s: s.trainer.init_git_repo(), UnsupportedError, "push_to_hub")
always_refused("compress", lambda s: s.trainer.compress(), UnsupportedError, "PaddleSlim")
always_refused(
    "set_optimizer_grouped_parameters",
    lambda s: s.trainer.set_optimizer_grouped_parameters([]),
    UnsupportedError,
    "optimizers=",
)
