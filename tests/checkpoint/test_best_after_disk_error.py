"""The disk refuses the save of a better model: the best is again one that can be loaded, and others can beat it."""

import errno
import os
import re
import threading
from pathlib import Path

import pytest

from oneloop import Trainer, TrainerCallback, TrainerState
from oneloop.checkpoint import model_files
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


def test_a_save_that_fails_before_its_files_are_written(backend, trained, tmp_path, monkeypatch):
    """Such as that of a tokenizer, to a full temporary directory: nothing is left of it, and the best is the last one
    that was saved."""
    scores, found, steps = [5, 7, 6], model_files._saved_files, []

    def saved_files(thing):
        if steps and steps[-1] == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return found(thing)

    class Scored(Trainer):
        def evaluate(self, *args, **kwargs):
            steps.append(self.state.global_step)
            return super().evaluate(*args, **kwargs) | {"eval_score": scores[steps[-1] - 1]}

    monkeypatch.setattr(model_files, "_saved_files", saved_files)
    seen = []

    class Look(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 2:
                seen.extend(sorted(path.name for path in Path(args.output_dir).glob("*checkpoint-*")))

    options = RUN | {"max_steps": 3, "save_steps": 100}
    trainer = trained(backend.classifier(), rows(16), Scored, eval_dataset=rows(4), callbacks=[Look()], **options)
    assert seen == ["checkpoint-1"]
    assert (trainer.state.best_global_step, trainer.state.best_metric) == (3, 6)
    assert sorted(path.name for path in (tmp_path / "out").glob("*checkpoint-*"))[-1] == "checkpoint-3"
