"""What the acceptance kit does with its checks, and what it writes."""

import json
import re
import socket
import sys
import time
from pathlib import Path

import pytest

from oneloop.accept import checks, page, running
from oneloop.accept.private import cleaned
from oneloop.accept.running import run
from oneloop.cli.main import main
from oneloop.cli.options import parser
from oneloop.errors import ArgumentError, MissingPackageError
from tests.backends.support import names

pytestmark = pytest.mark.skipif("torch" not in names(), reason="PyTorch is not installed")

MACHINE = {
    "framework": "torch",
    "devices": {"cuda": 2, "cpu": 1},
    "cores": 4,
    "system": "Linux x86_64",
    "python": "3.11.7",
    "packages": {"torch": "2.13.0"},
}


@pytest.fixture
def children(monkeypatch):
    """Answers in place of child processes: `answers[name]` is a state, or what the process ended with."""
    answers, asked = {}, []

    def child(options, folder, limit):
        asked.append((options, folder, limit))
        if options.get("machine"):
            return MACHINE
        found = answers.get(options["name"], "passed")
        if isinstance(found, dict):
            return found
        why = {"passed": "", "failed": "it is wrong <b>", "not run": "one device"}[found]
        figures = {"processes": 2, "difference": 0.123456} if found == "passed" else {}
        title = checks.BY_NAME[options["name"]].title
        return {"name": options["name"], "title": title, "state": found, "why": why, "seconds": 1.5, "figures": figures}

    monkeypatch.setattr(running, "_child", child)
    return answers, asked


def test_every_check_is_run_on_the_best_device(children):
    answers, asked = children
    answers |= {"lora": "not run", "fp16": "failed", "plan": {"why": "it did not end within 300 s"}}
    said = []
    found = run("torch", say=said.append)
    assert [each["name"] for each in found["checks"]] == list(checks.BY_NAME)
    assert all((o["device"], o["count"]) == ("cuda", 2) for o, *_ in asked[1:])
    states = {each["name"]: (each["state"], each["why"]) for each in found["checks"]}
    assert states["lora"] == ("not run", "one device") and states["fp16"][0] == "failed"
    assert states["plan"] == ("failed", "it did not end within 300 s"), "what does not answer has not passed"
    assert len(said) == 1 + len(checks.CHECKS) and "difference 0.123" in said[1]
    folders = [folder for _, folder, _ in asked[1:]]
    assert len(set(folders)) == len(folders) and not any(folder.exists() for folder in folders), "nothing is left"


def test_the_time_is_limited(children, monkeypatch):
    clock = iter(range(0, 100_000, 200))
    monkeypatch.setattr(running.time, "monotonic", lambda: next(clock))
    found = run("torch", say=lambda text: None, total=700)
    states = [each["state"] for each in found["checks"]]
    assert states[0] == "passed" and states[-1] == "not run"
    limits = [limit for _, _, limit in children[1][1:]]  # seconds that are left, and at least half a minute
    assert limits == [min(each.limit, left) for each, left in zip(checks.CHECKS, (500, 300, 100))]
    assert "the time is over" in found["checks"][-1]["why"]


def test_what_is_asked_for_is_checked(children):
    with pytest.raises(ArgumentError, match="no check is called trian; there are train, "):
        run("torch", names=["trian"])
    with pytest.raises(ArgumentError, match="no framework is called tensorflow; there are torch, paddle, mindspore$"):
        run("tensorflow")
    with pytest.raises(ArgumentError, match="no framework is called mindtorch"):
        run("mindtorch")
    with pytest.raises(ArgumentError, match="no npu that torch can use; it has cuda, cpu"):
        run("torch", device="npu")
    found = run("torch", device="cpu", names=["bf16", "train"], say=lambda text: None)
    assert [each["name"] for each in found["checks"]] == ["train", "bf16"] and found["device"] == "cpu"


def test_a_framework_that_is_not_there(monkeypatch):
    monkeypatch.setattr(running, "_child", lambda *given: {"why": "No module named paddle"})
    with pytest.raises(MissingPackageError, match="paddle cannot be used here: No module named paddle"):
        run("paddle")


