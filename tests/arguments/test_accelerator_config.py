"""accelerator_config reads back as an object, whatever it was given as."""

import json

import pytest

from oneloop import AcceleratorConfig, Trainer, TrainingArguments
from oneloop.errors import ArgumentError
from tests.backends.support import rows
from tests.internals import backend_of


def test_given_nothing_it_has_the_defaults_and_its_own_object():
    first, second = TrainingArguments("out"), TrainingArguments("out")
    assert first.accelerator_config == AcceleratorConfig()
    assert (first.accelerator_config.split_batches, first.accelerator_config.even_batches) == (False, True)
    assert first.accelerator_config.dispatch_batches is None
    first.accelerator_config.dispatch_batches = False
    assert second.accelerator_config.dispatch_batches is None


@pytest.mark.parametrize("form", ["dict", "json", "file", "object"])
def test_every_form_reaches_the_fields(form, tmp_path):
    given = {"dispatch_batches": False, "non_blocking": True}
    (tmp_path / "config.json").write_text(json.dumps(given))
    forms = {
        "dict": given, "json": json.dumps(given), "file": str(tmp_path / "config.json"),
        "object": AcceleratorConfig(**given),
    }  # fmt: skip
    config = TrainingArguments("out", accelerator_config=forms[form]).accelerator_config
    assert config == AcceleratorConfig(dispatch_batches=False, non_blocking=True)
    assert config.to_dict() == {**AcceleratorConfig().to_dict(), **given}


@pytest.mark.parametrize(
    "given, expected", [({}, True), ({"non_blocking": True}, True), ({"non_blocking": False}, False)]
)
def test_batches_are_moved_to_the_device_as_it_says(backend, arguments, monkeypatch, given, expected):
    asked, model = [], backend.classifier()
    trainer = Trainer(model, arguments(max_steps=1, accelerator_config=given), train_dataset=rows(4))
    devices = backend_of(trainer).devices
    move = devices.move

    def moved(batch, device, non_blocking=True):
        asked.append(non_blocking)
        return move(batch, device, non_blocking)

    monkeypatch.setattr(devices, "move", moved)
    trainer.train()
    assert set(asked) == {expected}


def test_from_json_file(tmp_path):
    (tmp_path / "config.json").write_text('{"even_batches": false}')
    assert AcceleratorConfig.from_json_file(tmp_path / "config.json").even_batches is False
    (tmp_path / "config.json").write_text('{"evenness": false}')
    with pytest.raises(ArgumentError, match="even_batches"):
        AcceleratorConfig.from_json_file(tmp_path / "config.json")


def test_pop_gives_the_value_and_leaves_the_default():
    config = AcceleratorConfig(dispatch_batches=False)
    assert config.pop("dispatch_batches") is False
    assert config.dispatch_batches is None
    assert config.pop("nothing", 3) == 3


def test_what_is_set_later_is_kept_and_checked_by_the_trainer(backend, trained):
    from tests.backends.support import rows

    args = TrainingArguments("out", device="cpu")
    args.accelerator_config.split_batches = True
    args.validate()
    assert args.accelerator_config.split_batches is True
    with pytest.raises(ValueError, match="split_batches"):
        trained(backend.classifier(), rows(8), accelerator_config=args.accelerator_config, max_steps=1)


def test_it_is_stored_only_if_it_says_something():
    args = TrainingArguments("out")
    assert args.to_dict()["accelerator_config"] is None
    args.accelerator_config.dispatch_batches = False
    again = TrainingArguments.from_dict(args.to_dict())
    assert again.accelerator_config == args.accelerator_config
