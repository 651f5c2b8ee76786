"""What people suffer from elsewhere, and do not here; tests/checkpoint has what concerns lost work."""

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from oneloop import Trainer, TrainerCallback
from oneloop.checkpoint import store
from tests.backends.support import rows, same_bytes

RUN = {"max_steps": 12, "per_device_train_batch_size": 4, "learning_rate": 0.1, "lr_scheduler_type": "constant"}
SAVED = RUN | {"save_strategy": "steps", "save_steps": 5}


class Indexed(list):
    """Notes which samples are read."""

    def __init__(self, *args):
        super().__init__(*args)
        self.read = []

    def __getitem__(self, index):
        self.read.append(index)
        return super().__getitem__(index)


class Stream:
    """Can only be walked through; notes what is read."""

    def __init__(self):
        self.place, self.read = 0, []

    def __iter__(self):
        self.place = 0
        return self.walk()

    def walk(self):
        while self.place < 64:
            self.place += 1
            self.read.append(self.place - 1)
            yield rows(64)[self.place - 1]


class Positioned(Stream):
    """Knows where it is, and goes on from there."""

    def __init__(self):
        super().__init__()
        self.start = 0

    def __iter__(self):
        self.place, self.start = self.start, 0
        return self.walk()

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.start = state["place"]


@pytest.mark.parametrize("kind", [Indexed, Positioned, Stream])
def test_a_resume_reads_what_is_left_and_nothing_before(backend, trained, tmp_path, caplog, kind):
    """Where data cannot be positioned it is walked through, and that is said."""

    def run(**given):
        data = Indexed(rows(64)) if kind is Indexed else kind()
        model = backend.classifier(dropout=0.2)
        trained(model, data, **SAVED, **given)
        return data.read, backend.weights(model)

    read, weights = run()
    assert len(read) == 48
    walks = kind is Stream
    for step in (5, 10):
        again, resumed = run(output_dir=tmp_path / f"from-{step}", resume=str(tmp_path / "out" / f"checkpoint-{step}"))
        assert again == (read if walks else read[4 * step :])
        assert same_bytes(weights, resumed)
    assert ("cannot be positioned, so the resumed run reads 5 batches again" in caplog.text) is walks


class Ages(TrainerCallback):
    """Makes older checkpoints look newer, as a copy or a file system of a network may."""

    def on_save(self, args, state, control, **kwargs):
        for checkpoint in store.find(Path(args.output_dir)):
            for path in (checkpoint.path, *checkpoint.path.iterdir()):
                os.utime(path, (2e9 - checkpoint.step, 2e9 - checkpoint.step))


def test_the_newest_is_by_step_whatever_the_times_of_files(backend, trained, tmp_path):
    given = RUN | {"save_strategy": "steps", "save_steps": 3, "save_total_limit": 2}
    trained(backend.classifier(), rows(24), callbacks=[Ages()], **given | {"max_steps": 9})
    assert sorted(path.name for path in (tmp_path / "out").glob("checkpoint-*")) == ["checkpoint-6", "checkpoint-9"]
    steps = []

    class Steps(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            steps.append(state.global_step)

    trained(backend.classifier(), rows(24), callbacks=[Steps()], resume=True, **given)
    assert steps == [10, 11, 12]


def test_an_evaluation_holds_its_outputs_once(backend, arguments):
    """Not as all batches and again as one array, and not once more for each batch."""
    wide = np.ones((1, 2**12), dtype=np.float32)

    def widened(logits, labels):
        return backend.tensor(np.repeat(wide, len(labels), axis=0))

    args = arguments(per_device_eval_batch_size=8)
    trainer = Trainer(backend.classifier(), args, preprocess_logits_for_metrics=widened)
    trainer.predict(rows(16))  # what is imported and kept is not of the next one
    tracemalloc.start()
    try:
        predictions = trainer.predict(rows(512)).predictions
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert predictions.shape == (512, 2**12) and predictions.min() == 1.0
    assert peak < 1.5 * predictions.nbytes


def test_the_trainer_is_imported_without_any_framework():
    """Nor a library that costs seconds; the model's own is there already when there is a model."""
    heavy = {"torch", "paddle", "mindspore", "transformers", "datasets", "pandas", "tensorboard", "wandb", "accelerate"}
    code = (
        "import sys; from oneloop import Trainer, TrainingArguments; print(*{m.partition('.')[0] for m in sys.modules})"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "oneloop" in found and not heavy & set(found)
