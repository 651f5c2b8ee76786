"""What a person sees while a run goes on."""

import re
import subprocess
import sys
import types
from dataclasses import replace

import pytest

from oneloop import (
    EarlyStoppingCallback,
    NotebookProgressCallback,
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerControl,
    TrainerState,
    behaviour,
)
from oneloop.callbacks import progress
from tests.backends.support import rows

RUN = {"learning_rate": 0.1, "optim": "sgd", "per_device_train_batch_size": 4, "max_steps": 4, "logging_steps": 2}


@pytest.mark.parametrize("off, kind", [(True, PrinterCallback), (False, ProgressCallback)])
def test_which_display_is_chosen(backend, arguments, off, kind):
    trainer = Trainer(backend.classifier(), arguments(disable_tqdm=off))
    assert [
        type(c) for c in trainer.callback_handler.callbacks if isinstance(c, (PrinterCallback, ProgressCallback))
    ] == [kind]


def test_a_display_of_ones_own_is_the_only_one(backend, arguments):
    class Own(ProgressCallback):
        pass

    trainer = Trainer(backend.classifier(), arguments(), callbacks=[Own])
    shown = [c for c in trainer.callback_handler.callbacks if isinstance(c, (PrinterCallback, ProgressCallback))]
    assert [type(c) for c in shown] == [Own]


def test_printed_lines(backend, trained, capsys):
    trained(backend.classifier(), rows(16), **RUN)
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert len(lines) == 3
    assert re.match(
        r"\[step 2/4, 0:00:0\d left\] \{'loss': [\d.]+, 'grad_norm': [\d.]+, 'learning_rate': 0\.075, ", lines[0]
    )
    assert lines[1].startswith("[step 4/4] {'loss': ") and lines[2].startswith("[step 4/4] {'train_runtime': ")
    assert "total_flos" not in "".join(lines)
    (header,) = [line for line in said.err.splitlines() if line.startswith("Training ")]
    assert re.search(r"Training \w+, [\d,]+ parameters on cpu: 16 samples, 4 per update .* 4 steps\.", header)


def test_printed_lines_as_another_trainer_prints_them(backend, trained, capsys, monkeypatch):
    monkeypatch.setattr(behaviour, "_chosen", (replace(behaviour.OWN, prints_logs_only=True), {}))
    trained(backend.classifier(), rows(16), **RUN)
    said = capsys.readouterr()
    assert re.match(r"\{'loss': '[\d.]+', 'grad_norm': '[\d.]+', 'learning_rate': '0\.075', ", said.out.splitlines()[0])
    assert "Training " not in said.err


def test_where_a_resumed_run_starts_and_that_a_finished_one_is(backend, trained, capsys, tmp_path):
    options = RUN | {"save_strategy": "steps", "save_steps": 2}
    trained(backend.classifier(), rows(16), **options)
    capsys.readouterr()
    trained(backend.classifier(), rows(16), resume=str(tmp_path / "out" / "checkpoint-2"), **options)
    said = capsys.readouterr()
    assert "resuming from" in said.err and "checkpoint-2 at step 2." in said.err and "was finished" not in said.err
    assert said.out.startswith("[step 4/4] ")
    trained(backend.classifier(), rows(16), resume=str(tmp_path / "out" / "checkpoint-4"), **options)
    assert "The run was finished there: nothing is left to train." in capsys.readouterr().err


def test_why_a_run_stopped(backend, trained, capsys):
    trained(
        backend.classifier(),
        rows(16),
        eval_dataset=rows(8),
        eval_strategy="steps",
        eval_steps=1,
        compute_metrics=lambda prediction: {"always": 0.5},
        metric_for_best_model="always",
        callbacks=[EarlyStoppingCallback(2, 0.1)],
        **RUN,
    )
    why = "eval_always has not improved by more than 0.1 in the last 2 evaluations; the best is 0.5."
    assert f"Early stopping at step 3: {why}" in capsys.readouterr().err.splitlines()


