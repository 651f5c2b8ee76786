"""Checks a built site: `python -m tests.docs.site DIRECTORY`."""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser fetches by itself; links that a reader may click are no part of it.
FETCHED = {
    **dict.fromkeys(("audio", "embed", "iframe", "img", "input", "script", "source", "video"), ("src", "srcset")),
    "link": ("href",),
    "object": ("data",),
}
NOT_FETCHED = {"canonical", "next", "prev", "edit", "alternate"}  # rel of <link>


class Page(HTMLParser):
    """The addresses of a page: what it fetches, where it links to, and its anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = {"", "__skip"}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and NOT_FETCHED & set(given.get("rel", "").split()):
            return
        self.fetched += [given[name] for name in FETCHED.get(tag, ()) if name in given]


def is_elsewhere(address: str) -> bool:
    return bool(urlsplit(address).netloc)


def fetched_elsewhere(site: Path) -> list[str]:
    """Scripts, styles, fonts and pictures that pages load from other servers."""
    found = [
        f"{path.relative_to(site)}: {address}"
        for path in sorted(site.rglob("*.html"))
        for address in Page(path).fetched
        if is_elsewhere(address)
    ]
    for path in sorted(site.rglob("*.css")):
        addresses = re.findall(r"""(?:@import\s+|url\()\s*["']?([^"')]+)""", path.read_text(encoding="utf-8"))
        found += [f"{path.relative_to(site)}: {address}" for address in addresses if is_elsewhere(address)]
    return found


def broken_links(site: Path) -> list[str]:
    """Links and files inside the site that are not there, and anchors that a page has not."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links are from the root of the server
            continue
        for address in [*page.links, *page.fetched]:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
            target = target / "index.html" if target.is_dir() else target
            known = pages.get(target) or pages.get(Path(str(target)))
            if not target.is_file() or (known and unquote(parts.fragment) not in known.anchors):
                found.append(f"{path.relative_to(site)}: {address}")
    return found


def included_nowhere(site: Path) -> list[str]:
    """Pages that show the directive that includes a file, instead of the file."""
    directive = re.compile(r"-+8\s*&lt;\s*-+")
    pages = sorted(site.rglob("*.html"))
    return [str(path.relative_to(site)) for path in pages if directive.search(path.read_text(encoding="utf-8"))]


def main(words: list[str]) -> int:
    site = Path(words[0]).resolve()
    problems = [f"loads from elsewhere: {each}" for each in fetched_elsewhere(site)]
    problems += [f"file not included: {each}" for each in included_nowhere(site)]
    problems += [f"broken link: {each}" for each in broken_links(site)]
    print(
        "\n".join(problems) or f"{site.name}: {len(list(site.rglob('*.html')))} pages, no broken link, nothing external"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
