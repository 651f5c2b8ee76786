"""A real browser without a window, and what its pages do behind the reader's back: errors and requests."""

import contextlib
import os
import shutil
from pathlib import Path

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DOCS = Path(__file__).parents[2] / "docs"
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def executable():
    """The browser of this machine, or None."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@contextlib.contextmanager
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=executable(), headless=True, args=FLAGS)
        try:
            yield opened
        finally:
            opened.close()


class Sight:
    """A page of the browser, open at an address."""

    def __init__(self, browser, address, width=1280, height=900, scheme="light", density=1):
        self.errors, self.requests = [], []
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, device_scale_factor=density
        )
        self.page = self.context.new_page()
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(str(address) if "://" in str(address) else Path(address).resolve().as_uri())
        self.until("window.oneloopPage !== undefined")

    def _hear(self, message):
        # Counting pixels is these tests' doing, not the page's.
        if message.type in ("error", "warning") and "willReadFrequently" not in message.text:
            self.errors.append(message.text)

    def until(self, expression, seconds=20):
        """Wait until an expression is true. Playwright's own way would need a page that allows eval."""
        for _ in range(20 * seconds):
            if self.page.evaluate(expression):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"after {seconds} s it is still not so: {expression}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()

    def drawn(self):
        """Titles of the charts, each with the number of its pixels that are not empty."""
        self.page.evaluate("window.oneloopPage.charts.forEach(c => { if (c.waits) { c.waits = false; c.draw(); } })")
        self.page.wait_for_timeout(60)  # uPlot draws in a microtask after it was made
        return self.page.evaluate(
            """() => Object.fromEntries(window.oneloopPage.charts.map((chart) => {
                const canvas = chart.plot.ctx.canvas;
                const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
                let count = 0;
                for (let i = 3; i < pixels.length; i += 4) count += pixels[i] > 0;
                return [chart.spec.title, count];
            }))"""
        )

    def pixels_of(self, title, color):
        """How many pixels of a chart have nearly that colour, given as a custom property's name."""
        return self.page.evaluate(
            """([title, name]) => {
                const chart = window.oneloopPage.charts.find((c) => c.spec.title === title);
                const wanted = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
                const parts = [1, 3, 5].map((i) => parseInt(wanted.slice(i, i + 2), 16));
                const canvas = chart.plot.ctx.canvas;
                const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
                let count = 0;
                for (let i = 0; i < pixels.length; i += 4)
                    count += pixels[i + 3] > 200 && parts.every((part, j) => Math.abs(pixels[i + j] - part) < 12);
                return count;
            }""",
            [title, color],
        )

    def overflow(self):
        """Pixels by which the page is wider than the window."""
        return self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")

    def outside(self):
        """Addresses asked for besides the page itself and data in it."""
        return [url for url in self.requests if not url.startswith(("data:", "blob:"))][1:]

    def picture(self, name):
        """A screenshot in docs/, when ONELOOP_SCREENSHOTS asks for it."""
        if os.environ.get("ONELOOP_SCREENSHOTS"):
            self.page.mouse.move(2, 2)
            self.page.screenshot(path=str(DOCS / name))
