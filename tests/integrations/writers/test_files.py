"""TensorBoard and VisualDL after a resume: the same folder, and every step once."""

from types import SimpleNamespace

import pytest

from oneloop import TensorBoardCallback, Trainer, TrainerCallback, TrainerState, TrainingArguments
from tests.backends.support import rows

RUN = {"learning_rate": 0.1, "optim": "sgd", "per_device_train_batch_size": 4, "logging_steps": 1, "save_steps": 2}
RUN |= {"save_strategy": "steps", "save_async": False, "eval_strategy": "steps", "eval_steps": 2}


class Died(Exception):
    pass


def broken_and_resumed(backend, arguments, writer):
    """Five steps, an error after the checkpoint of step 4, and on to step 8."""

    class Dies(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 6:
                raise Died

    def trainer(*callbacks):
        args = arguments(report_to=writer, max_steps=8, **RUN)
        args._stamp = f"started-{len(callbacks)}"  # at another time, which gives another logging_dir
        args.validate()
        return Trainer(backend.classifier(), args, None, rows(16), rows(8), callbacks=list(callbacks))

    with pytest.raises(Died):
        trainer(Dies()).train()
    trainer().train(resume_from_checkpoint=True)


def test_tensorboard_resumes(backend, arguments, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    broken_and_resumed(backend, arguments, "tensorboard")
    (folder,) = (tmp_path / "out" / "runs").iterdir()
    events = EventAccumulator(str(folder))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [event.step for event in events.Scalars("eval/loss")] == [2, 4, 6, 8]


def test_visualdl_resumes(backend, arguments, tmp_path):
    pytest.importorskip("visualdl")
    from visualdl import LogReader

    broken_and_resumed(backend, arguments, "visualdl")
    (file,) = (tmp_path / "out" / "runs").glob("*/vdlrecords.*.log")
    reader = LogReader(file_path=str(file))
    assert [record.id for record in reader.get_data("scalar", "train/loss")] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [record.id for record in reader.get_data("scalar", "eval/loss")] == [2, 4, 6, 8]


# -- where the files go


def events_in(folder):
    return len(list(folder.glob("events.out.tfevents.*")))


def test_the_directory_of_the_environment(backend, arguments, tmp_path, monkeypatch):
    """It is used where none is given, by TensorBoard alone and not in trials; a resume goes on there."""
    pytest.importorskip("tensorboard")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "~/boards")
    broken_and_resumed(backend, arguments, "tensorboard")
    assert events_in(tmp_path / "boards") == 2 and not (tmp_path / "out" / "runs").exists()
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "elsewhere"))
    given = arguments(tmp_path / "other", report_to="tensorboard", max_steps=1, logging_dir=str(tmp_path / "mine"))
    Trainer(backend.classifier(), given, train_dataset=rows(8)).train()
    assert events_in(tmp_path / "mine") == 1 and not (tmp_path / "elsewhere").exists()


def test_trials_have_directories_of_their_own(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "boards"))
    args = TrainingArguments(str(tmp_path / "trial-1"), report_to="none")
    writer = TensorBoardCallback()
    writer.open(args, TrainerState(is_hyper_param_search=True, trial_name="trial-1"))
    writer.close()
    assert not (tmp_path / "boards").exists() and len(list((tmp_path / "trial-1" / "runs").iterdir())) == 1


def test_arguments_without_a_directory(tmp_path):
    """Those of a library, such as SetFit's, which hands its own to callbacks."""
    pytest.importorskip("tensorboard")
    args = SimpleNamespace(output_dir=str(tmp_path / "out"), logging_dir=None)
    writer = TensorBoardCallback()
    writer.open(args, TrainerState())
    writer.close()
    (folder,) = (tmp_path / "out" / "runs").iterdir()
    assert events_in(folder) == 1


def test_a_directory_that_was_taken_away(tmp_path, monkeypatch):
    """None says that none is given."""
    pytest.importorskip("tensorboard")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "boards"))
    args = TrainingArguments(str(tmp_path / "out"), report_to="none")
    args.logging_dir = None
    writer = TensorBoardCallback()
    writer.open(args, TrainerState())
    writer.close()
    assert events_in(tmp_path / "boards") == 1
