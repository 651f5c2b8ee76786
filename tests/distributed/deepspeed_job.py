"""Short runs with DeepSpeed, as a program under torchrun: `deepspeed_job.py FOLDER CASE [CASE ...]`; see job.py.

On one process, where DeepSpeed is refused, a case runs without it.
"""

import hashlib
import json
import os
import signal
import sys
from functools import partial
from pathlib import Path

import torch

from oneloop import Trainer, TrainerCallback
from oneloop.distributed.world import world
from oneloop.errors import OneloopError
from tests.backends.support import tagged
from tests.distributed.job import GLOBAL_BATCH, arguments, main, train
from tests.distributed.sharding_job import LENGTHS, UNLABELLED, Odd

CASES = {}


class Plain(Odd):
    """Without single numbers, which DeepSpeed cannot send around over gloo."""

    def __init__(self):
        super().__init__()
        del self.warmth, self.seen
        self.warmth, self.seen = 1.0, 0


class Still(Plain):
    """Without a count of its calls, for each of which it would be compiled."""

    def forward(self, input_ids, labels=None):
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.tied(x))
        if labels is None:
            return {"logits": logits}
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


def case(function):
    CASES[function.__name__] = function
    return function


def without_building():
    """DeepSpeed would compile a transport through shared memory for minutes; gloo does."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # DeepSpeed asks for instructions that make fp16 fast on a CPU; torch computes in it without them.
    accelerator = deepspeed.accelerator.get_accelerator()
    accelerator.is_fp16_supported = lambda: True


def config(stage, **more):
    return {
        "zero_optimization": {"stage": stage, "reduce_bucket_size": "auto"},
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_clipping": "auto",
        "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
        "fp16": {"enabled": "auto", "initial_scale_power": 15, "loss_scale_window": 2, "hysteresis": 1},
        "bf16": {"enabled": "auto"},
    } | more


def options(**given):
    half = GLOBAL_BATCH // world().size // 2
    usual = {"per_device_train_batch_size": half, "gradient_accumulation_steps": 2, "max_grad_norm": 0.5}
    usual |= {"optim": "adamw_torch", "learning_rate": 0.01, "weight_decay": 0.1, "lr_scheduler_type": "linear"}
    return usual | given


def data():
    return tagged(LENGTHS, unlabelled=UNLABELLED)


SAVES = {"save_strategy": "steps", "save_steps": 3, "max_steps": 6}


def digests(folder):
    """The bytes of all that a checkpoint restores: tensors, and run.json without what names the run."""
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in Path(folder).glob("*.safetensors")}
    run = json.loads((Path(folder) / "run.json").read_text())
    return found | {"run": {key: run[key] for key in ("optimizer", "engine", "scheduler", "losses")}}


def whole(folder, name, model, **given):
    """A run that is never interrupted, and one that continues from its third step: losses and bytes of each."""
    straight = train(folder, f"{name}-straight", model(), data(), **options(**SAVES, **given))
    first = Path(folder) / f"{name}-straight" / "checkpoint-3"
    resumed = train(folder, f"{name}-resumed", model(), data(), resume=str(first), **options(**SAVES, **given))
    return {
        "losses": straight.seen.losses,
        "norms": straight.seen.norms,
        "continued": resumed.seen.losses,
        "bytes": [digests(Path(folder) / f"{name}-{run}" / "checkpoint-6") for run in ("straight", "resumed")],
        "files": sorted(path.name for path in first.iterdir()),
    }


# -- the stages


@case
def stages(folder):
    """Losses of training and of an evaluation."""
    evaluated = {"eval_dataset": tagged([5] * 7)}
    if world().size == 1:
        trainer = train(folder, "alone", Plain(), data(), **options(), **evaluated)
        return {"alone": {"losses": trainer.seen.losses, "evaluated": trainer.evaluate()["eval_loss"]}}
    without_building()
    found = {}
    for stage in range(4):
        trainer = train(folder, f"stage{stage}", Plain(), data(), deepspeed=config(stage), **options(), **evaluated)
        trainer.save_model(str(Path(folder) / f"model{stage}"))
        found[f"stage{stage}"] = {
            "losses": trainer.seen.losses,
            "norms": trainer.seen.norms,
            "evaluated": trainer.evaluate()["eval_loss"],
            "files": sorted(path.name for path in (Path(folder) / f"model{stage}").iterdir()),
        }
    return found


@case
def resumed(folder):
    """Every stage with float32 weights."""
    if world().size == 1:
        return {"alone": whole(folder, "alone", Plain)}
    without_building()
    return {f"stage{stage}": whole(folder, f"stage{stage}", Plain, deepspeed=config(stage)) for stage in range(4)}


@case
def halves(folder):
    """Weights in half precision, with float32 copies in the optimizer."""
    without_building()
    found = {}
    for kind in ("bf16", "fp16"):
        for stage in range(4):
            name = f"{kind}-stage{stage}"
            found[name] = whole(folder, name, Plain, deepspeed=config(stage), **{kind: True})
    return found


# -- other numbers of processes, and other strategies: FOLDER has those of `resumed` and `halves` on two processes


ELASTIC = {
    **{f"stage{stage}": {"deepspeed": config(stage)} for stage in range(4)},
    "bf16-stage3": {"deepspeed": config(3), "bf16": True},
}


@case
def on_more(folder):
    """On four processes from the third step on."""
    without_building()
    found = {}
    for name, given in ELASTIC.items():
        first = Path(folder).parent / "2" / f"{name}-straight" / "checkpoint-3"
        found[name] = train(folder, name, Plain(), data(), resume=str(first), **options(**SAVES, **given)).seen.losses
    return found


@case
def left(folder):
    """From stage 2 to one process without DeepSpeed, which saves more often."""
    first = Path(folder).parent / "2" / "stage2-straight" / "checkpoint-3"
    given = options(**SAVES | {"save_steps": 1})
    return train(folder, "left", Plain(), data(), resume=str(first), **given).seen.losses


@case
def returned(folder):
    """From there to stage 3."""
    without_building()
    first = Path(folder).parent / "1" / "left" / "checkpoint-4"
    given = options(**SAVES, deepspeed=config(3))
    return train(folder, "returned", Plain(), data(), resume=str(first), **given).seen.losses


# -- models


def divided_from_the_start(dtype):
    """Created under deepspeed.zero.Init: no process ever has all of it."""
    import deepspeed

    kept = {"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 1}
    with deepspeed.zero.Init(config_dict_or_path=kept, dtype=dtype):
        return Plain()


def adapted():
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(3)
    return get_peft_model(Plain(), LoraConfig(r=2, lora_alpha=4, target_modules=["inner"], init_lora_weights=False))


@case
def models(folder):
    if world().size == 1:
        return {"lora": whole(folder, "lora", adapted)}
    without_building()
    found = {
        "init": whole(folder, "init", lambda: divided_from_the_start(torch.float32), deepspeed=config(3)),
        "init-bf16": whole(
            folder, "init-bf16", lambda: divided_from_the_start(torch.bfloat16), deepspeed=config(3), bf16=True
        ),
        "lora-stage2": whole(folder, "lora2", adapted, deepspeed=config(2)),
        "lora-stage3": whole(folder, "lora3", adapted, deepspeed=config(3)),
        "lora-bf16-stage3": whole(folder, "lorabf16", adapted, deepspeed=config(3), bf16=True),
    }
    for stage in (1, 2, 3):
        given = {"deepspeed": config(stage), "torch_compile": True, "torch_compile_backend": "aot_eager"}
        found[f"compiled-stage{stage}"] = whole(folder, f"compiled{stage}", Still, **given)
    return found


@case
def best(folder):
    """The best model is loaded at the end: that of step 3, since later steps learn to be wrong."""
    without_building()
    found = {}
    for name, given in {"stage3": {}, "bf16-stage3": {"bf16": True}, "bf16-stage2": {"bf16": True}}.items():
        given = given | {"deepspeed": config(int(name[-1])), "eval_strategy": "steps", "eval_steps": 3}
        given |= {"load_best_model_at_end": True, "metric_for_best_model": "worse", "greater_is_better": False}
        given |= {"compute_metrics": Rising(), "eval_dataset": tagged([5] * 7)}
        trainer = train(folder, name, Plain(), data(), **options(**SAVES, **given))
        trainer.save_model(str(Path(folder) / f"{name}-best"))
        found[name] = {
            "saved": weights_in(Path(folder) / f"{name}-best"),
            "third": weights_in(Path(folder) / name / "checkpoint-3"),
            "sixth": weights_in(Path(folder) / name / "checkpoint-6"),
        }
    return found


class Rising:
    """A metric that gets worse with each evaluation."""

    def __init__(self):
        self.count = 0

    def __call__(self, prediction):
        self.count += 1
        return {"worse": self.count}


def weights_in(folder):
    from safetensors.torch import load_file

    tensors = {}
    for file in sorted(Path(folder).glob("model*.safetensors")):
        tensors |= load_file(str(file))
    return {name: hashlib.sha256(tensors[name].numpy().tobytes()).hexdigest() for name in sorted(tensors)}


# -- a process is killed


class Killed(TrainerCallback):
    """SIGKILL while the last save is being written."""

    def __init__(self, rank):
        self.rank = rank

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 4 and world().rank == self.rank:
            os.kill(os.getpid(), signal.SIGKILL)


def _killing(folder, stage, rank):
    without_building()
    given = options(**SAVES | {"save_steps": 1}, deepspeed=config(stage), ddp_timeout=20)
    train(folder, f"killed{stage}", Plain(), data(), callbacks=[Killed(rank)], **given)


@case
def killing2(folder):
    _killing(folder, 2, 0)


@case
def killing3(folder):
    _killing(folder, 3, 1)


@case
def after_kill(folder):
    """Resumes what is left of the runs that were killed, and runs them without a kill."""
    without_building()
    found = {}
    for stage in (2, 3):
        given = options(**SAVES | {"save_steps": 1}, deepspeed=config(stage))
        killed = Path(folder) / f"killed{stage}"
        before = sorted(path.name for path in killed.glob("checkpoint-*"))
        train(folder, f"killed{stage}", Plain(), data(), resume=True, **given)
        train(folder, f"unbroken{stage}", Plain(), data(), **given)
        runs = (killed, Path(folder) / f"unbroken{stage}")
        found[f"stage{stage}"] = {"before": before, "bytes": [digests(run / "checkpoint-6") for run in runs]}
    return found


class Steep(Plain):
    """A finite loss with gradients that are not: the slope of a root at zero."""

    def forward(self, input_ids, labels=None):
        found = super().forward(input_ids, labels)
        logits = found["logits"]
        return found | {"loss": found["loss"] + (logits - logits.detach()).abs().sum().sqrt()}


@case
def refused(folder):
    """The messages of what is refused, and of gradients that are not finite."""
    without_building()
    given = options(**SAVES | {"max_steps": 1}, deepspeed=config(2))
    trainer = train(folder, "twice", Plain(), data(), **given)
    divided = divided_from_the_start(torch.float32)
    early = Trainer(divided, arguments(folder, "early", **options(deepspeed=config(3))), eval_dataset=tagged([5] * 7))
    actions = {"twice": trainer.train, "early": early.evaluate}
    for stage in range(4):
        given = options(max_steps=1, deepspeed=config(stage))
        actions[f"steep{stage}"] = partial(train, folder, f"steep{stage}", Steep(), data(), **given)
        actions[f"bf16-steep{stage}"] = partial(train, folder, f"half{stage}", Steep(), data(), **given, bf16=True)
    found = {}
    for name, action in actions.items():
        try:
            action()
        except OneloopError as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


if __name__ == "__main__":
    main(*sys.argv[1:], cases=CASES)
