"""Tests of one process that run on two as well (on_two.py): what they test has collectives, which a test of one process
never sees. A test is left out if it looks at what the main process alone does."""

from pathlib import Path

import pytest

from tests.backends.support import DEVICE, names
from tests.distributed.launch import run_script

SCRIPT = Path(__file__).with_name("on_two.py")
ALWAYS = ("callbacks/test_early_stopping.py", "trainer/test_gathering.py", "trainer/test_meters.py")
ALWAYS += ("trainer/test_source_meter.py",)
LONG = ("trainer/test_loss_spikes.py",)
pytestmark = pytest.mark.skipif("torch" not in names() or DEVICE != "cpu", reason="forks processes of torch on a CPU")


@pytest.mark.parametrize("files", [ALWAYS, pytest.param(LONG, marks=pytest.mark.slow)], ids=["short", "long"])
def test_on_two_processes_as_on_one(files, tmp_path):
    said = run_script("torch", 2, tmp_path, SCRIPT, *(f"tests/{file}" for file in files))
    passed = [(tmp_path / f"passed-{rank}").read_text().split() for rank in range(2)]
    assert passed[0] == passed[1], said[-4000:]
    for file in files:
        assert sum(each.startswith(f"tests/{file}") for each in passed[0]) > 3, file


def test_they_are_two(tmp_path):
    """A collective of processes that disagree is noticed: the variant is not one process that runs everything twice."""
    test = tmp_path / "test_two.py"
    test.write_text(
        "from oneloop import Trainer\n"
        "from tests.internals import processes_of\n"
        "from tests.backends.support import kit_module, rows\n"
        "def test_two(arguments):\n"
        "    trainer = Trainer(kit_module('torch').Kit().classifier(), arguments(max_steps=1), train_dataset=rows(8))\n"
        "    processes = processes_of(trainer)\n"
        "    assert processes.all_gather_object(processes.rank) == [0, 1]\n"
        "    trainer.train()\n"
        "    assert trainer.get_total_train_batch_size() == trainer.args.train_batch_size\n"
    )
    run_script("torch", 2, tmp_path, SCRIPT, test, "-p", "tests.conftest")
    assert all((tmp_path / f"passed-{rank}").read_text().endswith("::test_two") for rank in range(2))
