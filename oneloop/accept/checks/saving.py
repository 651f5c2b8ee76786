"""Saves: what they cost, and what they are worth."""

import signal
import time
from typing import Any

from ... import callbacks
from ..outcome import require
from ..place import Place

EVERY = 3  # steps
WIDTH = 2000  # 4 million parameters: 50 MB with the optimizer


class _Gaps(callbacks.TrainerCallback):
    """The time between the end of a step with a save and the next step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._ended = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step and state.global_step % EVERY == 0:
            self.seconds.append(time.perf_counter() - self._ended)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % EVERY == EVERY - 1:  # so that a save does not wait for the one before
            time.sleep(1.0)
        self._ended = time.perf_counter()


def stall(place: Place) -> dict[str, Any]:
    """The time for which a save blocks training, against that of a save that is written at once."""
    blocked = {}
    for name, in_background in (("background", True), ("at once", False)):
        gaps = _Gaps()
        trainer = place.trainer(
            name,
            WIDTH,
            [gaps],
            max_steps=3 * EVERY + 1,
            save_strategy="steps",
            save_steps=EVERY,
            save_async=in_background,
            save_total_limit=1,
        )
        trainer.train()
        require(len(gaps.seconds) == 3, f"{len(gaps.seconds)} of 3 saves were seen")
        require((place.folder / name / f"checkpoint-{3 * EVERY + 1}").is_dir(), "the last step was not saved")
        blocked[name] = 1000 * min(gaps.seconds)
    background, at_once = blocked["background"], blocked["at once"]
    require(
        background < 0.4 * at_once,
        f"a save in the background blocks training for {background:.0f} ms, one that is written at once for "
        f"{at_once:.0f} ms",
    )
    return {"blocked, ms": background, "written at once, ms": at_once}


def kill_and_resume(place: Place) -> dict[str, Any]:
    """A run that is killed without warning, and goes on in another process, has the bytes of one that was not."""
    options = place.as_options()
    status = place.script("worker", options | {"task": "whole"}, check=False)
    require(status == 0, f"the uninterrupted run ended with status {status}")
    status = place.script("worker", options | {"task": "killed"}, check=False)
    require(status == -signal.SIGKILL, f"the run that kills itself ended with status {status}")
    found = place.script("worker", options | {"task": "resumed"})
    require(found["from"] > 0, "the run began from the start again")
    whole, resumed = place.folder / "whole" / "checkpoint-12", place.folder / "killed" / "checkpoint-12"
    names = sorted(path.name for path in whole.glob("*.safetensors"))
    require(bool(names), "no files were saved")
    different = [name for name in names if (whole / name).read_bytes() != (resumed / name).read_bytes()]
    require(not different, f"other bytes: {', '.join(different)}")
    return {"resumed at step": found["from"], "files compared": len(names)}
