"""Short runs with DeepSpeed, under torchrun; see sharding_job.py."""

import sys
from pathlib import Path

from oneloop.distributed.world import world
from tests.backends.support import tagged
from tests.distributed.job import GLOBAL_BATCH, main, train
from tests.distributed.sharding_job import LENGTHS, UNLABELLED, Odd

CASES = {}


class Plain(Odd):
    """Without single numbers, which DeepSpeed cannot send around over gloo."""

    def __init__(self):
        super().__init__()
        del self.warmth, self.seen
        self.warmth, self.seen = 1.0, 0


def case(function):
    CASES[function.__name__] = function
    return function


def without_building():
    """DeepSpeed would compile a transport through shared memory for minutes; gloo does."""
    import os

    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


@case
def stages(folder):
    found = {}
    half = GLOBAL_BATCH // world().size // 2
    given = {"per_device_train_batch_size": half, "gradient_accumulation_steps": 2, "max_grad_norm": 0.5}
    given |= {"optim": "adamw_torch", "learning_rate": 0.01, "weight_decay": 0.1}
    data = tagged(LENGTHS, unlabelled=UNLABELLED)
    if world().size == 1:
        trainer = train(folder, "alone", Plain(), data, eval_dataset=tagged([5] * 7), **given)
        return {"alone": {"losses": trainer.seen.losses, "evaluated": trainer.evaluate()["eval_loss"]}}
    without_building()
    for stage in (1, 2, 3):
        config = {
            "zero_optimization": {"stage": stage, "reduce_bucket_size": "auto"},
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_clipping": "auto",
            "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
        }
        trainer = train(folder, f"stage{stage}", Plain(), data, deepspeed=config, eval_dataset=tagged([5] * 7), **given)
        trainer.save_model(str(Path(folder) / f"model{stage}"))
        found[f"stage{stage}"] = {
            "losses": trainer.seen.losses,
            "norms": trainer.seen.norms,
            "evaluated": trainer.evaluate()["eval_loss"],
            "files": sorted(path.name for path in (Path(folder) / f"model{stage}").iterdir()),
        }
    return found


if __name__ == "__main__":
    main(*sys.argv[1:], cases=CASES)
