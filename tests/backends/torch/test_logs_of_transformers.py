"""Logs beside those of transformers' Trainer, which runs the same model on the same data."""

import pytest

transformers = pytest.importorskip("transformers")

import torch  # noqa: E402

import oneloop  # noqa: E402
from tests.backends.kits.torch_kit import Kit  # noqa: E402
from tests.backends.support import rows  # noqa: E402

RUN = {"per_device_train_batch_size": 4, "logging_steps": 1, "report_to": "none", "save_strategy": "no"}
RUN |= {"disable_tqdm": True, "use_cpu": True, "gradient_accumulation_steps": 2, "remove_unused_columns": False}


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(rows(24))


def history(library, folder, data, **given):
    """Of a run on a library's Trainer."""
    args = library.TrainingArguments(output_dir=str(folder), **RUN | given)
    trainer = library.Trainer(Kit().classifier(), args, train_dataset=data, eval_dataset=rows(4, seed=1))
    trainer.train()
    return trainer.state.log_history


CASES = {
    "an update with a rest": (rows(18), {"num_train_epochs": 3, "eval_strategy": "epoch"}),
    "cut short": (rows(18), {"num_train_epochs": 2.5}),
    "max_steps": (rows(18), {"max_steps": 8, "eval_strategy": "steps", "eval_steps": 4}),
    "no rest": (rows(16), {"num_train_epochs": 2}),
    "no length": (Stream(), {"max_steps": 7}),
    "no length, logs by epochs": (Stream(), {"max_steps": 7, "logging_strategy": "epoch"}),
}


@pytest.mark.parametrize("case", CASES)
def test_epochs_and_keys_are_those_of_transformers(tmp_path, case):
    data, given = CASES[case]
    ours, theirs = (history(library, tmp_path, data, **given) for library in (oneloop, transformers))
    assert [(entry["step"], entry["epoch"]) for entry in ours] == [(entry["step"], entry["epoch"]) for entry in theirs]
    assert [entry.keys() for entry in ours] == [entry.keys() for entry in theirs]
