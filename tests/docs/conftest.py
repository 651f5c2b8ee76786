"""The site, built once for all tests that look at it."""

import logging

import pytest

from tests.docs import pages


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """The site as `mkdocs build --strict` makes it, and what it warned of."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    said = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("mkdocs").addHandler(handler)
    target = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(pages.ROOT)
        config = load_config(str(pages.ROOT / "mkdocs.yml"), site_dir=str(target), strict=False)
        config.plugins.on_startup(command="build", dirty=False)
        build(config)
        config.plugins.on_shutdown()
    logging.getLogger("mkdocs").removeHandler(handler)
    return target, said
