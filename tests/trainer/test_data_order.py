"""data_order="transformers" on every framework; beside transformers itself: tests/backends/torch."""

import pytest

from oneloop import Trainer
from oneloop.data.torch_randperm import randperm
from oneloop.errors import UnsupportedError
from tests.backends.support import available, rows, same_bytes

RUN = {"per_device_train_batch_size": 4, "learning_rate": 0.1, "optim": "sgd", "data_order": "transformers", "seed": 7}
RUN |= {"num_train_epochs": 2, "remove_unused_columns": False}


class Seen(list):
    """Samples that note which of them were asked for."""

    def __init__(self, samples):
        super().__init__(samples)
        self.indices = []

    def __getitem__(self, index):
        self.indices.append(index)
        return super().__getitem__(index)


def test_the_samples_are_those_of_torchs_permutations(backend, trained):
    data = Seen(rows(22))
    trained(backend.classifier(), data, data_seed=3, **RUN)
    assert data.indices == [*randperm(22, 3).tolist(), *randperm(22, 4).tolist()]


@pytest.mark.parametrize("step", [2, 6, 8])
def test_a_resume_goes_on_at_its_position(backend, trained, tmp_path, step):
    run = RUN | {"save_strategy": "steps", "save_steps": step}
    whole, again = backend.classifier(dropout=0.3), backend.classifier(dropout=0.3)
    trained(whole, rows(22), output_dir=tmp_path / "whole", **run)
    data = Seen(rows(22))
    trained(again, data, output_dir=tmp_path / "again", resume=tmp_path / "whole" / f"checkpoint-{step}", **run)
    order = [*randperm(22, 7).tolist(), *randperm(22, 8).tolist()]
    assert data.indices == order[min(4 * step, 22) if step <= 6 else 22 + 4 * (step - 6) :]
    assert same_bytes(backend.weights(whole), backend.weights(again))


def test_a_change_of_the_order_is_told(backend, trained, tmp_path, caplog):
    run = RUN | {"save_strategy": "steps", "save_steps": 2}
    trained(backend.classifier(), rows(22), **run | {"data_order": "oneloop"})
    trained(backend.classifier(), rows(22), resume=tmp_path / "out" / "checkpoint-2", **run)
    assert "data_order was oneloop, is transformers" in caplog.text


def test_lengths_need_torchs_generator(backend, arguments):
    args = arguments(**RUN | {"group_by_length": True, "length_column_name": "labels"})
    if backend.name == "torch":
        Trainer(backend.classifier(), args, train_dataset=rows(22)).train()
        return
    with pytest.raises(
        UnsupportedError, match="data_order='transformers' cannot be used on .* torch's default generator"
    ):
        Trainer(backend.classifier(), args, train_dataset=rows(22))


def test_a_run_crosses_frameworks_with_the_same_samples(backend, trained, tmp_path):
    others = [kit for kit in available() if kit.name != backend.name]
    if not others:
        pytest.skip("needs two frameworks")
    run = RUN | {"save_strategy": "steps", "save_steps": 2}
    trained(others[0].classifier(), rows(22), **run)
    data = Seen(rows(22))
    trained(backend.classifier(), data, resume=tmp_path / "out" / "checkpoint-2", **run)
    assert data.indices == [*randperm(22, 7).tolist(), *randperm(22, 8).tolist()][8:]
