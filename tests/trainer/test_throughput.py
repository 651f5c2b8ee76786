"""Tokens per second, MFU and the time spent waiting for data: in log.jsonl, and in the logs if asked."""

import json
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from oneloop import Trainer, loop
from oneloop.distributed.mesh import Axis, Mesh, Splits
from oneloop.trainer import meter
from oneloop.trainer.peak_flops import peak_flops
from tests.backends.support import tagged
from tests.internals import part_of

RUN = {"max_steps": 4, "per_device_train_batch_size": 4, "logging_steps": 2}


def lines(tmp_path):
    every = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    return [line for line in every if "loss" in line]


def padded(samples):
    """Every second token is padding."""
    return [sample | {"input_ids": sample["input_ids"] * [1, 0, 1, 0]} for sample in samples]


def weights_of(trainer):
    """How many weights take part in the operations of a token, each six times."""
    return trainer.floating_point_ops({"input_ids": np.zeros((1, 1), np.int64)}) / 6


def test_figures_of_a_run(backend, arguments, tmp_path):
    """Ratios do not depend on the speed: padding is half of the tokens, and the operations are six per weight."""
    given = {"include_num_input_tokens_seen": "non_padding", "device_peak_flops": 1e9}
    trainer = Trainer(backend.tagger(), arguments(**RUN, **given), train_dataset=padded(tagged([4] * 16)))
    trainer.processing_class = SimpleNamespace(pad_token_id=0)
    trainer.train()
    weights = weights_of(trainer)
    found = lines(tmp_path)
    assert len(found) == 2 and weights
    for line in found:
        assert line["useful_tokens_per_second"] == pytest.approx(line["tokens_per_second"] / 2, rel=1e-2)
        assert line["mfu"] == pytest.approx(6 * weights * line["tokens_per_second"] / 1e9, rel=1e-2, abs=1e-6)
        assert 0 <= line["data_wait"] <= 1
    assert not any(key.endswith(("mfu", "data_wait")) for entry in trainer.state.log_history for key in entry)


def test_samples_of_data_that_come_in_batches_of_their_own(backend, arguments, tmp_path):
    class Own(Trainer):
        def get_train_dataloader(self):
            loader = super().get_train_dataloader()
            loader.own_batch_size = 3  # as that of a pipeline of MindSpore
            return loader

    Own(backend.tagger(), arguments(**RUN), train_dataset=tagged([4] * 16)).train()
    for line in lines(tmp_path):
        assert line["samples_per_second"] == pytest.approx(3 * line["steps_per_second"], rel=1e-2)


def test_in_the_logs_if_asked(backend, arguments, tmp_path):
    trainer = Trainer(backend.tagger(), arguments(**RUN, log_throughput=True), train_dataset=tagged([4] * 16))
    trainer.train()
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    for entry, line in zip(steps, lines(tmp_path), strict=True):
        assert entry["train_tokens_per_second"] == line["tokens_per_second"]
        assert entry["train_data_wait"] == line["data_wait"]
        assert "train_mfu" not in entry and "train_useful_tokens_per_second" not in entry


def test_tokens_before_a_resume_are_not_in_its_speed(backend, arguments):
    trainer = Trainer(backend.tagger(), arguments(**RUN), train_dataset=tagged([4] * 16))
    measured = part_of(trainer, "meter")
    measured.load({"work": {"tokens": 1000, "flops": 0.0, "unpadded": 0}}, None)
    measured.begin_run()
    measured.tokens += 64
    measured.measure(seconds=2.0, steps=4, samples=16)
    assert measured.figures["tokens_per_second"] == 32.0
    measured.tokens += 32
    measured.measure(seconds=2.0, steps=2, samples=8)
    assert measured.figures["tokens_per_second"] == 16.0


TWO = [Mesh.of_batches(2, rank) for rank in range(2)]
PAIRS = [Mesh((Axis("data", 2, Splits.BATCH), Axis("tensor", 2, Splits.WEIGHTS)), rank) for rank in range(4)]


@pytest.mark.parametrize("meshes", [TWO, PAIRS], ids=["two", "two pairs with the same batch"])
def test_counts_of_two_batches(meshes, backend, arguments):
    """Stored counts are sums: one batch goes on with them, and the next sums have them once."""
    trainer = Trainer(backend.tagger(), arguments(**RUN, include_num_input_tokens_seen=True), train_dataset=[])
    core, stored = trainer._oneloop, {"work": {"tokens": 1000, "flops": 0.0, "unpadded": 900}}
    works = []
    for mesh in meshes:
        processes = SimpleNamespace(all_gather=lambda own: [each.local_counts() for each in works])
        given = {
            "args": trainer.args,
            "trainer": trainer,
            "processes": processes,
            "mesh": mesh,
            "backend": core.backend,
        }
        works.append(meter.Meter(SimpleNamespace(**given, model_info=core.model_info, parts=core.run.parts)))
        works[-1].load(stored, None)
        works[-1].tokens += 8
    works[1].store(trainer.state)
    assert trainer.state.num_input_tokens_seen == 1016
    assert trainer.state.total_flos == 6 * 1016 * weights_of(trainer)


def test_counts_of_a_run_that_another_trainer_started(backend, arguments):
    trainer = Trainer(backend.tagger(), arguments(**RUN), train_dataset=[])
    work, weights = part_of(trainer, "meter"), weights_of(trainer)
    work.load_from_other_trainer(Path(), {"total_flos": 6.0 * weights * 50, "num_input_tokens_seen": 70})
    assert (work.tokens, work.unpadded) == (70, 70)
    work.load_from_other_trainer(Path(), {"total_flos": 6.0 * weights * 50})  # by their operations
    assert work.tokens == 50


class Slow(list):
    """Samples that take a second each, by a clock that stands still otherwise."""

    def __init__(self, samples, clock):
        super().__init__(samples)
        self.clock = clock

    def __getitem__(self, i):
        self.clock[0] += 1.0
        return super().__getitem__(i)


def test_waiting_is_what_the_data_takes(backend, arguments, tmp_path, monkeypatch):
    """A step waits four seconds for its samples, and computes for twelve."""
    clock = [0.0]
    times = SimpleNamespace(perf_counter=lambda: clock[0], time=time.time, monotonic=time.monotonic)
    monkeypatch.setattr(loop, "time", times)
    monkeypatch.setattr(meter, "time", times)

    class Computes(Trainer):
        def training_step(self, *args, **kwargs):
            clock[0] += 12.0
            return super().training_step(*args, **kwargs)

    data = Slow(tagged([4] * 16), clock)
    Computes(backend.tagger(), arguments(**RUN), train_dataset=data).train()
    assert [line["data_wait"] for line in lines(tmp_path)] == [0.25, 0.25]
    assert [line["steps_per_second"] for line in lines(tmp_path)] == [0.062, 0.062]


def test_the_peak_of_a_device():
    assert peak_flops(5.0, "NVIDIA A100-SXM4-80GB", in_half=False) == 5.0
    assert peak_flops(None, "NVIDIA A100-SXM4-80GB", in_half=True) == 312e12
    assert peak_flops(None, "NVIDIA H100 PCIe", in_half=True) == 756e12
    assert peak_flops(None, "NVIDIA H100 80GB HBM3", in_half=True) == 989e12
    assert peak_flops(None, "NVIDIA L40S", in_half=True) == 362e12
    assert peak_flops(None, "NVIDIA L4", in_half=True) == 121e12
    assert peak_flops(None, "NVIDIA A100-SXM4-80GB", in_half=False) is None
    assert peak_flops(None, "something else", in_half=True) is peak_flops(None, None, in_half=True) is None
