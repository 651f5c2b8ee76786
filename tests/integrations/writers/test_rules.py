"""What all writers share, seen on one that keeps its values in a list."""

import logging

import pytest

from oneloop import AzureMLCallback, Trainer
from oneloop.integrations.writers.base import Writer, configuration, flat
from oneloop.integrations.writers.progress_marks import Mark
from tests.backends.support import rows

RUN = {"learning_rate": 0.1, "optim": "sgd", "per_device_train_batch_size": 4, "logging_steps": 1, "max_steps": 4}
SAVES = {"save_strategy": "steps", "save_steps": 2, "save_async": False}


class Listed(Writer):
    """A service in memory: runs by their ids, which outlive the writer."""

    name = "tensorboard"  # any that is known

    def __init__(self, service, model=False):
        super().__init__()
        self.service, self.model, self.closed = service, model, 0
        self.broken = False

    def open(self, args, state):
        number = self.run.get("id", len(self.service))
        self.service.setdefault(number, [])
        self.run = {"id": number}

    def parameters(self, arguments, model):
        self.arguments = arguments

    def write(self, values, step):
        if self.broken:
            raise ConnectionError("the network is gone")
        self.service[self.run["id"]] += [(step, name) for name in values]

    def close(self):
        self.closed += 1

    def wants(self, what):
        return self.model

    def artifact(self, folder, what, state):
        self.service.setdefault("artifacts", []).append((what, sorted(path.name for path in folder.iterdir())))


def steps(service, run=0, name="loss"):
    return [step for step, key in service[run] if key == name]


@pytest.fixture
def train(backend, arguments):
    def run(writer, resume=None, callbacks=(), **given):
        args = arguments(**RUN | SAVES | given)
        trainer = Trainer(backend.classifier(), args, None, rows(16), rows(8), callbacks=[writer, *callbacks])
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    return run


def test_a_resumed_run_is_the_same_run(train, tmp_path):
    service = {}
    train(Listed(service))
    train(Listed(service), resume=True, max_steps=6)
    assert list(service) == [0] and steps(service) == [1, 2, 3, 4, 5, 6]


def test_resuming_an_earlier_checkpoint_starts_a_new_run_with_the_full_curve(train, tmp_path):
    service = {}
    train(Listed(service))
    train(Listed(service), resume=str(tmp_path / "out" / "checkpoint-2"))
    assert steps(service, 0) == [1, 2, 3, 4] and steps(service, 1) == [1, 2, 3, 4]


def test_a_writer_that_is_named_late_gets_the_history(train):
    service = {}
    train(Listed({}), callbacks=[])
    (latecomer,) = [Listed(service)]
    latecomer.__class__ = type("Late", (Listed,), {})
    train(latecomer, resume=True, max_steps=6)
    assert steps(service) == [1, 2, 3, 4, 5, 6]


def test_an_evaluation_before_and_after_belongs_to_the_run(backend, arguments):
    service = {}
    writer = Listed(service)
    trainer = Trainer(backend.classifier(), arguments(**RUN), None, rows(16), rows(8), callbacks=[writer])
    trainer.evaluate()
    trainer.train()
    trainer.evaluate()
    trainer.predict(rows(8))
    assert (
        list(service) == [0] and steps(service, name="eval_loss") == [0, 4] and steps(service, name="test_loss") == [4]
    )
    trainer.train()
    assert list(service) == [0, 1], "a second train() is a second run"
    trainer.end()
    assert not writer.is_open


def test_a_service_that_fails_costs_nothing_and_misses_nothing(train, caplog):
    service = {}
    writer = Listed(service)

    class Breaks(Writer):
        """Breaks the network at step 2, and mends it at step 4."""

        name = "visualdl"

        def on_train_begin(self, args, state, control, **kwargs):
            pass

        def on_log(self, args, state, control, logs=None, **kwargs):
            writer.broken = 1 <= state.global_step < 3

    with caplog.at_level(logging.WARNING):
        assert train(writer, callbacks=[Breaks()]).state.global_step == 4
    assert steps(service) == [1, 2, 3, 4]
    assert caplog.text.count("the network is gone") == 1


def test_checkpoints_and_the_model_are_handed_over(train):
    service = {}
    train(Listed(service, model=True))
    assert [what for what, _ in service["artifacts"]] == ["checkpoint", "checkpoint", "model"]
    assert all("model.safetensors" in names for _, names in service["artifacts"])
    assert "run.json" not in service["artifacts"][-1][1]


def test_an_upload_that_fails_is_told_without_secrets(train, caplog, monkeypatch):
    def refuse(*_):
        raise ConnectionError("401 for https://service/upload?token=hunter2hunter2")

    writer = Listed({}, model=True)
    monkeypatch.setattr(writer, "artifact", refuse)
    train(writer)
    assert "could not upload the checkpoint: ConnectionError: 401 for" in caplog.text and "hunter2" not in caplog.text


def test_no_secret_is_among_the_parameters(train):
    writer = Listed({})
    train(writer, hub_token="hf_verysecret", max_steps=1)
    assert "hf_verysecret" not in str(writer.arguments) and not any(
        name.endswith("_token") for name in writer.arguments
    )

    class Model:
        class config:
            @staticmethod
            def to_dict():
                return {"pad_token": "<pad>", "api_key": "x", "use_auth_token": "x", "hidden": 3}

    assert configuration(Model()) == {"pad_token": "<pad>", "hidden": 3}


def test_a_run_of_azure_that_is_given(train):
    class Run:
        id, logged = "azure", []

        def log(self, name, value, description, step):
            self.logged.append((name, step))

        def flush(self):
            pass

    run = Run()
    train(AzureMLCallback(run))
    assert [step for name, step in run.logged if name == "loss"] == [1, 2, 3, 4]


def test_marks():
    mark = Mark()
    mark.add(3, ["loss"])
    mark.add(3, ["eval_loss"])
    assert mark.covers(2, "anything") and mark.covers(3, "loss") and not mark.covers(3, "other")
    assert mark.later(Mark(4)) == Mark(4) and Mark(3).later(mark) is mark
    assert flat({"a": {"b": 1, "c": {}}, "d": 2}) == {"a/b": 1, "a/c": {}, "d": 2}
