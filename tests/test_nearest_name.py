"""The name that was probably meant, for the messages about unknown options and keys."""

import pytest

from oneloop import TrainingArguments
from oneloop.errors import UnknownArgumentError
from oneloop.parser import ArgumentParser
from oneloop.parser.options import nearest

NAMES = ["learning_rate", "dataloader_num_workers", "num_workers_of_tests", "lr_scheduler_type", "seed"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("learning_rte", "learning_rate"),
        ("workers", "num_workers_of_tests"),  # far from both, letter by letter: the shortest that has it in it
        ("scheduler", "lr_scheduler_type"),
        ("sed", "seed"),
        ("lr_", None),  # too short to be the name of anything that it is in
        ("quux", None),
        ("", None),
    ],
)
def test_the_nearest_name(name, meant):
    assert nearest(name, NAMES) == meant and nearest(name, []) is None


@pytest.mark.parametrize(
    ("key", "meant"), [("minutes", "save_interval_minutes"), ("persistent", "dataloader_persistent_workers")]
)
def test_a_part_of_the_name_of_an_argument(key, meant, tmp_path, capsys):
    parser = ArgumentParser(TrainingArguments)
    with pytest.raises(UnknownArgumentError, match=rf"unknown key '{key}' \(did you mean '{meant}'\?\)"):
        parser.parse_dict({key: 1, "output_dir": str(tmp_path)})
    with pytest.raises(SystemExit):
        parser.parse_args_into_dataclasses([f"--{key}", "1", "--output_dir", str(tmp_path)], look_for_args_file=False)
    assert f"unknown option --{key} (did you mean --{meant}?)" in " ".join(capsys.readouterr().err.split())
