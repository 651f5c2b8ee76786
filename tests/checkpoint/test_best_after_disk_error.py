"""The disk refuses the save of a better model: the best is again one that can be loaded, and others can beat it."""

import errno
import os
import re
import threading
from pathlib import Path

import pytest

from oneloop import Trainer, TrainerCallback, TrainerState
from tests.backends.support import rows, same_bytes

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")

RUN = {"per_device_train_batch_size": 4, "learning_rate": 0.1, "optim": "sgd", "save_strategy": "steps"}
RUN |= {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True, "metric_for_best_model": "score"}


@pytest.fixture
def full_disk(monkeypatch):
    """full_disk({2: event}): the save of step 2 is refused for want of space, once the event is set."""

    def fill(refused):
        sync = os.fsync

        def fsync(descriptor):
            found = re.search(r"checkpoint-(\d+)", os.readlink(f"/proc/self/fd/{descriptor}"))
            if found and int(found[1]) in refused:
                assert refused[int(found[1])].wait(60)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)

    return fill


@pytest.mark.parametrize("mode", ["at once", "in the background"])
@pytest.mark.parametrize(
    ("scores", "refused", "best"),
    [
        ([5, 7, 6, 1], [2], 3),  # less than the one that was lost, but more than the one before it
        ([5, 7, 9, 3], [2, 3], 1),
        ([5, 3, 9], [3], 1),  # the last
        ([5, 3, 4], [1], 3),  # the first
    ],
)
@pytest.mark.once_on("mindspore")
def test_the_best_is_one_that_can_be_loaded(backend, trained, tmp_path, full_disk, scores, refused, best, mode):
    background = mode == "in the background"
    # In the background, a save is still under way when the next evaluation ends.
    gates = {step: threading.Event() for step in refused}
    weights = {}

    class Opens(TrainerCallback):
        def on_evaluate(self, args, state, control, **kwargs):
            if state.global_step - 1 in gates:
                gates[state.global_step - 1].set()

    class Scored(Trainer):
        def evaluate(self, *args, **kwargs):
            step = self.state.global_step
            weights[step] = backend.weights(self.model)
            metrics = super().evaluate(*args, **kwargs)
            return metrics | {"eval_score": scores[step - 1]}

    for step, gate in gates.items():
        if not background or step == len(scores):
            gate.set()
    full_disk(gates)
    options = RUN | {"max_steps": len(scores), "save_steps": 100, "save_async": background}
    trainer = trained(backend.classifier(), rows(16), Scored, eval_dataset=rows(4), callbacks=[Opens()], **options)
    state, output = trainer.state, tmp_path / "out"
    assert (state.best_global_step, state.best_metric) == (best, scores[best - 1])
    assert state.best_model_checkpoint == str(output / f"checkpoint-{best}")
    assert same_bytes(backend.weights(trainer.model), weights[best]) and len(weights) == len(scores)
    last = output / f"checkpoint-{len(scores)}"
    assert last.exists() == (len(scores) not in refused)
    if last.exists():  # a resumed run knows the same best
        written = TrainerState.load_from_json(last / "trainer_state.json")
        assert (written.best_global_step, written.best_metric) == (best, scores[best - 1])
