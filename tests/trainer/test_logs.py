"""Where numbers go: history, files, TensorBoard and VisualDL."""

import json

import pytest

from oneloop import Trainer
from tests.backends.support import rows

RUN = {"learning_rate": 0.1, "optim": "sgd", "per_device_train_batch_size": 4, "max_steps": 6, "logging_steps": 2}


def lines(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_history_has_the_average_loss_since_the_last_log(backend, trained):
    every = trained(backend.classifier(), rows(12), **(RUN | {"logging_steps": 1}))
    trainer = trained(backend.classifier(), rows(12), **RUN)
    single = [e["loss"] for e in every.state.log_history if "loss" in e]
    paired = [e["loss"] for e in trainer.state.log_history if "loss" in e]
    assert paired == pytest.approx([(single[i] + single[i + 1]) / 2 for i in (0, 2, 4)])
    assert trainer.result.training_loss == pytest.approx(sum(single) / 6)
    entry = trainer.state.log_history[0]
    assert entry.keys() == {"loss", "grad_norm", "learning_rate", "epoch", "step"}, "nothing else, and no times"
    assert entry["learning_rate"] == pytest.approx(0.1 * 5 / 6) and entry["epoch"] == pytest.approx(2 / 3)
    last = trainer.state.log_history[-1]
    assert {"train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss"} <= last.keys()
    assert trainer.result.metrics["train_loss"] == trainer.result.training_loss


@pytest.mark.parametrize(
    "given, steps",
    [
        ({"logging_strategy": "no"}, []),
        ({"logging_strategy": "epoch"}, [3, 6]),
        ({"logging_steps": 4}, [4]),
        ({"logging_steps": 0.5}, [3, 6]),
        ({"logging_steps": 4, "logging_first_step": True}, [1, 4]),
    ],
)
@pytest.mark.once_on("mindspore")
def test_when_losses_are_logged(backend, trained, given, steps):
    trainer = trained(backend.classifier(), rows(12), **(RUN | given))
    assert [e["step"] for e in trainer.state.log_history if "loss" in e] == steps


@pytest.mark.parametrize(
    "given, steps",
    [
        ({"eval_strategy": "no"}, []),
        ({"eval_strategy": "steps"}, [2, 4, 6]),
        ({"eval_strategy": "steps", "eval_steps": 3}, [3, 6]),
        ({"eval_strategy": "steps", "eval_steps": 3, "eval_delay": 4}, [6]),
        ({"eval_strategy": "epoch"}, [3, 6]),
        ({"eval_strategy": "epoch", "eval_delay": 2}, [6]),
        ({"eval_strategy": "steps", "eval_steps": 6, "logging_first_step": True}, [1, 6]),
        ({"eval_strategy": "steps", "eval_steps": 6, "eval_on_start": True}, [0, 6]),
        ({"eval_strategy": "steps", "eval_steps": 5, "minimum_eval_times": 3}, [2, 4, 6]),
    ],
)
@pytest.mark.once_on("mindspore")
def test_when_evaluations_come(backend, trained, given, steps):
    trainer = trained(backend.classifier(), rows(12), eval_dataset=rows(4), **(RUN | given))
    assert [e["step"] for e in trainer.state.log_history if "eval_loss" in e] == steps


def test_the_json_lines_log(backend, trained, tmp_path):
    trainer = trained(backend.classifier(), rows(12), eval_dataset=rows(4), eval_strategy="steps", eval_steps=3, **RUN)
    entries = lines(tmp_path / "out")
    assert [e["step"] for e in entries] == [e["step"] for e in trainer.state.log_history]
    assert len({e["run"] for e in entries}) == 1 and all(e["time"] > 1e9 for e in entries)
    for entry, logged in zip(entries, trainer.state.log_history):
        assert {k: entry[k] for k in logged} == logged
        assert ("loss" in logged) == ("steps_per_second" in entry)
        if "loss" in logged:
            assert entry["samples_per_second"] == pytest.approx(4 * entry["steps_per_second"], rel=0.01)
    Trainer(backend.classifier(), trainer.args, train_dataset=rows(12), eval_dataset=rows(4)).train()
    assert len({e["run"] for e in lines(tmp_path / "out")}) == 2, "a second run is told apart"


def test_metrics_files(backend, trained, tmp_path, capsys):
    trainer = trained(backend.classifier(), rows(12), eval_dataset=rows(4), **RUN)
    metrics = trainer.result.metrics
    trainer.log_metrics("train", metrics)
    trainer.save_metrics("train", metrics)
    trainer.save_metrics("eval", trainer.evaluate())
    trainer.save_metrics("test", {"test_loss": 1.0}, combined=False)
    folder = tmp_path / "out"
    everything = json.loads((folder / "all_results.json").read_text())
    assert {"train_loss", "eval_loss"} <= everything.keys() and "test_loss" not in everything
    assert json.loads((folder / "train_results.json").read_text())["train_loss"] == metrics["train_loss"]
    assert json.loads((folder / "test_results.json").read_text()) == {"test_loss": 1.0}
    trainer.save_metrics("eval", {"eval_loss": 9.0})
    again = json.loads((folder / "all_results.json").read_text())
    assert again["eval_loss"] == 9.0 and again["train_loss"] == everything["train_loss"]
    shown = capsys.readouterr().out
    assert "***** train metrics *****" in shown
    assert any(line.split("=")[0].strip() == "train_loss" for line in shown.splitlines() if "=" in line)


def test_metrics_as_people_read_them(backend, arguments):
    trainer = Trainer(backend.classifier(), arguments())
    shown = trainer.metrics_format(
        {"train_runtime": 3661.5, "total_flos": 3e9, "train_mem_cpu_alloc_delta": 5 * 2**20, "a": 0.123456, "n": 3}
    )
    assert shown["train_runtime"].startswith("1:01:01") and shown["total_flos"] == "3GF"
    assert shown["train_mem_cpu_alloc_delta"] == "5MB" and shown["a"] == 0.1235 and shown["n"] == 3


def test_tensorboard(backend, trained, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trainer = trained(
        backend.classifier(),
        rows(12),
        eval_dataset=rows(4),
        eval_strategy="steps",
        eval_steps=3,
        report_to="tensorboard",
        logging_dir=str(tmp_path / "board"),
        **RUN,
    )
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    losses = [(e["step"], e["loss"]) for e in trainer.state.log_history if "loss" in e]
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [
        (step, pytest.approx(loss)) for step, loss in losses
    ]
    assert [e.step for e in events.Scalars("eval/loss")] == [3, 6]
    assert {"train/learning_rate", "train/grad_norm", "train/train_runtime"} <= set(events.Tags()["scalars"])
    text = events.Tensors("args/text_summary")[0].tensor_proto.string_val[0].decode()
    assert json.loads(text)["max_steps"] == 6


def test_tensorboard_where_logging_dir_is_not_given(backend, trained, tmp_path):
    pytest.importorskip("tensorboard")
    trained(backend.classifier(), rows(12), report_to=["tensorboard"], **RUN)
    assert list((tmp_path / "out" / "runs").glob("*/events.out.tfevents.*"))


def test_visualdl(backend, trained, tmp_path):
    pytest.importorskip("visualdl")
    from visualdl import LogReader

    trainer = trained(backend.classifier(), rows(12), report_to="visualdl", logging_dir=str(tmp_path / "vdl"), **RUN)
    (file,) = (tmp_path / "vdl").glob("vdlrecords.*.log")
    reader = LogReader(file_path=str(file))
    losses = [(e["step"], e["loss"]) for e in trainer.state.log_history if "loss" in e]
    assert [(e.id, e.value) for e in reader.get_data("scalar", "train/loss")] == [
        (step, pytest.approx(loss)) for step, loss in losses
    ]


def test_nothing_is_reported_unless_asked(backend, trained, tmp_path):
    trained(backend.classifier(), rows(12), report_to="none", **RUN)
    assert not (tmp_path / "out" / "runs").exists()


def test_an_override_that_adds_to_the_logs_of_a_step(backend, trained):
    """As TRL's Online DPO has it: the sum of the losses since the last log, which it divides by the steps."""

    class Adding(Trainer):
        def _maybe_log_save_evaluate(
            self, tr_loss, grad_norm, model, trial, epoch, ignore_keys_for_eval, start_time, learning_rate=None
        ):
            assert self.control.should_log and not self.control.should_evaluate and not self.control.should_save
            steps = self.state.global_step - self._globalstep_last_logged
            self._total_loss_scalar += float(backend.numpy(tr_loss))
            self._globalstep_last_logged = self.state.global_step
            mean = float(backend.numpy(tr_loss)) / steps
            self.log({"loss": mean, "mine": steps, "learning_rate": learning_rate}, start_time)

    given = {"max_steps": 5, "logging_steps": 2, "per_device_train_batch_size": 2, "eval_strategy": "steps"}
    given |= {"eval_steps": 4, "save_strategy": "steps", "save_steps": 4, "eval_dataset": rows(4)}
    plain = trained(backend.classifier(), rows(16), **given)
    adding = trained(backend.classifier(), rows(16), trainer_class=Adding, **given)

    def of(trainer, key):
        return [(entry["step"], entry[key]) for entry in trainer.state.log_history if key in entry]

    assert of(adding, "mine") == [(2, 2), (4, 2)]
    assert [step for step, _ in of(adding, "eval_loss")] == [step for step, _ in of(plain, "eval_loss")]
    for key in ("loss", "learning_rate", "eval_loss"):
        found, wanted = ([value for _, value in of(each, key)] for each in (adding, plain))
        assert found == pytest.approx(wanted, rel=1e-5)
    assert adding._globalstep_last_logged == plain._globalstep_last_logged
    assert adding._total_loss_scalar == pytest.approx(plain._total_loss_scalar)


@pytest.mark.parametrize("logs_itself", [True, False])
def test_an_override_that_leaves_the_rest_to_super(logs_itself, backend, trained):
    """As ms-swift has it: super() logs a step that the override has not logged, and never one twice."""

    class Leaving(Trainer):
        def _maybe_log_save_evaluate(self, tr_loss, grad_norm, *args, **kwargs):
            self.called = [*getattr(self, "called", []), self.state.global_step]
            if logs_itself:
                self.control.should_log = False
                self._globalstep_last_logged = self.state.global_step
                self.log({"mine": float(backend.numpy(tr_loss))})
            super()._maybe_log_save_evaluate(tr_loss, grad_norm, *args, **kwargs)

    given = {"max_steps": 4, "logging_steps": 2, "per_device_train_batch_size": 2}
    plain = trained(backend.classifier(), rows(16), **given)
    leaving = trained(backend.classifier(), rows(16), trainer_class=Leaving, **given)
    assert leaving.called == [2, 4]
    theirs, ours = (each.state.log_history[:-1] for each in (plain, leaving))
    if logs_itself:
        assert [entry["mine"] for entry in ours] == pytest.approx([2 * entry["loss"] for entry in theirs])
    else:
        for their, our in zip(theirs, ours, strict=True):
            assert our == pytest.approx(their, rel=1e-6)
