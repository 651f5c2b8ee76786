"""Micro-batches by their cost on several processes: the updates are those of one process with as many micro-batches.

As a program, `test_token_budget.py FOLDER NAME ACCUMULATION [CHECKPOINT]` trains, and each process writes what it had
into FOLDER/NAME-rankN.json. The framework is that of the variable FRAMEWORK.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from oneloop import Trainer, TrainingArguments
from oneloop.distributed.world import world
from tests.backends.support import kit_module, names
from tests.distributed.launch import run_script
from tests.trainer.test_token_budget import Padding, documents

FRAMEWORK = os.environ.get("FRAMEWORK", "torch")
BUDGET = 96


class Recording(Padding):
    """Notes which documents there were: their tokens tell."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __call__(self, samples):
        self.seen.append([sample["input_ids"] for sample in samples])
        return super().__call__(samples)


def main(folder, name, accumulation, checkpoint=None):
    args = TrainingArguments(
        f"{folder}/{name}",
        max_tokens_per_batch=None if "rebalanced" in name else BUDGET,
        train_sampling_strategy="batch_rebalance" if "rebalanced" in name else "random",
        per_device_train_batch_size=8,
        gradient_accumulation_steps=int(accumulation),
        num_train_epochs=2,
        learning_rate=0.1,
        optim="sgd",
        logging_steps=1,
        save_strategy="steps",
        save_steps=2,
        report_to="none",
        disable_tqdm=True,
        device="cpu",
        sharding="stage3" if "sharded" in name else "",
    )
    kit, collate = kit_module(FRAMEWORK).Kit(), Recording()
    model = kit.tagger()
    trainer = Trainer(
        model,
        args,
        train_dataset=documents(7 if "small" in name else 150, seed=world().rank if "differing" in name else 0),
        data_collator=collate,
    )
    trainer.train(resume_from_checkpoint=checkpoint)
    found = {
        "seen": collate.seen,
        "accumulation": trainer._oneloop.run.plan.accumulation,
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        "steps": trainer.state.global_step,
    }
    if "sharded" not in name:
        found["weights"] = {key: value.tolist() for key, value in kit.weights(trainer.model).items()}
    (Path(folder) / f"{name}-rank{world().rank}.json").write_text(json.dumps(found))


@pytest.fixture(
    scope="module", params=[n if n == "torch" else pytest.param(n, marks=pytest.mark.slow) for n in names()]
)
def framework(request):
    return request.param


def run(framework, processes, folder, name, accumulation, *checkpoint):
    """What each process had."""
    run_script(framework, processes, folder, Path(__file__), name, accumulation, *checkpoint)
    return [json.loads((folder / f"{name}-rank{rank}.json").read_text()) for rank in range(processes)]


def updates(found):
    """The documents of each update, of all processes."""
    size = found[0]["accumulation"]
    per_process = [[own["seen"][i : i + size] for i in range(0, len(own["seen"]), size)] for own in found]
    return [sorted(text for batches in update for batch in batches for text in batch) for update in zip(*per_process)]


def check_same(found, other, steps=0):
    """`other` may have begun after some steps."""
    assert updates(other) == updates(found)[steps:]
    assert other[0]["steps"] == found[0]["steps"]
    np.testing.assert_allclose(other[0]["losses"], found[0]["losses"], rtol=2e-6)
    for name, value in found[0].get("weights", {}).items():
        if "weights" in other[0]:
            np.testing.assert_allclose(other[0]["weights"][name], value, atol=1e-6)


def test_updates_are_those_of_one_process(framework, tmp_path):
    one = run(framework, 1, tmp_path, "one", 4)
    two = run(framework, 2, tmp_path, "two", 2)
    assert len(updates(one)) > 6
    check_same(one, two)
    costs = [sum(len(batch) * max(map(len, batch)) for batch in own["seen"]) for own in two]
    assert max(costs) <= 1.05 * np.mean(costs)
    # On as many processes a resume has the same bytes, on others the same updates.
    checkpoint = tmp_path / "two" / "checkpoint-2"
    again = run(framework, 2, tmp_path, "again", 2, checkpoint)
    assert [own["weights"] for own in again] == [own["weights"] for own in two]
    check_same(two, again, steps=2)
    fewer = run(framework, 1, tmp_path, "fewer", 2, checkpoint)
    assert fewer[0]["accumulation"] == 4
    check_same(two, fewer, steps=2)
    if framework == "torch":
        said = run_script(framework, 3, tmp_path, Path(__file__), "three", 2, checkpoint, succeeds=False)
        assert "4 micro-batch(es) in an update, which max_tokens_per_batch keeps" in said
        assert "Use 1 or 2 or 4 process(es)" in said


def test_rebalanced_updates_are_those_of_one_process(framework, tmp_path):
    one = run(framework, 1, tmp_path, "one rebalanced", 4)
    two = run(framework, 2, tmp_path, "two rebalanced", 2)
    check_same(one, two)
    batches = [sorted(sorted(batch) for own in each for batch in own["seen"]) for each in (one, two)]
    assert batches[0] == batches[1], "so are the micro-batches"
    costs = [sum(len(batch) * max(map(len, batch)) for batch in own["seen"]) for own in two]
    assert max(costs) <= 1.05 * np.mean(costs)
    checkpoint = tmp_path / "two rebalanced" / "checkpoint-2"
    check_same(two, run(framework, 1, tmp_path, "fewer rebalanced", 2, checkpoint), steps=2)


needs_torch = pytest.mark.skipif("torch" not in names(), reason="needs PyTorch")


@needs_torch
def test_weights_in_shards(tmp_path):
    check_same(run("torch", 2, tmp_path, "two", 2), run("torch", 2, tmp_path, "sharded", 2))


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("name", ["differing", "differing rebalanced"])
def test_processes_that_have_other_lengths(tmp_path, name):
    said = run_script("torch", 2, tmp_path, Path(__file__), name, 2, succeeds=False)
    assert "the lengths of the training samples" in said or "the number of batches in an epoch" in said


@needs_torch
def test_fewer_samples_than_micro_batches(tmp_path):
    """7 samples for 12 micro-batches: some processes have fewer, and one step is an epoch."""
    found = [run("torch", 1, tmp_path, "small one", 12), run("torch", 3, tmp_path, "small three", 4)]
    for each in found:
        assert each[0]["steps"] == 2 and sum(len(batch) for own in each for batch in own["seen"]) == 14
    np.testing.assert_allclose(found[1][0]["losses"], found[0][0]["losses"], rtol=2e-6)
    for name, value in found[0][0]["weights"].items():
        np.testing.assert_allclose(found[1][0]["weights"][name], value, atol=1e-6)


if __name__ == "__main__":
    main(*sys.argv[1:])
