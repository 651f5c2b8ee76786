import pytest

from tests.state.children import Forks


@pytest.fixture(scope="session")
def forks():
    """Children that start quickly; see children.Forks."""
    server = Forks()
    yield server
    server.close()
