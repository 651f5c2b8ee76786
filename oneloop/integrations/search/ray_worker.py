"""A trial in a worker of Ray Tune: it trains in a thread, and each step advances it to the next evaluation."""

import queue
import threading
from typing import Any

from ray import tune
from ray.tune.result import DONE, RESULT_DUPLICATE

from . import trials
from .trainer_pickle import unpack
from .trials import Trial

OBJECTIVE = "objective"


class TrainerTrial(tune.Trainable):
    """A Trainable, not a function: Ray kills a function at once when a scheduler stops it; this ends its run first."""

    def setup(self, config: dict[str, Any], packed: Any = None) -> None:
        self._stop = False
        self._reports: queue.Queue[Any] = queue.Queue()
        self._go = threading.Semaphore(0)
        self._packed, self._values = packed, dict(config)
        self._thread = threading.Thread(target=self._work, name="oneloop-trial", daemon=True)
        self._thread.start()

    def step(self) -> dict[str, Any]:
        self._go.release()
        found = self._reports.get()
        if isinstance(found, BaseException):
            raise found
        # The end is not a separate result: means over results count each evaluation once.
        return {DONE: True, RESULT_DUPLICATE: True} if found is None else found

    def cleanup(self) -> None:
        """The trial is over or was stopped: end the run, with its callbacks and saves."""
        self._stop = True
        self._go.release()
        self._thread.join()

    def _work(self) -> None:
        self._go.acquire()
        ended: BaseException | None = None
        try:
            self._train()
        except BaseException as error:
            ended = error
        self._reports.put(ended)

    def _train(self) -> None:
        if self._stop:
            return
        trainer = unpack(self._packed)
        del self._packed
        name = trials.name_of(trainer, self._values, self.trial_id)
        trial = Trial(name, self._values, dict(self._values), self._values, self._send_result)
        objective = trials.run(trainer, trial)
        if objective != objective and not self._stop:
            self._send_result(objective, trainer.state.global_step, {})

    def _send_result(self, objective: Any, step: int, metrics: dict[str, Any]) -> bool:
        numbers = {name: value for name, value in metrics.items() if isinstance(value, (int, float))}
        self._reports.put({**numbers, "step": step, OBJECTIVE: objective})
        self._go.acquire()
        return self._stop
