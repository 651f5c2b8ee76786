"""What `trainer.plan()` predicts beside what is measured."""

from importlib import import_module
from typing import Any

from ..outcome import NotRun, require
from ..place import Place

WIDTH, BATCH = 3000, 2048


def plan(place: Place) -> dict[str, Any]:
    place.require_framework("torch")
    torch = import_module("torch")

    module: Any = getattr(torch, place.device, None)
    if place.device == "cpu" or not hasattr(module, "max_memory_allocated"):
        raise NotRun(f"{place.device} does not measure its peak of memory")
    trainer = place.trainer("plan", WIDTH, samples=BATCH, per_device_train_batch_size=BATCH, max_steps=3)
    expected = trainer.plan(largest=False).strategies[0].peak
    if expected is None:
        raise NotRun("the plan has no peak for this model")
    module.synchronize()
    if hasattr(module, "reset_peak_memory_stats"):
        module.reset_peak_memory_stats()
    trainer.train()
    measured = module.max_memory_allocated()
    off = expected / measured - 1
    require(abs(off) < 0.2, f"{expected / 1e6:.0f} MB were planned and {measured / 1e6:.0f} MB measured")
    return {"planned, MB": expected / 1e6, "measured, MB": measured / 1e6, "difference, %": 100 * off}
