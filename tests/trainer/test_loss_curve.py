"""curve.jsonl: the training loss at more steps than are logged. Nothing else of a run depends on it."""

import json
import logging
import math
import os
import shutil
from types import SimpleNamespace

import pytest

from oneloop import Trainer, TrainerCallback
from oneloop.checkpoint import store
from oneloop.trainer import curve_figures
from oneloop.trainer import losses as curves
from oneloop.trainer.losses import LossCurve, span
from tests.backends.support import available, rows
from tests.internals import run_id

RUN = {"learning_rate": 0.1, "optim": "sgd", "per_device_train_batch_size": 4, "max_steps": 7, "logging_steps": 500}
SAVED = RUN | {"save_strategy": "steps", "save_steps": 3, "save_async": False}
SAME = ("learning_rate", "grad_norm")  # after a resume, where speeds are others


def points(folder):
    return [(entry["step"], entry["loss"]) for entry in lines(folder)]


def lines(folder):
    return [json.loads(line) for line in (folder / "curve.jsonl").read_text().splitlines()]


@pytest.fixture
def single(trained, tmp_path):
    """The loss of each step, from the log."""

    def losses(backend, **given):
        options = RUN | given | {"logging_steps": 1, "save_strategy": "no", "output_dir": tmp_path / "each step"}
        trainer = trained(backend.classifier(), rows(12), **options)
        assert not (tmp_path / "each step" / "curve.jsonl").exists(), "the log has all of them"
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    return losses


def test_every_step_of_a_short_run(backend, trained, single, tmp_path):
    trainer = trained(backend.classifier(), rows(12), **RUN)
    assert not any("loss" in entry for entry in trainer.state.log_history)
    found = points(tmp_path / "out")
    assert [step for step, _ in found] == [1, 2, 3, 4, 5, 6, 7]
    assert [loss for _, loss in found] == pytest.approx(single(backend), rel=1e-6)
    entries = lines(tmp_path / "out")
    assert {entry["run"] for entry in entries} == {run_id(trainer)} and entries[-1]["time"] > 1e9


def test_means_over_several_steps_that_end_at_checkpoints(backend, trained, single, tmp_path, monkeypatch):
    monkeypatch.setattr(curves, "POINTS", 3)
    trained(backend.classifier(), rows(12), **SAVED | {"save_steps": 4})
    each = single(backend)
    means = [(3, sum(each[:3]) / 3), (4, each[3]), (6, sum(each[4:6]) / 2), (7, each[6])]
    found = points(tmp_path / "out")
    assert [step for step, _ in found] == [step for step, _ in means]
    assert [loss for _, loss in found] == pytest.approx([loss for _, loss in means], rel=1e-6)


@pytest.mark.parametrize(
    ("given", "is_written"),
    [
        ({"logging_steps": 2}, True),
        ({"logging_steps": 1}, False),
        ({"logging_strategy": "epoch"}, True),
        ({"logging_strategy": "no"}, False),
        ({"logging_strategy": "epoch", "per_device_train_batch_size": 12}, False),
    ],
)
def test_it_is_written_if_the_log_has_fewer_points(trained, tmp_path, given, is_written):
    kit = available()[0]
    trained(kit.classifier(), rows(12), **RUN | given)
    assert (tmp_path / "out" / "curve.jsonl").exists() is is_written


def test_the_log_and_checkpoints_are_the_same_without_it(backend, trained, tmp_path, monkeypatch):
    """Also if losses are read at other times for it."""
    monkeypatch.setattr(store, "new_run_id", lambda: "0" * 16)
    seen = []
    for name, is_on, every in (("with", True, 30.0), ("often", True, 0.0), ("without", False, 30.0)):
        monkeypatch.setattr(curves, "EVERY", every)
        monkeypatch.setattr(curves, "is_finer_than_log", lambda run, step, is_on=is_on: is_on)
        folder = tmp_path / name
        trainer = trained(backend.classifier(), rows(12), **SAVED | {"output_dir": folder, "logging_steps": 3})
        assert (folder / "curve.jsonl").exists() is is_on
        history = [
            {k: v for k, v in e.items() if k in ("step", "loss", "train_loss")} for e in trainer.state.log_history
        ]
        files = {p.name: p.read_bytes() for p in (folder / "checkpoint-6").iterdir() if p.suffix == ".safetensors"}
        files["run.json"] = (folder / "checkpoint-6" / "run.json").read_bytes()
        seen.append((history, files))
    assert points(tmp_path / "with") == points(tmp_path / "often")
    assert len(seen[0][1]) >= 3
    assert seen[0] == seen[1] == seen[2]


class Rates(TrainerCallback):
    """What the log would say of each step."""

    def __init__(self):
        self.rates, self.norms = [], []

    def on_log(self, args, state, control, logs, **kwargs):
        if "loss" in logs:
            self.rates.append(logs["learning_rate"])
            self.norms.append(logs.get("grad_norm"))


