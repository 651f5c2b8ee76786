"""Runs of checks that need processes of their own: `python -m oneloop.accept.worker JSON`, alone or by a launcher."""

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from .. import callbacks
from .place import Place, losses_of

SAVED: dict[str, Any] = {"max_steps": 12, "save_strategy": "steps", "save_steps": 3, "save_total_limit": None}


class _Kills(callbacks.TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 8:
            os.kill(os.getpid(), signal.SIGKILL)


def whole(place: Place, options: dict[str, Any]) -> dict[str, Any]:
    place.trainer("whole", **SAVED).train()
    return {}


def killed(place: Place, options: dict[str, Any]) -> dict[str, Any]:
    place.trainer("killed", callbacks=[_Kills()], **SAVED).train()
    return {}


def resumed(place: Place, options: dict[str, Any]) -> dict[str, Any]:
    first: list[int] = []

    class Begins(callbacks.TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            first.append(state.global_step)

    place.trainer("killed", callbacks=[Begins()], **SAVED).train(resume_from_checkpoint=True)
    return {"from": first[0]}


def processes(place: Place, options: dict[str, Any]) -> dict[str, Any]:
    """A run of all processes, with the samples in an update that one process would have."""
    trainer = place.trainer("processes", **options["arguments"])
    trainer.train()
    trainer.save_model(str(place.folder / "model"))
    return {
        "processes": trainer.args.world_size,
        "losses": losses_of(trainer),
        "optimizer": sum(value.numel() * value.element_size() for value in _state(trainer.optimizer)),
        "weights": sum(_local(p).numel() * p.element_size() for p in trainer.model.parameters()),
    }


def _state(optimizer: Any) -> list[Any]:
    """Tensors of the optimizer's state in this process."""
    states = getattr(getattr(optimizer, "optim", optimizer), "state", {}).values()
    return [_local(value) for state in states for value in state.values() if getattr(value, "ndim", 0)]


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


TASKS = {"whole": whole, "killed": killed, "resumed": resumed, "processes": processes}


def main() -> None:
    options = json.loads(sys.argv[1])
    place = Place(Path(options["folder"]), options["framework"], options["device"], options["count"])
    with contextlib.redirect_stdout(sys.stderr):
        found = TASKS[options["task"]](place, options)
    if os.environ.get("RANK", "0") == "0":
        print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
