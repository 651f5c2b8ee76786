"""Plays scenarios on transformers' Trainer or on oneloop, in a process of its own.

    python -m tests.ecosystem.play transformers|oneloop MODULE FOLDER [NAME ...]

MODULE has SCENARIOS, a list of Scenario. The result of each goes to FOLDER/NAME.json, its final weights to
FOLDER/NAME.npz, the Trainer's files to FOLDER/NAME. Under a launcher only the main process writes results.
"""

import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np

os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", TOKENIZERS_PARALLELISM="false", CI="1")


def play(scenario: Any, folder: Path) -> dict[str, Any]:
    trainer = scenario.trainer(folder)
    output = trainer.train()
    whole = weights = weights_of(trainer.model)
    if scenario.resume is not None:
        trainer = scenario.trainer(folder)
        output = trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{scenario.resume}"))
        weights = weights_of(trainer.model)
    if trainer.is_world_process_zero():
        np.savez(f"{folder}.npz", **weights)
    return {
        "trainer": type(trainer).__mro__[-2].__module__,
        "bases": [f"{base.__module__}.{base.__qualname__}" for base in type(trainer).__mro__],
        "logs": trainer.state.log_history,
        "train_loss": output.training_loss,
        "global_step": trainer.state.global_step,
        "best_metric": trainer.state.best_metric,
        "best_checkpoint": os.path.basename(trainer.state.best_model_checkpoint or ""),
        "outcome": scenario.outcome(trainer, folder) if scenario.outcome else None,
        "unbroken": all(weights[name].tobytes() == whole[name].tobytes() for name in whole),
        "files": sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()),
    }


def weights_of(model: Any) -> dict[str, Any]:
    """The trained weights, as numpy arrays; of a sharded model whole, which all processes take part in."""
    trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    whole = {name: p.full_tensor() if hasattr(p, "full_tensor") else p for name, p in trained.items()}
    return {name: p.float().numpy().copy() for name, p in whole.items()}


def _write(path: Path, result: dict[str, Any]) -> None:
    """Of several processes the main one writes, or the first that fails."""
    failed_first = "error" in result and not (path.exists() and "error" in path.read_text(encoding="utf-8"))
    if os.environ.get("RANK", "0") == "0" or failed_first:
        path.write_text(json.dumps(result, default=float), encoding="utf-8")


def main(side: str, module: str, folder: str, *names: str) -> int:
    if side == "oneloop":
        from oneloop.compat.redirect import redirect

        redirect("transformers")
    scenarios = {each.name: each for each in importlib.import_module(module).SCENARIOS}
    for name in names or scenarios:
        place = Path(folder) / name
        place.mkdir(parents=True, exist_ok=True)
        try:
            result = play(scenarios[name], place)
        except Exception:
            result = {"error": traceback.format_exc()}
        _write(place.parent / f"{name}.json", result)
        if "error" in result and "RANK" in os.environ:  # the other processes wait for this one
            raise RuntimeError(f"rank {os.environ['RANK']}: {result['error']}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
