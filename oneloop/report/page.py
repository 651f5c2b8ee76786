"""One self-contained HTML file with the style, the scripts and the data. It loads nothing from elsewhere.

Everything that comes from a run is data: it is in a block that browsers do not execute, and the scripts insert it as
text. The page's Content-Security-Policy allows only the scripts written here, by their checksums.
"""

import base64
import hashlib
import json
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

SCRIPTS = ("points.js", "chart.js", "tables.js", "page.js")
STYLES = ("uplot/uPlot.min.css", "page.css")


@cache
def asset(name: str) -> str:
    """A file in the folder `assets`."""
    return files(__package__).joinpath("assets", *name.split("/")).read_text(encoding="utf-8")


@cache
def _parts() -> tuple[str, str, str]:
    style = "\n".join(asset(name) for name in STYLES)
    own = '"use strict";\n(() => {\n' + "\n".join(asset(name) for name in SCRIPTS) + "\n})();\n"
    library = f"/*! uPlot\n\n{asset('uplot/LICENSE')}*/\n{asset('uplot/uPlot.iife.min.js')}"
    return style, library, own


def html(data: dict[str, Any], live: str | None = None) -> str:
    """The page for `data`; with `live`, the address that it polls for updates."""
    style, library, own = _parts()
    reach = "'none'" if live is None else "'self'"
    policy = (
        f"default-src 'none'; img-src data:; style-src {checksum(style)}; "
        f"script-src {checksum(library)} {checksum(own)}; connect-src {reach}; base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(str(data['title']))}</title>\n"
        f'<link rel="icon" href="data:,">\n<style>{style}</style>\n</head>\n<body>\n{asset("page.html")}'
        f'<script type="application/json" id="data">{encoded(data | {"live": live})}</script>\n'
        f"<script>{library}</script>\n<script>{own}</script>\n</body>\n</html>\n"
    )


def encoded(data: Any) -> str:
    """JSON that cannot close the script block it is embedded in, whatever text it contains."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text.encode("utf-8", "replace").decode("utf-8")


def checksum(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
