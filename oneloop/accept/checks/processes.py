"""Several processes beside one."""

from typing import Any

from ..outcome import NotRun, require
from ..place import Place

BATCH = 16  # samples in an update


def ddp(place: Place) -> dict[str, Any]:
    return _beside_one(place, {})[0]


def stage1(place: Place) -> dict[str, Any]:
    return _sharded(place, "stage1", 1)


def stage2(place: Place) -> dict[str, Any]:
    return _sharded(place, "stage2", 2)


def stage3(place: Place) -> dict[str, Any]:
    return _sharded(place, "stage3", 3)


def _sharded(place: Place, sharding: str, stage: int) -> dict[str, Any]:
    figures, found = _beside_one(place, {"sharding": sharding})
    trained = place.trainer("whole-sizes")
    weights = sum(p.numel() * p.element_size() for p in trained.model.parameters())
    held = found["optimizer"] / (2 * weights)  # AdamW keeps two values for each weight
    require(held < 0.75, f"each process holds {100 * held:.0f} % of the optimizer state: it is not sharded")
    figures["share of the optimizer state"] = held
    if stage == 3:
        held = found["weights"] / weights
        require(held < 0.75, f"each process holds {100 * held:.0f} % of the weights: they are not sharded")
        figures["share of the weights"] = held
    return figures


def _beside_one(place: Place, arguments: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Losses of several processes beside those of one with the same samples in an update."""
    place.require_framework("torch")
    if place.device != "cpu" and place.count < 2:
        raise NotRun("one device: several processes need one each")
    if place.device == "mps":
        raise NotRun("PyTorch has no collectives on mps")
    world = 4 if place.processes == 4 else 2
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world))
    given = {"per_device_train_batch_size": BATCH // world, "max_steps": 12} | arguments
    options = place.as_options() | {"task": "processes", "arguments": given}
    found = place.script("worker", options, launcher)
    require(found["processes"] == world, f"{found['processes']} processes trained together instead of {world}")
    alone = place.losses("alone", per_device_train_batch_size=BATCH, max_steps=12)
    require(len(found["losses"]) == len(alone), f"{len(found['losses'])} steps instead of {len(alone)}")
    worst = max(abs(a - b) / abs(b) for a, b in zip(found["losses"], alone))
    require(worst < 2e-3, f"losses differ from those of one process by {worst:.1e}")
    saved = place.folder / "model" / "model.safetensors"
    require(saved.is_file(), "the model was not saved")
    return {"processes": world, "largest difference": worst}, found
