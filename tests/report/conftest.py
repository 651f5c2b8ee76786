import pytest

from tests.report import browsing


@pytest.fixture(scope="session")
def chromium():
    """One browser for all tests of the page; scripts/setup installs it where it is missing and can be."""
    if browsing.executable() is None:
        pytest.skip("no Chromium on this machine, and scripts/setup could not install one (it needs root and apt)")
    with browsing.browser() as opened:
        yield opened


@pytest.fixture
def see(chromium):
    """Open a page in the browser: see(address, width=...). It ends with no error and no warning of the browser."""
    opened = []

    def open_page(address, **given):
        opened.append(browsing.Sight(chromium, address, **given))
        return opened[-1]

    yield open_page
    for sight in opened:
        sight.context.close()
    assert [error for sight in opened for error in sight.errors] == []
