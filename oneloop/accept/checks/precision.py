"""Half precision."""

from typing import Any

from ...errors import OneloopError
from ..outcome import NotRun, require
from ..place import Place, losses_of


def bf16(place: Place) -> dict[str, Any]:
    return _half(place, "bf16")


def fp16(place: Place) -> dict[str, Any]:
    if place.device == "cpu":
        raise NotRun("fp16 is for accelerators; the CPU has bf16")
    return _half(place, "fp16")


def _half(place: Place, kind: str) -> dict[str, Any]:
    whole = place.losses("float32")
    try:
        trainer = place.trainer(kind, **{kind: True})
    except OneloopError as error:
        raise NotRun(f"this device does not support it: {error}") from error
    trainer.train()
    found = losses_of(trainer)
    worst = max(abs(a - b) / abs(whole[0]) for a, b in zip(found, whole))
    require(worst > 1e-6, "the losses are those of float32 to the last digit: nothing is computed in half precision")
    require(found[-1] < 0.7 * found[0], f"the loss does not fall: {found[0]:.4f} to {found[-1]:.4f}")
    require(worst < 0.05, f"losses differ from those of float32 by {100 * worst:.1f} % of the first")
    figures = {"largest difference from float32": worst}
    if kind == "fp16":
        scales = [entry["loss_scale"] for entry in trainer.state.log_history if "loss_scale" in entry]
        require(bool(scales) and min(scales) >= 1, "there is no loss scale")
        figures["last loss scale"] = scales[-1]
    return figures
