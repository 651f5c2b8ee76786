"""The site builds without a warning, and what it links to is there. See scripts/docs."""

import html
import re

from tests.docs import pages, site
from tests.structure import ownership


def test_it_builds_without_a_warning(built):
    """Links, anchors, pages that are not in the navigation, names in the API reference."""
    assert built[1] == []


def test_no_link_is_broken(built):
    assert site.broken_links(built[0]) == []


def test_nothing_is_loaded_from_other_servers(built):
    assert site.fetched_elsewhere(built[0]) == []


def test_files_are_included(built, tmp_path):
    assert site.included_nowhere(built[0]) == []
    (tmp_path / "index.html").write_text("<pre>--8&lt;-- &quot;examples/lora.py&quot;</pre>")
    (tmp_path / "formatted.html").write_text("<pre>--8 &lt; --&quot;examples/lora.py&quot;</pre>")
    assert site.included_nowhere(tmp_path) == ["formatted.html", "index.html"]


def test_every_page_is_in_the_search_index(built):
    index = (built[0] / "search" / "search_index.json").read_text(encoding="utf-8")
    for name in pages.names():
        address = re.sub(r"(^|/)index\.md$", r"\1", name)
        address = f"{address.removesuffix('.md')}/" if address.endswith(".md") else address
        assert f'"location":"{address}"' in index, name


def test_examples_show_their_code(built):
    """The page includes the files; a formatter once changed the line that does."""
    page = re.sub(r"<[^>]+>", "", (built[0] / "examples" / "index.html").read_text(encoding="utf-8"))
    for path in sorted((pages.ROOT / "examples").glob("*.py")):
        last = path.read_text(encoding="utf-8").rstrip().splitlines()[-1].strip()
        assert last in html.unescape(page), path.name
    assert "--8" not in page


def test_the_reference_shows_parameters_and_methods(built):
    page = (built[0] / "api" / "trainer" / "index.html").read_text(encoding="utf-8")
    for name in ("train", "evaluate", "predict", "save_model", "compute_loss"):
        assert f'id="oneloop.trainer.trainer.Trainer.{name}"' in page
    for name in ownership.public_methods(("Trainer",)):
        assert f'id="oneloop.trainer.trainer.Trainer.{name}"' in page, "put it into a group of docs/api/trainer.md"
    for name in ownership.public_methods(("MetricsMethods",)):
        assert f'id="oneloop.trainer.trainer.Trainer.{name}"' in page, "see the options in docs/api/trainer.md"
    for part in ("integrations.hub.methods.HubMethods", "integrations.search.methods.SearchMethods"):
        for name in ownership.public_methods((part.rpartition(".")[2],)):
            assert f'id="oneloop.{part}.{name}"' in page


def test_what_is_wrong_with_a_site_is_found(tmp_path):
    (tmp_path / "index.html").write_text(
        '<script src="https://cdn.example/x.js"></script><link rel="stylesheet" href="style.css">'
        '<link rel="canonical" href="https://example/"><a href="gone.html">a</a><a href="#there">b</a>'
        '<a href="#nowhere">c</a><p id="there"></p><img src="//elsewhere/picture.png"><a href="https://example">d</a>'
    )
    (tmp_path / "style.css").write_text('@font-face {src: url("https://fonts.example/a.woff2"), url(b.woff2)}')
    assert site.fetched_elsewhere(tmp_path) == [
        "index.html: https://cdn.example/x.js",
        "index.html: //elsewhere/picture.png",
        "style.css: https://fonts.example/a.woff2",
    ]
    assert site.broken_links(tmp_path) == ["index.html: gone.html", "index.html: #nowhere"]
    assert site.main([str(tmp_path)]) == 1
