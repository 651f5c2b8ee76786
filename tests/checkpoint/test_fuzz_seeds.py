"""Changed checkpoints, with right checksums, are a CheckpointError or a run that goes on to its end.

Hypothesis chooses the changes here; fuzz.py looks for more, and what it found is kept in fuzz_seeds.
"""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from oneloop.checkpoint import store
from tests.backends.support import available, names
from tests.checkpoint import mutations
from tests.checkpoint.mutations import FILES, outcome, save

SEEDS = sorted((Path(__file__).parent / "fuzz_seeds").iterdir())


@pytest.fixture(scope="module", params=available(), ids=lambda kit: kit.name)
def saved(request, tmp_path_factory):
    return request.param, save(request.param, tmp_path_factory.mktemp("saved") / "run")


def attempt(saved, data):
    """What comes of a resume after the change that these bytes make."""
    kit, source = saved
    with TemporaryDirectory() as folder:
        checkpoint = shutil.copytree(source, Path(folder) / "run" / source.name)
        mutations.mutate(checkpoint, data)
        return "refused" if store.problems(checkpoint) else outcome(kit, checkpoint, checkpoint.parent)


@pytest.mark.parametrize("seed", SEEDS, ids=lambda path: path.name)
def test_a_change_that_was_found(saved, seed):
    assert attempt(saved, seed.read_bytes()) in ("refused", "resumed")


def changes(name):
    """Bytes that begin with the choice of a file."""
    return st.binary(min_size=4, max_size=24).map(lambda rest: bytes([FILES.index(name)]) + rest)


@pytest.mark.parametrize("name", FILES)
def test_some_changes_of_each_file(saved, name):
    if saved[0].name != names()[0]:
        pytest.skip("many of them on every framework: slow")
    look_for(saved, name, 12)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_many_changes_of_each_file(saved, name):
    look_for(saved, name, 400)


def look_for(saved, name, count):
    phases = [Phase.explicit, Phase.generate]  # a failure is not made smaller: each attempt is a run

    @settings(
        max_examples=count,
        deadline=None,
        derandomize=count < 100,
        database=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )
    @given(changes(name))
    def check(data):
        assert attempt(saved, data) in ("refused", "resumed")

    check()


def test_a_change_is_one_and_some_resume(saved):
    """The engine of all this does change files, and does not only break them."""
    results = {attempt(saved, bytes([number, 0, 0, other, 4, 9])) for number in range(7) for other in (1, 40)}
    assert results == {"refused", "resumed"}
