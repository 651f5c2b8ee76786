"""Tests of the suite on a simulated accelerator, in a process that has it from its start: PyTorch makes its threads for
the devices that it knows when something is differentiated for the first time.

By hand: `ON_DEVICE=npu pytest tests/device tests/trainer/test_nonfinite.py ...`.
"""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.backends.support import DEVICE, names

ROOT = Path(__file__).resolve().parents[2]
TRAINING = "tests/device/on_device/test_training.py"
SAVING = "tests/trainer/test_saving.py"
NONFINITE = "tests/trainer/test_nonfinite.py"
NO_SYNC = f"{TRAINING}::test_no_host_sync_in_a_step_that_does_not_log_save_or_evaluate"
PEAK = f"{TRAINING}::test_the_peak_of_memory_is_that_of_a_loop_by_hand"

# A part of each topic, for the default run.
TOPICS = {
    "the device": ["tests/device/on_device/test_device.py"],
    "training": ["tests/trainer/test_logs.py::test_history_has_the_average_loss_since_the_last_log"],
    "accumulation": ["tests/trainer/test_loss_rule.py::test_with_an_incomplete_last_update"],
    "evaluation": ["tests/trainer/test_evaluation.py::test_metrics_see_the_whole_set_in_order"],
    "gathered logits": [f"{TRAINING}::test_logits_that_are_read_early_are_found_out"],
    "precision": ["tests/trainer/test_precision.py::test_autocast_changes_the_numbers_a_little"],
    "loss scaler": [f"{NONFINITE}::test_a_nan_under_the_loss_scaler_is_one"],
    "nonfinite": [f"{NONFINITE}::test_late_flag_masks_the_update_and_is_told_a_step_later"],
    "flags": [f"{TRAINING}::test_a_flag_that_is_read_before_its_event_is_found_out"],
    "losses": [f"{TRAINING}::test_losses_that_are_read_early_are_found_out"],
    "saving": [f"{TRAINING}::test_a_checkpoint_has_the_weights_of_its_step"],
    "snapshot": [f"{TRAINING}::test_a_snapshot_that_does_not_wait_is_found_out"],
    "exact resume": [f"{TRAINING}::test_the_random_numbers_of_the_device_are_in_checkpoints"],
    "another device": [f"{TRAINING}::test_a_run_goes_on_on_another_device[sgd-cpu-npu]"],
    "host syncs": [f"{NO_SYNC}[adamw_torch-2-clipped-bf16]", f"{NO_SYNC}[sgd-1-clipped-float32]"],
    "recorded steps": [f"{TRAINING}::test_a_recorded_step_is_read_when_it_ends"],
    "no fused kernel": [f"{TRAINING}::test_without_a_fused_kernel_the_first_step_alone_waits[adamw_torch]"],
    "memory": [f"{PEAK}[adamw_torch-1-float32]", f"{PEAK}[sgd-2-bf16]"],
    "out of memory": [f"{TRAINING}::test_a_batch_that_does_not_fit_is_divided"],
}
# All of it.
FILES = ["tests/device/on_device", "tests/checkpoint/test_exact_resume.py", "tests/checkpoint/test_saving.py"]
FILES += [
    f"tests/trainer/test_{name}.py"
    for name in ("run", "evaluation", "gathering", "logs", "loss_rule", "meters", "nonfinite", "precision", "promises")
]
FILES += ["tests/trainer/test_runs_in_a_row.py", SAVING]

pytestmark = pytest.mark.skipif(DEVICE != "cpu" or "torch" not in names(), reason="PyTorch is not installed")


def run(folder, *selected):
    """(file::test, what it said if it failed) of each test that ran."""
    found = folder / "outcome.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={found}", *selected]
    environment = os.environ | {"ON_DEVICE": "npu", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ended.returncode in (0, 1), ended.stdout + ended.stderr
    outcomes = []
    for case in ElementTree.parse(found).iter("testcase"):
        bad = [part for part in case if part.tag in ("failure", "error")]
        place = f"{case.get('classname').replace('.', '/')}.py::{case.get('name')}"
        outcomes.append((place, bad[0].text if bad else None))
    return outcomes


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """All topics in one process."""
    return run(tmp_path_factory.mktemp("device"), *(place for places in TOPICS.values() for place in places))


@pytest.mark.parametrize("topic", TOPICS)
def test_on_the_device(outcomes, topic):
    for place in TOPICS[topic]:
        these = [(name, said) for name, said in outcomes if name.startswith(place)]
        assert these, f"{place} did not run"
        failed = [f"{name}\n{said}" for name, said in these if said is not None]
        assert not failed, "\n".join(failed)


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_whole_files_on_the_device(tmp_path, file):
    found = run(tmp_path, "-m", "slow or not slow", file)
    failed = [f"{name}\n{said}" for name, said in found if said is not None]
    assert found and not failed, "\n".join(failed)
