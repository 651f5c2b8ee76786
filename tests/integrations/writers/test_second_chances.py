"""A service that has lost a run, or its end, or was given the mark of another; and values that it never took."""

import logging

import pytest

from oneloop import Trainer, TrainerCallback
from oneloop.integrations.writers import progress_marks
from oneloop.integrations.writers.base import Writer
from oneloop.integrations.writers.progress_marks import Mark
from tests.backends.support import rows

RUN = {"learning_rate": 0.1, "optim": "sgd", "per_device_train_batch_size": 4, "logging_steps": 1, "max_steps": 4}
RUN |= {"save_strategy": "steps", "save_steps": 2, "save_async": False}


class Kept(Writer):
    """A service in memory: runs by their ids, which outlive the writer."""

    name = "tensorboard"  # any that is known

    def __init__(self, service, broken=False):
        super().__init__()
        self.service, self.broken = service, broken

    def open(self, args, state):
        if self.run.get("id") not in self.service:  # a new run, or one that is not there any more
            self.run = {"id": len(self.service) + 100 * bool(self.run)}
        self.service.setdefault(self.run["id"], [])

    def write(self, values, step):
        if self.broken:
            raise ConnectionError("the network is gone")
        self.service[self.run["id"]] += [(step, name) for name in values]

    def close(self):
        pass


class Asked(Kept):
    """A service that can be asked how far it has got."""

    def reported(self):
        mark = Mark()
        for step, name in self.service[self.run["id"]]:
            mark.add(step, [name])
        return mark


def steps(service, run=0, name="loss"):
    return [step for step, key in service[run] if key == name]


@pytest.fixture
def train(backend, arguments):
    def run(writer, resume=None, callbacks=(), **given):
        args = arguments(**RUN | given)
        trainer = Trainer(backend.classifier(), args, None, rows(16), rows(8), callbacks=[writer, *callbacks])
        trainer.train(resume_from_checkpoint=resume)

    return run


class Dies(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 4:
            raise ZeroDivisionError("the run dies")


def test_what_a_run_logged_between_its_last_checkpoint_and_its_death_is_there_once(train):
    service = {}
    with pytest.raises(ZeroDivisionError):
        train(Kept(service), callbacks=[Dies()])
    assert steps(service) == [1, 2, 3]
    train(Kept(service), resume=True)  # from step 2
    assert steps(service) == [1, 2, 3, 4]


def test_a_service_that_has_lost_the_run_gets_the_whole_history_in_a_new_one(train):
    service = {}
    train(Kept(service))
    service.clear()
    train(Kept(service), resume=True, max_steps=6)
    assert list(service) == [100] and steps(service, 100) == [1, 2, 3, 4, 5, 6]


def test_a_service_that_has_lost_the_end_of_a_run_gets_it_again(train):
    """What was noted beside the run is then too much."""
    service = {}
    train(Asked(service))
    service[0] = [(step, name) for step, name in service[0] if step <= 2]
    train(Asked(service), resume=True, max_steps=6)
    assert steps(service) == [1, 2, 3, 4, 5, 6]


def test_the_mark_of_another_run_says_nothing_about_this_one(train, tmp_path):
    service = {}
    train(Kept(service))
    progress_marks.keep(tmp_path / "out", "tensorboard", {"id": 7}, Mark(5, ["loss"]))
    assert progress_marks.kept(tmp_path / "out", "tensorboard", {"id": 7}) == Mark(5, ["loss"])
    assert progress_marks.kept(tmp_path / "out", "tensorboard", {"id": 0}) == Mark()
    train(Kept(service), resume=True, max_steps=6)
    assert steps(service) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"run": {"id": 0}}', '{"run": {"id": 0}, "step": "x", "names": []}'])
def test_a_mark_that_cannot_be_read_is_none(tmp_path, text):
    progress_marks.keep(tmp_path, "tensorboard", {"id": 0}, Mark(5))
    (tmp_path / progress_marks.FOLDER / "tensorboard.json").write_text(text)
    assert progress_marks.kept(tmp_path, "tensorboard", {"id": 0}) == Mark()


def test_values_that_were_never_taken_are_counted_at_the_end(train, caplog):
    with caplog.at_level(logging.WARNING):
        train(Kept({}, broken=True))
    assert "the values of 5 logs could not be written" in caplog.text, "four steps and the end"


def test_the_epoch_of_a_step_is_written_once(train):
    """Every log has it: that of the step, of its evaluation and of the end."""
    service = {}
    train(Kept(service), eval_strategy="steps", eval_steps=2)
    assert steps(service, name="eval_loss") == [2, 4]
    assert steps(service, name="epoch") == steps(service) == [1, 2, 3, 4]
