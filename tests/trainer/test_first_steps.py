"""What a newcomer meets first: names that other libraries use, a folder to resume from, the line at the start."""

import pytest

from oneloop import Trainer, TrainingArguments
from oneloop.errors import UnknownArgumentError
from tests.backends.support import rows


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("batch_size", "did you mean 'per_device_train_batch_size'?"),
        ("epochs", "did you mean 'num_train_epochs'?"),
        ("lr", "did you mean 'learning_rate'?"),
        ("gpus", "torchrun --nproc-per-node"),
        ("precision", "bf16=True or fp16=True"),
        ("accumulate_grad_batches", "did you mean 'gradient_accumulation_steps'?"),
        ("patience", "EarlyStoppingCallback"),
        ("learning_rat", "did you mean 'learning_rate'?"),
    ],
)
def test_arguments_by_the_names_of_other_libraries(name, hint):
    with pytest.raises(UnknownArgumentError) as error:
        TrainingArguments("out", **{name: 1})
    assert hint in str(error.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("training_dataset", "did you mean 'train_dataset'?"),
        ("collate_fn", "did you mean 'data_collator'?"),
        ("compute_metric", "did you mean 'compute_metrics'?"),
        ("learning_rate", "it is an argument of TrainingArguments"),
        ("nothing_like_it", "it has model, "),
    ],
)
def test_parameters_of_the_trainer_by_other_names(backend, arguments, name, hint):
    with pytest.raises(UnknownArgumentError) as error:
        Trainer(backend.classifier(), arguments(), **{name: None})
    assert isinstance(error.value, TypeError) and hint in str(error.value)


def test_the_output_directory_stands_for_its_newest_checkpoint(backend, trained, tmp_path):
    given = {"save_strategy": "steps", "save_steps": 2, "per_device_train_batch_size": 4}
    trained(backend.classifier(), rows(24), max_steps=4, output_dir=tmp_path / "run", **given)
    again = trained(
        backend.classifier(), rows(24), max_steps=6, output_dir=tmp_path / "again", resume=tmp_path / "run", **given
    )
    assert [entry["step"] for entry in again.state.log_history] == [6]
    assert again.state.global_step == 6


def test_what_is_trained_on_is_said_once(backend, trained, capsys, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    trained(backend.classifier(), rows(16), max_steps=2, per_device_train_batch_size=4, disable_tqdm=False)
    said = capsys.readouterr()
    assert (said.out + said.err).count("16 samples, 4 per update (4 x 1 accumulated), 2 steps") == 1
    trained(backend.classifier(), rows(16), max_steps=2, disable_tqdm=True)
    said = capsys.readouterr()
    assert (said.out + said.err).count("16 samples, 8 per update (8 x 1 accumulated), 2 steps") == 1
