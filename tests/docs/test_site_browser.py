"""The site in a real browser, without a network: search in both languages, pictures, phones, dark mode."""

import os
import re
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.report import browsing

pytestmark = pytest.mark.slow


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address(built):
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(built[0])))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def chromium():
    if browsing.executable() is None:
        pytest.skip("no Chromium on this machine")
    with browsing.browser() as opened:
        yield opened


@pytest.fixture
def visit(chromium, address):
    """Open a page of the site; nothing outside of it may be asked for, and nothing may fail."""
    contexts, wrong = [], []

    def open_page(path="/", width=1280, scheme="light"):
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: wrong.append(request.url) if _is_outside(request.url, address) else None)
        page.on("response", lambda response: wrong.append(response.url) if response.status >= 400 else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(address + path)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


def _is_outside(url, address):
    return not url.startswith((address, "data:", "blob:"))


def _keep(page, name):
    """With ONELOOP_SCREENSHOTS=folder, a picture to look at."""
    if folder := os.environ.get("ONELOOP_SCREENSHOTS"):
        page.screenshot(path=os.path.join(folder, name))


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("early stopping", "Early stopping and the best model"),
        ("gradient_accumulation_steps", "Arguments"),
        ("the model returned no loss", "Troubleshooting"),
        ("断点续训", "快速上手"),
        ("检查点", "安装"),
    ],
)
def test_search_finds(visit, words, found):
    page = visit()
    box = page.locator("input[data-md-component=search-query]")
    box.click()
    page.get_by_text("Type to start searching").wait_for(state="visible")  # the index has been loaded
    box.fill(words)
    box.press("End")  # it listens to keys
    shown = re.compile("\u200b?".join(found)) if found > "\u4e00" else found  # Chinese has zero-width spaces there
    page.locator(".md-search-result__item").filter(has_text=shown).first.wait_for(state="visible")
    page.wait_for_timeout(300)
    _keep(page, f"site-search-{found.split()[0]}.png")


@pytest.mark.parametrize(
    "path", ["/", "/getting-started/", "/zh/getting-started/", "/api/trainer/", "/troubleshooting/"]
)
def test_pages_fit_a_phone(visit, path):
    page = visit(path, width=390)
    page.wait_for_load_state("networkidle")
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    _keep(page, f"site-phone{path.replace('/', '-')}.png")


def test_pictures_are_shown(visit):
    page = visit("/getting-started/")
    page.wait_for_load_state("networkidle")
    widths = page.evaluate("[...document.querySelectorAll('article img')].map(each => each.naturalWidth)")
    assert widths and min(widths) > 0
    _keep(page, "site-getting-started.png")


CONTRAST = """() => {
  const linear = (c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const parts = (color) => color.match(/[\\d.]+/g).map(Number);
  const shares = [0.2126, 0.7152, 0.0722];
  const light = (color) => parts(color).slice(0, 3).reduce((sum, c, i) => sum + linear(c / 255) * shares[i], 0);
  const behind = (each) => {
    const color = getComputedStyle(each).backgroundColor;
    return parts(color)[3] === 0 && each.parentElement ? behind(each.parentElement) : color;
  };
  return [...document.querySelectorAll(".md-button")].map((each) => {
    const [a, b] = [light(getComputedStyle(each).color), light(behind(each))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_buttons_can_be_read(visit, scheme):
    contrasts = visit(scheme=scheme).evaluate(CONTRAST)
    assert len(contrasts) == 3 and min(contrasts) >= 4.5, contrasts


def test_dark_mode_follows_the_system(visit):
    shades = {
        scheme: visit(scheme=scheme).evaluate("getComputedStyle(document.body).backgroundColor")
        for scheme in ("light", "dark")
    }
    assert shades["light"] != shades["dark"]
    _keep(visit("/api/trainer/", scheme="dark"), "site-dark.png")
    _keep(visit("/"), "site-home.png")
