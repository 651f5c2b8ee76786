"""TensorBoard and VisualDL after a resume: the same folder, and every step once."""

import pytest

from oneloop import Trainer, TrainerCallback
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
