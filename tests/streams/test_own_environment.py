"""MDS and litdata in one process, where they are installed: bash scripts/streams."""

from importlib.util import find_spec
from itertools import chain

import pytest

from tests.streams import formats, job
from tests.streams.test_formats import compare

NAMES = [
    pytest.param("mds", marks=pytest.mark.skipif(not find_spec("streaming"), reason="bash scripts/streams has it")),
    pytest.param("litdata", marks=pytest.mark.skipif(not find_spec("litdata"), reason="bash scripts/streams has it")),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("step", [4, 16])
def test_a_resumed_run_is_the_run_without_an_interruption(name, workers, step, tmp_path, caplog):
    compare(name, tmp_path, step, workers=workers)
    assert "again" not in caplog.text.replace("reads another", "")


@pytest.mark.parametrize("name", NAMES)
def test_an_epoch_has_each_sample_once_and_epochs_differ(name, tmp_path):
    job.run(name, tmp_path / "data", tmp_path / "out", steps=24)
    seen = job.samples(tmp_path / "out")
    epochs = [list(chain(*(seen[step] for step in range(start, start + 12)))) for start in (1, 13)]
    assert all(sorted(epoch) == list(range(formats.SAMPLES)) for epoch in epochs) and epochs[0] != epochs[1]