def test_the_command_writes_a_page_and_json(children, tmp_path, capsys):
    answers, _ = children
    assert main(["accept", "train", "bf16", "--output", str(tmp_path / "found")]) == 0
    assert "torch on cuda: 2 passed, 0 failed, 0 not run" in capsys.readouterr().out
    answers["bf16"] = "failed"
    assert main(["accept", "train", "bf16", "--output", str(tmp_path / "found")]) == 1
    found = json.loads((tmp_path / "found" / "accept.json").read_text())
    assert found["format"] == 1 and found["machine"] == MACHINE and len(found["checks"]) == 2
    text = (tmp_path / "found" / "accept.html").read_text()
    assert "it is wrong &lt;b&gt;" in text and "<b>" not in text and "2 x cuda" in text
    assert page.headline(found) == "torch on cuda: 1 passed, 1 failed, 0 not run"


def test_a_child_that_hangs_or_crashes(monkeypatch, tmp_path):
    for code, words in (
        ("import time; time.sleep(60)", "did not end within 1 s"),
        ("raise KeyError('own')", "KeyError"),
    ):
        monkeypatch.setattr(sys, "executable", write_program(tmp_path, code))
        started = time.monotonic()
        assert words in running._child({}, tmp_path, 1.0 if "sleep" in code else 30.0)["why"]
        assert time.monotonic() - started < 30


def test_a_child_that_hangs_leaves_no_process_behind(monkeypatch, tmp_path):
    """As a check of two processes does. They hold its output open, for which it would be waited."""
    code = "import subprocess, sys, time; started = subprocess.Popen(['sleep', '60']); "
    code += f"open({str(tmp_path / 'pid')!r}, 'w').write(str(started.pid)); time.sleep(60)"
    monkeypatch.setattr(sys, "executable", write_program(tmp_path, code))
    started = time.monotonic()
    assert "did not end" in running._child({}, tmp_path, 2.0)["why"]
    assert time.monotonic() - started < 30
    pid = (tmp_path / "pid").read_text()
    state = Path(f"/proc/{pid}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def write_program(folder, code):
    path = folder / "program"
    path.write_text(f"#!{python}\n{code}\n")
    path.chmod(0o755)
    return str(path)


python = sys.executable
SECRET = "hf_" + "a1B2c3D4" * 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cannot open /home/alice/run/x.json", "cannot open PATH"),
        ("in ~/models and C:\\Users\\alice\\x", "in PATH and PATH"),
        ("at 10.1.2.3, from https://example.com/a?b", "at ADDRESS, from ADDRESS"),
        ("alice@example.com said 3/4 and 1e-3", "ADDRESS said 3/4 and 1e-3"),
        ("node-17.cluster is lost", "NAME.cluster is lost"),
        ("losses differ by 1.2e-03", "losses differ by 1.2e-03"),
    ],
)
def test_what_is_private_is_left_out(text, expected, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "node-17")
    assert cleaned({"why": [text]}) == {"why": [expected]}


def test_secrets_and_long_texts_are_left_out():
    assert SECRET not in cleaned(f"token {SECRET}")
    assert len(cleaned("word " * 1000)) == 400
    assert cleaned({"a": 1.5, "b": True, "c": None}) == {"a": 1.5, "b": True, "c": None}


def test_the_notebook_runs_the_command():
    root = Path(__file__).resolve().parents[2]
    cells = json.loads((root / "examples" / "accept.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    (line,) = [each for each in code if each.startswith("!oneloop ")]
    options = parser().parse_args(line.removeprefix("!oneloop ").split())
    assert options.command == "accept" and options.output == "accepted"
    assert all("accepted/accept." in each for each in code[2:]) and not any(cell.get("outputs") for cell in cells)


def test_the_table_of_the_page_has_every_check():
    text = (Path(__file__).resolve().parents[2] / "docs" / "accelerators.md").read_text(encoding="utf-8")
    table = text.split("| check | what it shows")[1].split("### Results")[0]
    named = re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `")))
    assert named == list(ORDER)


ORDER = ("train", "accumulation", "bf16", "fp16", "save_stall", "kill_resume", "ddp", "stage1", "stage2", "stage3")
ORDER += ("lora", "trl_sft", "plan", "compile")


def test_the_order_of_the_checks():
    assert tuple(checks.BY_NAME) == ORDER
