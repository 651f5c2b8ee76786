"""What a person sees while a run goes on."""

import re
import sys
import types

import pytest

from oneloop import NotebookProgressCallback, PrinterCallback, ProgressCallback, Trainer, TrainerControl, TrainerState
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
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert len(lines) == 3
    assert "'loss': " in lines[0] and "'learning_rate': " in lines[0] and "'train_runtime': " in lines[2]
    assert "total_flos" not in "".join(lines)


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
    assert len(lines) == 2 and "'eval_loss'" in lines[0] and "'train_runtime'" in lines[-1]