FIGURES = {"warmup_steps": 2, "lr_scheduler_type": "linear"}


@pytest.mark.parametrize("given", [{}, {"max_grad_norm": 0.0, "nonfinite": "ignore"}], ids=["norm", "no norm"])
def test_the_learning_rate_and_the_norm_of_each_step(backend, trained, tmp_path, given):
    logged = Rates()
    options = RUN | FIGURES | given
    trained(
        backend.classifier(),
        rows(12),
        **options | {"logging_steps": 1, "output_dir": tmp_path / "logged"},
        callbacks=[logged],
    )
    trained(backend.classifier(), rows(12), **options)
    found = lines(tmp_path / "out")
    assert [entry["learning_rate"] for entry in found] == logged.rates and len(set(logged.rates)) > 4
    if given:
        assert logged.norms == [None] * 7 and not any("grad_norm" in entry for entry in found)
    else:
        assert [entry["grad_norm"] for entry in found] == pytest.approx(logged.norms, rel=1e-6)
    assert all(entry["samples_per_second"] > 0 for entry in found)


def test_of_several_steps_those_of_the_last(backend, trained, tmp_path, monkeypatch):
    """Also where a point ends with a checkpoint."""
    trained(backend.classifier(), rows(12), **RUN | FIGURES | {"output_dir": tmp_path / "each"})
    each = {entry["step"]: entry for entry in lines(tmp_path / "each")}
    monkeypatch.setattr(curves, "POINTS", 3)
    trained(backend.classifier(), rows(12), **SAVED | FIGURES | {"save_steps": 4})
    found = lines(tmp_path / "out")
    assert [entry["step"] for entry in found] == [3, 4, 6, 7]
    for entry in found:
        assert entry["learning_rate"] == each[entry["step"]]["learning_rate"]
        assert entry["grad_norm"] == pytest.approx(each[entry["step"]]["grad_norm"], rel=1e-6)


