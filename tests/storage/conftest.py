import logging

import pytest

from tests.backends.support import available
from tests.storage.faulty import FaultyFileSystem
from tests.storage.support import URL, made


@pytest.fixture(params=available(), ids=lambda kit: kit.name)
def backend(request):
    return request.param


@pytest.fixture(autouse=True)
def quiet_again():
    yield
    logging.getLogger("oneloop").setLevel(logging.NOTSET)


@pytest.fixture
def storage(monkeypatch):
    """An empty faulty:// storage, without pauses between attempts."""
    monkeypatch.setattr("oneloop.storage.remote.FIRST_PAUSE", 0.0)
    FaultyFileSystem.reset()
    yield FaultyFileSystem
    FaultyFileSystem.reset()


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Call it for another machine, whose local directories are empty; 1 is the first."""

    def use(number=1):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"machine{number}"))
        return tmp_path / f"machine{number}"

    use()
    return use


@pytest.fixture
def make(machine, storage):
    """A Trainer that saves into the storage: make(kit, url, ...), with its arguments and those of the Trainer."""

    def make(kit=None, url=URL, **given):
        return made(url, kit, **given)

    return make
