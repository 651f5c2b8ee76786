"""Scripts that the fuzzer has found to go wrong, made small: `python -m tests.fuzz.found` plays them on PyTorch."""

import sys

from tests.fuzz import runs
from tests.fuzz.users import Phase, Script

STEPS = {"logging_strategy": "steps", "logging_steps": 1, "eval_strategy": "no", "load_best_model_at_end": False}
STEPS |= {"save_strategy": "steps", "save_steps": 2, "max_steps": 8, "gradient_accumulation_steps": 1}
RATES = {"learning_rate": 0.7, "adam_beta1": 0.5}
HALF_WAY = (Phase(1, "on_step_end", 5), Phase())
BY_EPOCH = {"eval_strategy": "epoch"}
TWICE = {"gradient_accumulation_steps": 2}

SCRIPTS = {
    # On the second resume, an update had half of its samples.
    "moved to fewer processes, and resumed there": Script(
        samples=11,
        batch=3,
        options=STEPS,
        moves=True,
        phases=(Phase(2, "on_step_end", 3), Phase(1, "on_step_end", 3), Phase(1)),
    ),
    # The epoch had no end, and no evaluation.
    "a stream that counts its passes, at the end of one": Script(
        kind="stream with epoch", samples=10, options=STEPS | BY_EPOCH, phases=HALF_WAY
    ),
    # A sampler that goes on for ever was read to its end.
    "a sampler that yields more than its length, on two processes": Script(
        kind="long sampler", samples=12, options=STEPS, phases=(Phase(2, "on_step_end", 2), Phase(2))
    ),
    # The last checkpoint had forgotten how the data begin an epoch.
    "a stream, at the end of the run while it is evaluated": Script(
        kind="stream with own iterator",
        samples=8,
        batch=3,
        options=STEPS | {"eval_strategy": "steps", "save_strategy": "epoch", "max_steps": 6} | TWICE,
        phases=(Phase(1, "on_evaluate", 6), Phase()),
    ),
    # The last learning rate was reached from that of the arguments.
    "another learning rate for a schedule that ends at a given one": Script(
        samples=10, options=STEPS | {"lr_scheduler_type": "polynomial"}, traits={"other_rates": RATES}, phases=HALF_WAY
    ),
    # The options of a group without parameters were those of the arguments.
    "another learning rate for LoRA": Script(
        samples=10, options=STEPS, traits={"other_rates": RATES, "adapter": True}, phases=HALF_WAY
    ),
}


def main():
    runs.warm("torch")
    wrong = {name: found for name, script in SCRIPTS.items() if (found := _difference(script))}
    for name, found in wrong.items():
        print(f"{name}:", *found[:6], sep="\n  ")
    print(f"{len(SCRIPTS)} scripts: {len(wrong)} differ")
    return bool(wrong)


def _difference(script):
    try:
        return runs.difference(script)[0]
    except runs.Broken as error:
        return [str(error)]


if __name__ == "__main__":
    sys.exit(main())