class Clock:
    """Time that passes when somebody lets it."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now


class Slow(TrainerCallback):
    """Steps of two seconds, and evaluations of a hundred."""

    def __init__(self, clock):
        self.clock = clock

    def on_step_begin(self, args, state, control, **kwargs):
        self.clock.now += 2.0


def test_speeds_are_those_of_training(trained, tmp_path, monkeypatch):
    kit, clock = available()[0], Clock()
    monkeypatch.setattr(curve_figures.time, "perf_counter", clock.perf_counter)

    class Evaluates(Trainer):
        def evaluate(self, *args, **kwargs):
            clock.now += 100.0
            return super().evaluate(*args, **kwargs)

        def create_optimizer(self, *args, **kwargs):
            clock.now += 50.0
            return super().create_optimizer(*args, **kwargs)

    given = RUN | {"eval_strategy": "steps", "eval_steps": 2, "include_num_input_tokens_seen": True}
    model = kit.classifier()
    model.main_input_name = "x"
    monkeypatch.setattr(curves, "POINTS", 3)
    trained(model, rows(12), trainer_class=Evaluates, eval_dataset=rows(4), callbacks=[Slow(clock)], **given)
    found = lines(tmp_path / "out")
    assert [entry["step"] for entry in found] == [3, 6, 7]
    assert [entry["samples_per_second"] for entry in found] == [2.0, 2.0, 2.0], "four samples in two seconds"
    assert [entry["tokens_per_second"] for entry in found] == [12.0, 12.0, 12.0], "of six columns"


class Fails(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 5:
            raise RuntimeError("the machine is gone")


def test_a_resumed_run_continues_it(backend, trained, tmp_path, monkeypatch):
    """It died after step 7, and only the checkpoint of step 3 was complete."""
    monkeypatch.setattr(curves, "POINTS", 4)
    whole, resumed = SAVED | {"output_dir": tmp_path / "whole"}, SAVED | {"output_dir": tmp_path / "out"}
    trained(backend.classifier(), rows(12), **whole)
    trained(backend.classifier(), rows(12), **resumed)
    for name in ("checkpoint-6", "checkpoint-7"):
        shutil.rmtree(tmp_path / "out" / name)
    with open(tmp_path / "out" / "curve.jsonl", "a") as f:
        f.write('{"run": "other", "step": 9, "loss": 1.0}\n{"run": "cut by a ki')
    trained(backend.classifier(), rows(12), resume=True, **resumed)
    found = [entry for entry in lines(tmp_path / "out") if entry["run"] != "other"]
    assert len({entry["run"] for entry in found}) == 1
    assert [(entry["step"], entry["loss"]) for entry in found] == points(tmp_path / "whole")
    for entry, expected in zip(found, lines(tmp_path / "whole"), strict=True):
        assert entry.keys() - {"time"} == expected.keys() - {"time"}
        assert [entry[name] for name in SAME] == [expected[name] for name in SAME]
    assert sum(entry["run"] == "other" for entry in lines(tmp_path / "out")) == 1, "lines of other runs stay"


def test_a_run_that_fails_has_its_last_losses(trained, single, tmp_path):
    kit = available()[0]
    with pytest.raises(RuntimeError, match="gone"):
        trained(kit.classifier(), rows(12), callbacks=[Fails()], **RUN)
    found = points(tmp_path / "out")
    assert [step for step, _ in found] == [1, 2, 3, 4, 5]
    assert [loss for _, loss in found] == pytest.approx(single(kit)[:5], rel=1e-6)


def curve_of(skips):
    args = SimpleNamespace(logging_nan_inf_filter=skips, nonfinite="stop")
    return LossCurve(SimpleNamespace(backend=None, args=args))


def test_a_step_that_is_left_out_has_no_point(monkeypatch):
    """After a loss spike: the points of later steps are where they would be without it."""
    points, curve = [], curve_of(False)
    curve.is_on, curve.context.plan = True, SimpleNamespace(max_steps=1000)  # two steps a point
    monkeypatch.setattr(curve, "_write", points.extend)
    curve.extend([1.0, 3.0, 5.0])
    curve.add_gap()
    curve.extend([7.0])
    curve.add_gap()
    curve.extend([8.0, 9.0])
    assert [(point["step"], point["loss"]) for point in points] == [(2, 2.0), (4, 5.0), (6, 7.0), (8, 8.5)]


def test_norms_that_are_not_finite_are_valid_json():
    figures = curve_figures.StepFigures(
        SimpleNamespace(backend=SimpleNamespace(tensors=SimpleNamespace(is_tensor=lambda value: False)))
    )
    points = [{"grad_norm": value} for value in (0.123456789, math.inf, math.nan)]
    figures.read_norms(points)
    assert [point["grad_norm"] for point in points] == [0.1234568, "inf", "nan"]


def test_losses_that_are_not_finite():
    for skips, expected in ((False, ["nan", 1.0]), (True, [2.0, 1.0])):
        curve = curve_of(skips)
        curve._losses = [2.0, math.inf]
        first = curve._point()
        curve._losses = [1.0]
        assert [first["loss"], curve._point()["loss"]] == expected


@pytest.mark.parametrize("max_steps", [1, 499, 500, 501, 10**4, 10**6 + 1])
def test_the_number_of_points_is_bounded(max_steps):
    assert sum(step % span(max_steps, step) == 0 for step in range(1, max_steps + 1)) <= curves.POINTS


def test_points_of_a_run_without_a_known_length_become_longer():
    ends = [step for step in range(1, 10**6 + 1) if step % span(-1, step) == 0]
    assert ends[:999] == list(range(1, 1000)) and ends[999:1001] == [1000, 1002]
    assert len(ends) < 6 * 1000, "some hundred for each doubling"
    assert max(b - a for a, b in zip(ends, ends[1:])) <= 10**6 / curves.POINTS


def test_a_full_disk_is_reported_once(trained, tmp_path, monkeypatch, caplog):
    kit, write = available()[0], os.write

    def is_full(descriptor, data):
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("curve.jsonl"):
            raise OSError(28, "No space left on device")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", is_full)
    monkeypatch.setattr(curves, "EVERY", 0.0)
    with caplog.at_level(logging.WARNING, logger="oneloop"):
        trainer = trained(kit.classifier(), rows(12), **RUN)
    assert trainer.state.global_step == 7
    assert len([record for record in caplog.records if "curve.jsonl cannot be written" in record.getMessage()]) == 1


def test_a_cut_line_does_not_take_the_next_with_it(trained, tmp_path):
    kit = available()[0]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "curve.jsonl").write_text('{"run": "other", "st')
    trained(kit.classifier(), rows(12), **RUN)
    cut, *rest = (tmp_path / "out" / "curve.jsonl").read_text().splitlines()
    assert cut == '{"run": "other", "st' and [json.loads(line)["step"] for line in rest] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("is_resumed", [False, True])
def test_something_else_in_its_place(trained, tmp_path, caplog, is_resumed):
    kit = available()[0]
    if is_resumed:
        trained(kit.classifier(), rows(12), **SAVED)
        (tmp_path / "out" / "curve.jsonl").unlink()
    (tmp_path / "out").mkdir(exist_ok=True)
    (tmp_path / "out" / "curve.jsonl").symlink_to("/dev/zero")
    with caplog.at_level(logging.WARNING, logger="oneloop"):
        trainer = trained(kit.classifier(), rows(12), resume=is_resumed, **SAVED | {"max_steps": 8})
    assert trainer.state.global_step == 8 and "not a regular file" in caplog.text
