"""The commands of docs/problems.md that start processes, as the page shows them, on its script."""

import json
import re
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


# The tests of the rows whose answer is not code on the page that is run and asserts something.
TESTED_BY = """
Resume on another number of GPUs
    docs/test_problems.py test_a_run_is_resumed_on_one_process_and_on_two_again
Continue a run of transformers' Trainer
    checkpoint/test_transformers_checkpoint.py test_true_takes_the_newest_of_the_old_ones
Training stands still for minutes while it saves
    accept/test_checks.py test_saves
The scheduler killed the job, and nothing was saved
    docs/test_problems.py test_the_loop_of_a_job_ends_when_the_run_is_done
Accumulated gradients are not those of the large batch
    trainer/test_loss_rule.py test_tokens_weigh_equally_in_uneven_micro_batches
The loss jumps up and does not come back
    trainer/test_loss_spikes.py test_rollback_leaves_the_samples_out
The loss falls on one device, and not on the other
    docs/test_problems.py test_two_runs_are_compared
Packed texts attend to each other
    trainer/test_packing.py test_neighbours_are_bit_identical_when_a_document_changes
Will it fit?
    docs/test_problems.py test_the_run_is_planned
The evaluation runs out of memory
    trainer/test_evaluation.py test_preprocess_logits_for_metrics
Training runs out of memory
    docs/test_problems.py test_memory_that_runs_out
A process died, and the others hang
    distributed/test_machines.py test_a_machine_is_lost_and_the_run_goes_on_with_the_other
The script is for an older transformers
    docs/test_problems.py test_old_names_of_arguments_are_run
The metric is missing; a column was dropped without a word
    trainer/test_mistakes.py test_labels_under_another_name
A log-in prompt of Weights & Biases that nobody asked for
    trainer/test_logs.py test_nothing_is_reported_unless_asked
"""


def test_every_row_has_a_test():
    rows = dict(re.findall(r"^### (.*?)\n(.*?)(?=^##|\Z)", pages.text_of("problems.md"), re.MULTILINE | re.DOTALL))
    asserting = {title for title, text in rows.items() if re.search(r"^assert |<!-- logs:", text, re.MULTILINE)}
    lines = TESTED_BY.strip().splitlines()
    titles, tests = lines[::2], [line.split() for line in lines[1::2]]
    assert set(rows) - asserting - set(titles) == set(), "rows without a test"
    assert set(titles) <= set(rows), "tests of rows that are gone"
    for file, test in tests:
        assert f"def {test}(" in (pages.ROOT / "tests" / file).read_text(encoding="utf-8"), test


FULL = """        if self.training and len(features) > 2:
            raise torch.OutOfMemoryError("full")
"""


def test_memory_that_runs_out(script):
    """--auto_find_batch_size true, with the page's script and a device that has room for two samples."""
    pytest.importorskip("torch")
    place = "        logits ="
    code = (script / "train.py").read_text().replace("nn.Dropout(0.1)", "nn.Dropout(0.0)")
    (script / "train.py").write_text(code)
    (script / "small.py").write_text("import torch\n" + code.replace(place, FULL + place))
    given = "--max_steps 2 --logging_steps 1 --report_to none"
    run(f"python small.py --output_dir outputs/small {given} --auto_find_batch_size true")
    run(f"python train.py --output_dir outputs/large {given}")
    small, large = (
        [entry["loss"] for entry in map(json.loads, (script / path).read_text().splitlines()) if "loss" in entry]
        for path in ("outputs/small/log.jsonl", "outputs/large/log.jsonl")
    )
    assert len(large) == 2 and small == pytest.approx(large, rel=1e-5)


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
    compare = command_of("python train.py --output_dir outputs/here")
    assert "No difference" in run(compare)
    code = (script / "train.py").read_text()
    (script / "wrong.py").write_text(code.replace("self.layer(self.dropout(features))", "self.layer(features) * 1.01"))
    _, second, diff = compare.splitlines()
    run(f"{second.replace('train.py', 'wrong.py')}\n! {diff} > found.txt")
    assert "First difference: step 0" in (script / "found.txt").read_text()


@pytest.mark.slow
def test_old_names_of_arguments_are_run(script):
    pytest.importorskip("transformers")
    run(command_of("oneloop check train.py"))
    logs = [json.loads(line) for line in (script / "outputs/old/log.jsonl").read_text().splitlines()]
    assert any("eval_loss" in entry for entry in logs), logs
