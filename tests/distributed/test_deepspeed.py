"""DeepSpeed's ZeRO stages where the package is there, and its configuration everywhere."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from oneloop.arguments.packages import installed
from oneloop.backends.torch import zero
from oneloop.errors import ArgumentError, MissingPackageError, RefusedError
from tests.distributed.launch import results, run_launched
from tests.distributed.test_sharding import difference

JOB = Path(__file__).with_name("deepspeed_job.py")
ARGS = SimpleNamespace(
    train_batch_size=4,
    gradient_accumulation_steps=2,
    world_size=2,
    max_grad_norm=0.5,
    device=SimpleNamespace(type="cpu"),
)


def test_stages_on_two_processes(tmp_path):
    if not installed("deepspeed"):
        with pytest.raises(MissingPackageError, match="pip install deepspeed"):
            zero.package(ARGS)
        return
    for size in (1, 2):
        (tmp_path / str(size)).mkdir()
        run_launched(size, tmp_path / str(size), "stages", script=JOB)
    alone = results(tmp_path / "1", 1)[0]["stages"]["alone"]
    for each in results(tmp_path / "2", 2):
        for stage in ("stage1", "stage2", "stage3"):
            found = each["stages"][stage]
            assert difference(found["losses"], alone["losses"]) <= 1e-5
            assert abs(found["evaluated"] - alone["evaluated"]) <= 1e-5
            assert "model.safetensors" in found["files"]


def test_auto_is_filled_from_the_arguments():
    given = {
        "train_batch_size": "auto",
        "gradient_clipping": "auto",
        "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto", "overlap_comm": True},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
        "bf16": {"enabled": "auto"},
    }
    found = zero.filled(given, ARGS)
    assert found["train_micro_batch_size_per_gpu"] == 4
    assert found["gradient_accumulation_steps"] == 2
    assert found["train_batch_size"] == 16
    assert found["gradient_clipping"] == 0.5
    assert found["zero_optimization"] == {"stage": 2, "overlap_comm": True}
    assert not {"optimizer", "bf16"} & found.keys()


def test_what_contradicts_the_arguments_is_listed():
    with pytest.raises(ArgumentError, match="train_batch_size is 7 there and 16 here; gradient_clipping is 1.0"):
        zero.filled({"train_batch_size": 7, "gradient_clipping": 1.0}, ARGS)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}, "learning_rate"),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}}}, "lr_scheduler_type"),
        ({"fp16": {"enabled": True}}, "bf16=True"),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}, "on a CPU it is there"),
    ],
)
def test_what_is_not_driven_is_refused(given, words):
    with pytest.raises(RefusedError, match=words):
        zero.filled(given, ARGS)


def test_a_file(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"zero_optimization": {"stage": 1}}')
    assert zero.read(str(path)) == {"zero_optimization": {"stage": 1}}
    with pytest.raises(ArgumentError, match="cannot be read"):
        zero.read(str(tmp_path / "none.json"))
