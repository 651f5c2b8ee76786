"""What is said of a machine: its devices and the versions of packages. No names of hosts or users, no paths."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ..backends import registry
from ..backends.loading import load

PACKAGES = ("oneloop", "numpy", "safetensors", "transformers", "trl", "peft", "datasets", "accelerate", "triton")


def describe(framework: str) -> dict[str, Any]:
    """Of the process that calls it: the framework's devices; the fastest kind is tried."""
    devices = load(framework).devices
    counts = {kind: devices.available(kind) for kind in registry.get(framework).devices}
    names = (*registry.get(framework).distributions, *PACKAGES)
    return {
        "framework": framework,
        "devices": {kind: count for kind, count in counts.items() if count},
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: found for name in names if (found := _version(name))},
    }


def best_device(machine: dict[str, Any]) -> str:
    """An accelerator if there is one."""
    return next((kind for kind in machine["devices"] if kind != "cpu"), "cpu")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
