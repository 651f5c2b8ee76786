"""The state of a resumed run is that of an uninterrupted one: in memory, in checkpoints and in output_dir."""

import dataclasses
import json
from importlib.util import find_spec

import pytest

from oneloop import EarlyStoppingCallback, Trainer, TrainerCallback
from oneloop.checkpoint import store
from oneloop.state import ExportableState
from tests.backends.support import rows

RUN = {
    "max_steps": 6,
    "per_device_train_batch_size": 4,
    "logging_steps": 1,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "save_strategy": "steps",
    "save_steps": 2,
    "learning_rate": 0.05,
    "metric_for_best_model": "loss",
    "include_num_input_tokens_seen": True,
}


class Counts(TrainerCallback, ExportableState):
    """Two of them in a run count from different numbers."""

    def __init__(self, count=0):
        self.count = count

    def on_step_end(self, args, state, control, **kwargs):
        self.count += 1

    def state(self):
        return {"args": {}, "attributes": {"count": self.count}}


def without_times(state):
    """The state without durations and speeds, which differ from run to run."""

    def plain(line):
        return {key: value for key, value in line.items() if not key.endswith(("_runtime", "_per_second"))}

    return state | {"log_history": [plain(line) for line in state["log_history"]]}


def states(trainer, folder):
    """As an object, as the last checkpoint has it, and as save_state writes it."""
    trainer.save_state()
    files = (folder / "checkpoint-6" / "trainer_state.json", folder / "trainer_state.json")
    found = [dataclasses.asdict(trainer.state), *(json.loads(file.read_text()) for file in files)]
    return [without_times(json.loads(json.dumps(each))) for each in found]


@pytest.mark.parametrize("report_to", ["none", "tensorboard"])
def test_the_state_of_a_resumed_run(backend, arguments, tmp_path, report_to):
    if report_to == "tensorboard" and (find_spec("tensorboard") is None or backend.name != "torch"):
        pytest.skip("one framework is enough for the writer, where it is installed")
    folder = tmp_path / "out"

    def trainer():
        return Trainer(
            backend.classifier(dropout=0.2),
            arguments(folder, report_to=report_to, logging_dir=str(tmp_path / "logs"), **RUN),
            train_dataset=rows(24),
            eval_dataset=rows(8, 1),
            callbacks=[EarlyStoppingCallback(5), Counts(0), Counts(100)],
        )

    unbroken = trainer()
    unbroken.train()
    expected = states(unbroken, folder)
    counted = [each["attributes"]["count"] for each in unbroken.state.stateful_callbacks["Counts"]]
    assert counted == [6, 106] and expected[0]["stateful_callbacks"]["EarlyStoppingCallback"]
    assert expected[0]["stateful_callbacks"] == expected[1]["stateful_callbacks"]
    store.delete(folder / "checkpoint-6")  # as if the run had ended before it
    resumed = trainer()
    resumed.train(resume_from_checkpoint=True)
    assert states(resumed, folder) == expected
