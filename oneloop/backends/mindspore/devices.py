"""Devices: which are available, and how batches are moved to them. MindSpore has one device per process."""

import functools
from dataclasses import dataclass
from typing import Any

import mindspore as ms

from ...errors import ArgumentError
from .._common import device_moves
from . import bootstrap

_KINDS = {"gpu": "cuda", "cuda": "cuda", "cpu": "cpu", "npu": "npu"}
_TARGETS = {"cpu": "CPU", "cuda": "GPU", "npu": "Ascend"}
_NAMES = {"cpu": "cpu", "cuda": "gpu", "npu": "npu"}


@dataclass(frozen=True)
class Device:
    """cpu, gpu:0 or npu:0; MindSpore itself has only names for them."""

    type: str
    index: int | None = None

    @property
    def target(self) -> str:
        """MindSpore's name for it: CPU, GPU or Ascend."""
        return _TARGETS[self.type]

    def __str__(self) -> str:
        name = _NAMES[self.type]
        return name if self.index is None else f"{name}:{self.index}"


@functools.cache
def available(kind: str) -> int:
    """The number of devices of that kind on this machine."""
    if kind == "cpu":
        return 1
    with bootstrap.quiet():
        return ms.hal.device_count(_TARGETS[kind]) if kind in _TARGETS and ms.hal.is_available(_TARGETS[kind]) else 0


def resolve(spec: str | None) -> Device:
    """A real device for "cpu", "gpu", "npu:1" or None, which means the best available."""
    framework = f"MindSpore {ms.__version__}"
    return Device(*device_moves.choose(spec, _KINDS, ("npu", "cuda"), available, framework, _TARGETS))


def kind(device: Device) -> str:
    """cpu, cuda or npu."""
    return device.type


def title(device: Device) -> str | None:
    """The product name of an accelerator, which MindSpore does not report."""
    return None


def move_model(model: ms.nn.Cell, device: Device) -> ms.nn.Cell:
    """Set the device of the process; models have no device of their own."""
    current = ms.get_context("device_target")
    if current != device.target:
        try:
            ms.set_device(device.target, device.index or 0)
        except RuntimeError as error:
            raise ArgumentError(
                f"device={str(device)!r}, but this process already uses {current}, and MindSpore cannot change "
                f"it: {error}. Call mindspore.set_device({device.target!r}) at the start of the program."
            ) from error
    bootstrap.configure_execution(device.target)
    return model


def move(batch: Any, device: Device, non_blocking: bool = True) -> Any:
    """Convert every array of a nested batch to a tensor; tensors are moved to the device when used."""
    return device_moves.map_batch(batch, lambda value: value, ms.Tensor)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that the device or the host ran out of memory."""
    if isinstance(error, MemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and any(
        sign in text
        for sign in ("out of memory", "Out of memory", "Alloc memory failed", "Memory not enough", "malloc")
    )


def empty_cache(device: Device) -> None:
    """Free cached memory of the device; no effect on a CPU."""
    if device.type != "cpu":
        ms.runtime.empty_cache()


def allow_tf32(on: bool) -> None:
    """TF32 matrix products and convolutions on NVIDIA devices; elsewhere it has no effect, and MindSpore would print an
    error."""
    if not available("cuda"):
        return
    ms.device_context.gpu.op_precision.matmul_allow_tf32(on)
    ms.device_context.gpu.op_precision.conv_allow_tf32(on)
