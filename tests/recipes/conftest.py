from importlib.util import find_spec

import pytest

if not all(map(find_spec, ("torch", "transformers", "tokenizers"))):
    collect_ignore_glob = ["test_*.py"]  # they train models of transformers


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A folder with tiny models and their data files."""
    from tests.recipes import kitchen

    folder = tmp_path_factory.mktemp("recipes")
    kitchen.models(folder)
    kitchen.data(folder)
    return folder


@pytest.fixture
def at(made, monkeypatch):
    """The same as the current directory."""
    monkeypatch.chdir(made)
    return made
