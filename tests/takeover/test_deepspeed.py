"""Runs that transformers' Trainer began with DeepSpeed and oneloop ends: 20 steps there and 20 here beside 40 there."""

import json
import subprocess
from pathlib import Path

import pytest

from oneloop.arguments.packages import installed
from tests.distributed.launch import command, environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not installed("deepspeed"), reason="needs deepspeed: bash scripts/takeover"),
]
FOLDER = Path(__file__).parent
SAME, OTHER = 1e-6, 1e-5  # the same number of processes, and another one

# Stage, processes, type, model.
THERE = {
    "stage1": (1, 2, None, "whole"),
    "stage2": (2, 2, None, "whole"),
    "stage3": (3, 2, None, "whole"),
    "stage3-alone": (3, 1, None, "whole"),
    "stage2-tied": (2, 3, None, "tied"),
    "stage3-tied": (3, 3, None, "tied"),
    "stage2-lora": (2, 2, None, "lora"),
    "stage3-lora": (3, 2, None, "lora"),
    "stage1-bf16": (1, 2, "bf16", "whole"),
    "stage2-bf16": (2, 2, "bf16", "whole"),
    "stage3-bf16": (3, 3, "bf16", "whole"),
    "stage1-fp16": (1, 2, "fp16", "whole"),
    "stage3-fp16": (3, 2, "fp16", "whole"),
}
PLAIN, ZERO2, ZERO3 = (
    {},
    {"deepspeed": {"zero_optimization": {"stage": 2}}},
    {"deepspeed": {"zero_optimization": {"stage": 3}}},
)
HERE = [
    *[(name, processes, PLAIN) for name in ("stage1", "stage2", "stage3") for processes in (1, 2, 3)],
    *[("stage3", 2, {"sharding": f"stage{n}"}) for n in (1, 2, 3)],
    ("stage2", 3, {"sharding": "stage3"}),
    ("stage3", 2, {"tensor_parallel_size": 2}),
    ("stage3", 2, ZERO3),
    ("stage1", 3, ZERO3),
    ("stage3-alone", 1, PLAIN),
    ("stage3-alone", 2, {"sharding": "stage3"}),
    ("stage2-tied", 1, PLAIN),
    ("stage2-tied", 3, PLAIN),
    ("stage3-tied", 2, {"sharding": "stage3"}),
    ("stage2-lora", 1, PLAIN),
    ("stage3-lora", 2, PLAIN),
    ("stage3-lora", 2, {"sharding": "stage3"}),
    # The weights that are computed with are in half precision there: DeepSpeed has them here too.
    ("stage1-bf16", 2, ZERO2),
    ("stage2-bf16", 2, ZERO2),
    ("stage3-bf16", 3, ZERO3),
    ("stage1-fp16", 2, ZERO2),
    ("stage3-fp16", 2, ZERO3),
]


def run(processes, folder, script, *argv):
    folder.mkdir(parents=True, exist_ok=True)
    line = command(processes, FOLDER / script, folder, *argv)
    # DeepSpeed expects what a launcher sets, also for a single process.
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29591"}
    more = alone if processes == 1 and script == "there.py" else {}
    done = subprocess.run(line, env=environment(**more), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def written(name, folder):
    """The losses of 40 steps there, and the checkpoint in the middle. Made when it is first needed."""
    stage, processes, half, kind = THERE[name]
    if not (folder / "there.json").exists():
        auto = dict.fromkeys(("train_micro_batch_size_per_gpu", "train_batch_size"), "auto")
        config = auto | {
            "gradient_accumulation_steps": "auto",
            "gradient_clipping": "auto",
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": {"stage": stage},
        }
        config |= {} if half is None else {half: {"enabled": True}}
        more = [f"model={json.dumps(kind)}"] + ([] if half is None else [f"{half}=true"])
        run(processes, folder, "there.py", json.dumps(config), *more)
    return json.loads((folder / "there.json").read_text()), folder / "out" / "checkpoint-20"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("takeover")


@pytest.mark.parametrize(("name", "processes", "more"), HERE, ids=lambda value: str(value).replace(" ", ""))
def test_a_run_ends_as_it_would_have_there(runs, tmp_path, name, processes, more):
    losses, checkpoint = written(name, runs / name)
    _, before, half, kind = THERE[name]
    given = {"model": kind} | more | ({} if half is None else {half: True})
    run(processes, tmp_path, "here.py", checkpoint, *[f"{key}={json.dumps(value)}" for key, value in given.items()])
    found = json.loads((tmp_path / "here.json").read_text())
    assert len(losses) == 40 and found[:20] == losses[:20]  # the old run's log is kept
    worst = max(abs(a - b) for a, b in zip(found[20:], losses[20:], strict=True))
    assert worst <= (SAME if processes == before else OTHER), worst
    # It did learn something: other moments or rates would be seen.
    assert max(losses[20:]) - min(losses[20:]) > (0.01 if kind != "lora" else 0.001)
