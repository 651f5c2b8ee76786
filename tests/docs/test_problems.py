"""The commands of docs/problems.md that start processes, as the page shows them, on its script."""

import json
import subprocess

import pytest

from tests.docs import commands, pages, test_pages

at = test_pages.at
PAGE = pages.blocks(pages.text_of("problems.md"))


def command_of(start):
    """The shell block that begins with these words."""
    (block,) = (block for block in PAGE if block.language == "bash" and block.code.startswith(start))
    return block.code


@pytest.fixture
def script(at):
    namespace: dict = {}
    first = next(block.code for block in PAGE if "SCRIPT" in block.code)
    exec(first[: first.index("import os\n")], namespace)
    return at


def run(code):
    done = subprocess.run(["bash", "-euc", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def test_commands_that_start_processes_exist_too():
    """The check of all pages leaves out blocks that are not run."""
    shown = [block.code for block in PAGE if block.language == "bash" and not block.code.startswith("until ")]
    assert len(shown) > 5
    assert [
        problem for code in shown for words in commands.commands(code) if (problem := commands.problem(words))
    ] == []


@pytest.mark.slow
def test_a_run_is_resumed_on_one_process_and_on_two_again(script):
    pytest.importorskip("torch")
    run(command_of("torchrun --nproc-per-node 2 train.py --output_dir outputs/moved"))
    state = json.loads((script / "outputs/moved/checkpoint-16/trainer_state.json").read_text())
    assert state["global_step"] == 16
    events = [json.loads(line) for line in (script / "outputs/moved/run.jsonl").read_text().splitlines()]
    assert sum(event["event"] == "resumed" for event in events) == 2, [event["event"] for event in events]


@pytest.mark.slow
def test_the_run_is_planned(script):
    pytest.importorskip("torch")
    assert "stage 3" in run(command_of("oneloop plan"))


@pytest.mark.slow
def test_the_loop_of_a_job_ends_when_the_run_is_done(script):
    pytest.importorskip("torch")
    run(command_of("until python train.py").replace("true; do", "true --max_steps 3 --report_to none; do"))
    assert (script / "outputs/job/checkpoint-3").is_dir()


@pytest.mark.slow
def test_two_runs_are_compared(script):
    pytest.importorskip("torch")
    assert "outputs/there" in run(command_of("python train.py --output_dir outputs/here"))


@pytest.mark.slow
def test_old_names_of_arguments_are_run(script):
    pytest.importorskip("transformers")
    run(command_of("oneloop check train.py"))
    logs = [json.loads(line) for line in (script / "outputs/old/log.jsonl").read_text().splitlines()]
    assert any("eval_loss" in entry for entry in logs), logs
