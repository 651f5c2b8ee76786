"""LoRA with dropout in TRL's SFTTrainer: a killed run goes on to the same bytes, on one process and sharded on two."""

import json
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.distributed.launch import run, start
from tests.ecosystem.needs import needs

needs("peft", "trl")

JOB = Path(__file__).with_name("lora_sft_job.py")


def result(folder):
    return json.loads((folder / "result.json").read_text())


def killed(folder, moments):
    """SIGKILL some time after a step. A run that is nearly done may end before it."""
    child = start(1, folder, "latest", script=JOB)
    for line in child.stdout:
        if line.startswith("step "):
            break
    time.sleep(moments.uniform(0, 0.3))
    child.kill()
    said, _ = child.communicate()
    assert child.returncode in (0, -signal.SIGKILL), said
    return child.returncode != 0


@pytest.mark.slow
def test_killed_on_one_process(tmp_path):
    run(1, tmp_path / "unbroken", script=JOB)
    moments = random.Random(3)
    kills = [killed(tmp_path / "run", moments) for _ in range(3)]
    run(1, tmp_path / "run", "latest", script=JOB)
    assert any(kills) and result(tmp_path / "run") == result(tmp_path / "unbroken")
    assert result(tmp_path / "run")["model"] == ["adapter_config.json", "adapter_model.safetensors"]


@pytest.mark.slow
def test_sharded_on_two_processes(tmp_path):
    run(2, tmp_path / "unbroken", script=JOB)
    found = result(tmp_path / "unbroken")
    assert found["model"] == ["adapter_config.json", "adapter_model.safetensors"] and len(found["losses"]) == 8
    assert {"optimizer-00001-of-00002.safetensors", "adapter_model.safetensors"} <= found["files"].keys()
    shutil.copytree(tmp_path / "unbroken" / "checkpoint-4", tmp_path / "run" / "checkpoint-4")
    run(2, tmp_path / "run", "latest", script=JOB)
    assert result(tmp_path / "run") == found