def test_log_level_works_without_a_configuration_of_logging(tmp_path):
    """Each run in a process of its own, forked from one: handlers of loggers stay."""
    pytest.importorskip("torch")
    code = [
        "import os, sys",
        "from tests.backends.support import kit_module, rows",
        "from oneloop import Trainer, TrainingArguments",
        "for level in ('passive', 'info', 'warning', 'error'):",
        "    if os.fork() == 0:",
        "        args = TrainingArguments(sys.argv[1], max_steps=1, log_level=level, report_to='none', use_cpu=True)",
        "        sys.stderr = open(f'{sys.argv[1]}/{level}.txt', 'w', buffering=1)",
        "        Trainer(kit_module('torch').Kit().classifier(), args, train_dataset=rows(8)).train()",
        "        os._exit(0)",
        "    assert os.wait()[1] == 0",
    ]
    words = [sys.executable, "-c", "\n".join(code), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    said = {level: (tmp_path / f"{level}.txt").read_text() for level in ("passive", "info", "warning", "error")}
    header = "parameters on cpu: 8 samples"
    assert [text.count(header) for text in said.values()] == [1, 1, 1, 0]
    assert "INFO oneloop.trainer.run: Training " in said["info"] and "INFO" not in said["passive"] + said["warning"]


def test_bars_for_training_and_evaluation(backend, trained, capsys):
    trainer = trained(
        backend.classifier(),
        rows(16),
        disable_tqdm=False,
        eval_dataset=rows(8),
        eval_strategy="steps",
        eval_steps=2,
        **RUN,
    )
    trainer.predict(rows(8))
    err = capsys.readouterr().err
    assert re.search(r"train: 100%.* 4/4 ", err) and re.search(r"eval: 100%.* 1/1 ", err)
    (bar,) = [c for c in trainer.callback_handler.callbacks if isinstance(c, ProgressCallback)]
    assert bar.training_bar is None and bar.prediction_bar is None, "bars are closed"


def test_a_resumed_bar_starts_where_the_run_does(backend, trained, tmp_path, capsys):
    options = RUN | {"save_strategy": "steps", "save_steps": 3}
    trained(backend.classifier(), rows(16), **options)
    capsys.readouterr()
    source = str(tmp_path / "out" / "checkpoint-3")
    trained(backend.classifier(), rows(16), disable_tqdm=False, resume=source, **options)
    err = capsys.readouterr().err
    assert "3/4 " in err and "4/4 " in err and "1/4 " not in err


def test_the_notebooks_table(backend, trained, monkeypatch):
    drawn = []

    class Handle:
        def update(self, value):
            drawn.append(value)

    module = types.ModuleType("IPython.display")
    module.HTML = lambda text: text
    module.display = lambda value, display_id=None: drawn.append(value) or Handle()
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    notebook = NotebookProgressCallback()
    trained(
        backend.classifier(),
        rows(16),
        callbacks=[notebook],
        eval_dataset=rows(8),
        eval_strategy="steps",
        eval_steps=2,
        compute_metrics=lambda prediction: {"<b>": 0.25},
        **RUN,
    )
    table = drawn[-1]
    assert "<progress" in table and "train" in table and "4/4" in table, "the bar stays, at its end"
    heads = re.findall(r"<th>(.*?)</th>", table)
    assert heads == ["Step", "Training Loss", "Validation Loss", "&lt;B&gt;"]
    body = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(<td>.*?)</tr>", table)]
    assert [row[0] for row in body] == ["2", "4"] and all(all(row) and len(row) == len(heads) for row in body)
    assert body[0][-1] == "0.25"
    assert any("eval" in each and "1/1" in each for each in drawn) and "eval" not in table


def test_text_in_the_notebooks_table_is_no_html():
    notebook = NotebookProgressCallback()
    notebook.rows = [{"Step": 1, "Note": "<i>"}]
    assert "<td>&lt;i&gt;</td>" in notebook.html()


def test_the_speed_of_a_resumed_run_in_a_notebook(monkeypatch):
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: 104.0))
    text = progress._bar("train", done=10, total=20, since=100.0, first=2)
    assert "10/20 &middot; 2 it/s &middot; 0:00:04 &lt; 0:00:05" in text


def test_the_time_left_of_a_resumed_run_is_of_its_own_steps(arguments, monkeypatch, capsys):
    clock = types.SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(progress, "time", clock)
    display, control = PrinterCallback(), TrainerControl()
    state = TrainerState(max_steps=200, global_step=100, is_local_process_zero=True)
    display.on_train_begin(arguments(), state, control)
    clock.now, state.global_step = 110.0, 110
    display.on_log(arguments(), state, control, logs={"loss": 1.0})
    assert capsys.readouterr().out == "[step 110/200, 0:01:30 left] {'loss': 1.0}\n"
    state.is_local_process_zero = False
    display.on_log(arguments(), state, control, logs={"loss": 1.0})
    assert capsys.readouterr().out == "", "the other processes of a machine print nothing"


def test_a_notebook_shows_the_header_as_output(backend, trained, capsys, monkeypatch):
    """It shows stderr in a red box."""
    monkeypatch.setattr(progress, "in_notebook", lambda: True)
    trained(backend.classifier(), rows(16), **RUN)
    said = capsys.readouterr()
    assert "Training " in said.out and "Training " not in said.err


def test_a_bar_follows_the_step(arguments):
    """Steps may be left out, after a loss spike."""
    display, state, control = ProgressCallback(), TrainerState(max_steps=9), TrainerControl()
    display.on_train_begin(arguments(), state, control)
    try:
        for state.global_step in (1, 4, 5):
            display.on_step_end(arguments(), state, control)
        assert display.training_bar.n == 5
    finally:
        display.on_train_end(arguments(), state, control)


def test_the_bar_has_the_loss_and_the_learning_rate(backend, trained, capsys):
    trained(backend.classifier(), rows(16), disable_tqdm=False, eval_dataset=rows(8), eval_strategy="epoch", **RUN)
    said = capsys.readouterr()
    assert re.search(r"train: .*4/4 .*loss [0-9.]+, lr ", said.err)
    lines = [line for line in said.out.splitlines() if line.startswith("{")]
    assert (
        len(lines) == 2 and re.match(r"\{'eval_loss': \d", lines[0]) and re.match(r"\{'train_runtime': \d", lines[-1])
    )


def test_numbers_above_the_bar_are_text_as_another_trainer_prints_them(backend, trained, capsys, monkeypatch):
    monkeypatch.setattr(behaviour, "_chosen", (replace(behaviour.OWN, prints_logs_only=True), {}))
    trained(backend.classifier(), rows(16), disable_tqdm=False, **RUN)
    assert "{'train_runtime': '" in capsys.readouterr().out
