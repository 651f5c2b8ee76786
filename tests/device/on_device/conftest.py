"""These tests need a process that has the simulated accelerator from its start: ON_DEVICE=npu pytest tests/device."""

import gc

import pytest

from tests.backends.support import DEVICE

collect_ignore_glob = [] if DEVICE == "npu" else ["test_*.py"]


@pytest.fixture
def device():
    """The simulated device, with nothing queued and nothing counted."""
    from tests.device.simulated import DEVICE

    DEVICE.synchronize()
    gc.collect()  # what other tests have left in its memory
    DEVICE.reset_counts()
    return DEVICE
