import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

from tests.recipes import kitchen


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A folder with tiny models and their data files."""
    folder = tmp_path_factory.mktemp("recipes")
    kitchen.models(folder)
    kitchen.data(folder)
    return folder


@pytest.fixture
def at(made, monkeypatch):
    """The same as the current directory."""
    monkeypatch.chdir(made)
    return made
