"""What a person sees: a terminal and a notebook, run as they are. With ONELOOP_SCREENSHOTS=folder there are pictures.

`bash scripts/notebook` makes an environment with Jupyter for this file, since it is not among what other tests need.
"""

import fcntl
import html
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.docs import pages
from tests.report import browsing

pytestmark = pytest.mark.slow

SCRIPT = """
import numpy as np, torch
from oneloop import Trainer, TrainingArguments
x = np.random.default_rng(0).normal(size=(256, 4)).astype("float32")
data = [{"input": row, "labels": int(row.sum() > 0)} for row in x]
args = TrainingArguments("out", num_train_epochs=3, eval_strategy="epoch", report_to="none", save_strategy="no",
                         logging_steps=16)
metrics = lambda output: {"accuracy": (output.predictions.argmax(-1) == output.label_ids).mean()}
torch.manual_seed(0)
Trainer(torch.nn.Linear(4, 2), args, train_dataset=data, eval_dataset=data[:64], compute_metrics=metrics,
        criterion=torch.nn.CrossEntropyLoss()).train()
"""


def in_terminal(folder, width=120):
    """What a terminal received from the script."""
    main, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    environment = os.environ | {"PYTHONPATH": str(pages.ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT]
    child = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, cwd=folder, env=environment)
    os.close(other)
    received = b""
    while True:
        try:
            received += (some := os.read(main, 65536))
        except OSError:  # the end, on Linux
            break
        if not some:
            break
    os.close(main)
    assert child.wait(60) == 0, received.decode()
    return received.decode()


def screen(text):
    """The lines that are left on the screen: a carriage return goes back to the start of the line, ESC[A up."""
    lines, row = [""], 0
    for part in re.split(r"(\r\n|\n|\r|\x1b\[A)", text):
        if part in ("\n", "\r\n"):
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part == "\x1b[A":
            row = max(0, row - 1)
        elif part and part != "\r":
            plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", part)
            lines[row] = plain + lines[row][len(plain) :]
    return [line.rstrip() for line in lines]


def picture(page, name):
    """A picture to look at, if it is asked for."""
    if folder := os.environ.get("ONELOOP_SCREENSHOTS"):
        page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


@pytest.fixture
def chromium():
    pytest.importorskip("playwright")
    if browsing.executable() is None:
        pytest.skip("no Chromium on this machine")
    with browsing.browser() as opened:
        yield opened


def test_a_terminal(tmp_path, chromium):
    lines = screen(in_terminal(tmp_path))
    shown = [line for line in lines if line]
    assert shown[0].startswith("Training Linear, 10 parameters on cpu: 256 samples, 8 per update")
    bars = [line for line in shown if "96/96" in line]
    assert len(bars) == 1 and re.search(r"100%.*\d+:\d+<00:00.*it/s, loss 0\.\d+, lr ", bars[0])
    assert sum("eval_accuracy" in line for line in shown) == 3, "each evaluation once"
    assert all(re.match(r"\{'eval_accuracy': 0\.\d+, ", line) for line in shown if "eval_accuracy" in line)
    assert not any("\x1b" in line or "Traceback" in line for line in shown)
    page = chromium.new_page(viewport={"width": 1100, "height": 300})
    style = "background:#1e1e1e; color:#ddd; font:13px monospace; padding:1em; margin:0; white-space:pre-wrap"
    page.set_content(f'<body style="margin:0"><pre style="{style}">{html.escape(chr(10).join(shown))}</pre></body>')
    picture(page, "terminal")


@pytest.fixture
def notebook(tmp_path):
    """The notebook of docs/how-to/notebooks.md, executed."""
    nbformat = pytest.importorskip("nbformat")
    preprocessors = pytest.importorskip("nbconvert.preprocessors")
    pytest.importorskip("ipykernel")
    found = pages.blocks(pages.text_of("how-to/notebooks.md"))
    cells = [nbformat.v4.new_code_cell(block.code) for block in found if block.language == "python"]
    made = nbformat.v4.new_notebook(cells=[cell for cell in cells if "pandas" not in cell.source])
    kernel = {"kernel_name": "python3", "timeout": 300, "resources": {"metadata": {"path": str(tmp_path)}}}
    resources = kernel.pop("resources")
    path = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = str(pages.ROOT)
    try:
        preprocessors.ExecutePreprocessor(**kernel).preprocess(made, resources)
    finally:
        os.environ["PYTHONPATH"] = path
    return made


def test_a_notebook(notebook):
    """One display for the run, with a table of losses; nothing in red, and no widgets."""
    outputs = [output for cell in notebook.cells for output in cell.outputs]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    assert not any("widget" in kind for output in outputs for kind in output.get("data", ()))
    (training,) = [cell for cell in notebook.cells if "trainer.train()" in cell.source]
    (shown,) = [output for output in training.outputs if output.output_type == "display_data"]
    columns = re.findall("<th>(.*?)</th>", shown.data["text/html"])
    assert columns[:3] == ["Step", "Training Loss", "Validation Loss"]
    steps = re.findall(r"<tr><td>(\d+)</td>", shown.data["text/html"])
    assert steps == ["5", "8", "10", "15", "16", "20", "24"]
    assert "24/24" in shown.data["text/html"], "the bar is at its end"


def test_an_exported_notebook(notebook, chromium, tmp_path):
    """The display is still there in HTML, and can be seen in a browser."""
    text, _ = pytest.importorskip("nbconvert").HTMLExporter().from_notebook_node(notebook)
    (tmp_path / "notebook.html").write_text(text, encoding="utf-8")
    page = chromium.new_page(viewport={"width": 1000, "height": 900})
    page.route("**/*", lambda route: route.continue_() if route.request.url.startswith("file:") else route.abort())
    page.goto((tmp_path / "notebook.html").as_uri(), wait_until="domcontentloaded")
    table = page.locator("table", has_text="Validation Loss")
    assert table.is_visible() and table.locator("tbody tr").count() == 7
    assert page.locator("[data-mime-type='application/vnd.jupyter.stderr']").count() == 0
    picture(page, "notebook")
