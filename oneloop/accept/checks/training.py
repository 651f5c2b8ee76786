"""Training itself."""

import shutil
from dataclasses import replace
from importlib import import_module
from typing import Any

from ..outcome import NotRun, close, require
from ..place import RATE, Place


def train(place: Place) -> dict[str, Any]:
    found = place.losses("train")
    require(len(found) == 30, f"{len(found)} of 30 steps were logged")
    require(found[-1] < 0.7 * found[0], f"the loss does not fall: {found[0]:.4f} to {found[-1]:.4f}")
    expected = _reference(place)
    worst = max(abs(a - b) / abs(b) for a, b in zip(found, expected))
    require(worst < 2e-3, f"losses differ from those of the reference on the CPU by {worst:.1e}")
    return {"first loss": found[0], "last loss": found[-1], "largest difference from the reference": worst}


def _reference(place: Place) -> list[float]:
    """The losses that a loop written by hand has on the CPU; on the CPU itself too, so nothing is compared with
    itself."""
    if place.framework != "torch":
        return place.losses("train-again") if place.device == "cpu" else replace(place, device="cpu").losses("cpu")
    torch = import_module("torch")

    from ... import data as data_of_oneloop
    from .. import kits

    model, rows = kits.model("torch"), kits.rows()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    found: list[float] = []
    for epoch in range(2):
        order = data_of_oneloop.order.Order(len(rows), 42, epoch)
        for start in range(0, len(rows), 16):
            if len(found) == 30:
                return found
            indices: Any = order[start : start + 16]
            chosen = [rows[i] for i in indices]
            for group in optimizer.param_groups:
                group["lr"] = RATE * (1 - len(found) / 30)
            x = torch.stack([torch.from_numpy(row["x"]) for row in chosen])
            loss = model(x, torch.tensor([row["labels"] for row in chosen]))["loss"]
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            found.append(loss.item())
    return found


def accumulation(place: Place) -> dict[str, Any]:
    whole = place.losses("whole")
    divided = place.losses("divided", per_device_train_batch_size=4, gradient_accumulation_steps=4)
    worst = max(abs(a - b) / abs(b) for a, b in zip(divided, whole))
    require(len(divided) == len(whole), f"{len(divided)} steps instead of {len(whole)}")
    require(worst < 2e-3, f"losses differ by {worst:.1e}")
    return {"largest difference": worst}


def compiled(place: Place) -> dict[str, Any]:
    place.require_framework("torch")
    if place.device == "cpu" and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        raise NotRun("torch.compile needs a C++ compiler on the CPU")
    torch = import_module("torch")

    plain = place.losses("plain", max_steps=10)
    torch._dynamo.reset()
    trainer = place.trainer("compiled", max_steps=10, torch_compile=True)
    graphs = torch._dynamo.utils.counters["stats"]
    before = graphs["unique_graphs"]
    trainer.train()
    found = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    require(graphs["unique_graphs"] > before, "nothing was compiled")
    require(all(close(a, b, 2e-3) for a, b in zip(found, plain)), "the losses differ from those without it")
    return {"graphs": graphs["unique_graphs"] - before}
