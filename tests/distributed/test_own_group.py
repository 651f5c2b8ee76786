"""A process group that the script has created without the variables of a launcher."""

from pathlib import Path

import pytest

from tests.distributed.launch import results, run

GROUP_JOB = Path(__file__).with_name("group_job.py")
pytest.importorskip("torch")


def test_rank_and_size_are_those_of_the_scripts_group(tmp_path):
    found = {}
    for group in ("own", "launched"):
        folder = tmp_path / group
        folder.mkdir()
        run(2, folder, group, script=GROUP_JOB)
        found[group] = results(folder, 2)
        assert [each["world"] for each in found[group]] == [[0, 2], [1, 2]]
        assert all(each["kept"] for each in found[group])
    assert found["own"] == found["launched"]
