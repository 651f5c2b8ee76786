"""Cases of Paddle's sharding that need more than cases.py has: float16 on CPUs, and groups of processes.

Paddle's loss scaler and its kernels compute on a CPU too; only the scaler's constructor checks for an accelerator. As a
CPU has no autocast, the model rounds to float16 itself, where its gradients overflow as on an accelerator.
"""

import contextlib
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import paddle
from paddle import distributed as dist
from paddle import nn
from paddle.amp import grad_scaler

from oneloop import TrainingArguments
from oneloop.backends.paddle.optimizers import groups
from oneloop.backends.paddle.sharded_gradients import ShardedGradientsStrategy, ShardEngine
from oneloop.distributed.world import world
from tests.backends.kits.paddle_kit import seeded
from tests.backends.support import CLASSES, FEATURES, rows
from tests.internals import engine_of, skipped_updates

UPDATE = 12  # samples


class Rounded(nn.Layer):
    """Two layers, with float16 between them: gradients of the first overflow, and those of the second do not. Sharding
    gives each to one process."""

    def __init__(self, half):
        super().__init__()
        self.half = half
        with seeded(3):
            self.first = nn.Linear(FEATURES, 8, bias_attr=False)
            self.second = nn.Linear(8, CLASSES, bias_attr=False)

    def forward(self, x, labels=None):
        hidden = nn.functional.tanh(self.first(x))
        if self.half:
            hidden = hidden.astype("float16").astype("float32")
        logits = self.second(hidden)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Scaler(paddle.amp.GradScaler):
    """Paddle's own on a CPU, with notes about its calls in `calls`."""

    calls: list

    def __init__(self, **options):
        tracer = SimpleNamespace(_expected_place=SimpleNamespace(is_gpu_place=lambda: True))
        with mock.patch.object(grad_scaler, "_dygraph_tracer", lambda: tracer):
            super().__init__(**options)

    def scale(self, loss):
        self.calls.append("scale")
        return super().scale(loss)

    def unscale_(self, optimizer):
        super().unscale_(optimizer)
        self.calls.append(f"unscale, overflow: {bool(self._found_inf)}")

    def step(self, optimizer):
        self.calls.append(f"step, overflow: {bool(self._found_inf)}")
        parameters = [p for group in groups(optimizer) for p in group["params"]]
        before = [p.numpy().copy() for p in parameters]
        super().step(optimizer)
        changed = any((p.numpy() != old).any() for p, old in zip(parameters, before, strict=True))
        self.calls.append("changed" if changed else "skipped")

    def update(self):
        super().update()
        self.calls.append("update")


@contextlib.contextmanager
def half_on_cpus():
    """float16 is not refused. Yields the calls of an update, in their order."""
    calls = Scaler.calls = []

    def noted(owner, name, word):
        def call(*args, **kwargs):
            calls.append(word)
            return function(*args, **kwargs)

        function = getattr(owner, name)
        return mock.patch.object(owner, name, call)

    with (
        mock.patch.object(paddle.amp, "GradScaler", Scaler),
        mock.patch.object(TrainingArguments, "check_backend", lambda *_: None),
        noted(paddle.Tensor, "backward", "backward"),
        noted(ShardedGradientsStrategy, "_reduce", "reduce"),
        noted(ShardedGradientsStrategy, "in_any", "agree"),
        noted(ShardEngine, "square", "norm"),
    ):
        yield calls


def half_runs(train, course, folder):
    """Eight accumulated and clipped updates with loss scales that overflow first, and with one that does not."""
    size = world().size
    given = {"per_device_train_batch_size": UPDATE // size // 2, "gradient_accumulation_steps": 2, "max_steps": 8}
    given |= {"max_grad_norm": 0.1, "save_strategy": "steps", "save_steps": 4}

    def run(name, half=True, resume=None, **more):
        options = given | ({"fp16": True, "scale_loss": 2.0**19} if half else {}) | more
        calls.clear()
        trainer = train(folder, f"half_{name}", Rounded(half), rows(44), resume=resume, **options)
        return course(trainer) | {
            "skipped": skipped_updates(trainer),
            "scale": engine_of(trainer).loss_scale(),
            "calls": list(calls),
        }

    with half_on_cpus() as calls:
        if size == 1:
            return {"float32": run("float32", half=False)}
        found = {name: run(name, sharding=name) for name in ("", "stage1", "stage2")}
        saved = str(Path(folder) / "half_stage2" / "checkpoint-4")
        return found | {
            "again": run("again", resume=saved, sharding="stage2"),
            "groups": run("groups", sharding="stage2", optim="rmsprop", weight_decay=0.1, learning_rate=0.01),
            "groups of all": run("groups_ddp", optim="rmsprop", weight_decay=0.1, learning_rate=0.01),
            "fitting": run("fitting", sharding="stage2", scale_loss=1024.0),
        }


def runs_in_groups(elastic_run, folder):
    """Stages 1 and 2 on groups of two processes, in one go and in two."""
    size, found = world().size, {}
    for stage, passes in (("stage1", 1), ("stage2", 3)):
        given = {"per_device_train_batch_size": UPDATE // size // passes, "gradient_accumulation_steps": passes}
        given |= {"weight_decay": 0.1, "max_grad_norm": 0.1}
        if size > 1:
            given |= {"sharding": stage, "sharding_degree": 2}
        found[stage] = elastic_run(folder, f"groups_{stage}", **given)
        saved = str(Path(folder) / f"groups_{stage}" / "checkpoint-4")
        found[f"{stage} again"] = elastic_run(folder, f"groups_{stage}_again", saved, **given)
    return found | ({"members": _members()} if size > 1 else {})


def _members():
    """The ranks that share a copy of the state with this process, and those with the same part of other copies."""
    made = dist.fleet.get_hybrid_communicate_group()
    return [made.get_sharding_parallel_group().ranks, made.get_data_parallel_group().ranks]
