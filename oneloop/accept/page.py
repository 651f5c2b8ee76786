"""The page of a result: one HTML file to look at, with the JSON to paste."""

import json
from html import escape
from typing import Any

from ..report.page import STYLES, asset
from .running import number

_OWN_STYLE = ".card { margin-top: 1rem } pre { white-space: pre-wrap; overflow-wrap: anywhere }"


def html(result: dict[str, Any]) -> str:
    machine = result["machine"]
    devices = ", ".join(f"{count} x {kind}" for kind, count in machine["devices"].items())
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    facts = [
        ("framework", machine["framework"]),
        ("devices", devices),
        ("tried on", result["device"]),
        ("system", f"{machine['system']}, {machine['cores']} cores, Python {machine['python']}"),
        ("packages", packages),
        ("minutes", result["minutes"]),
    ]
    rows = "".join(_row(each) for each in result["checks"])
    table = "".join(f"<tr><th scope=row>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in facts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>oneloop accept</title>\n'
        f"<style>{asset(STYLES[1])}{_OWN_STYLE}</style>\n</head>\n<body>\n"
        f'<h1>{escape(headline(result))}</h1>\n<section class="card facts"><div class="scroll"><table>{table}</table>'
        '</div></section>\n<section class="card facts"><h2>Checks</h2><div class="scroll"><table><thead><tr>'
        f"<th>Check</th><th>Result</th><th>Seconds</th><th>More</th></tr></thead><tbody>{rows}</tbody></table></div>"
        f'</section>\n<section class="card facts"><h2>To paste</h2><pre>{escape(json.dumps(result))}</pre></section>\n'
        "</body>\n</html>\n"
    )


def headline(result: dict[str, Any]) -> str:
    """How many checks passed, failed and were not run."""
    states = [each["state"] for each in result["checks"]]
    counts = {state: states.count(state) for state in ("passed", "failed", "not run")}
    return f"{result['machine']['framework']} on {result['device']}: " + ", ".join(
        f"{n} {s}" for s, n in counts.items()
    )


def _row(outcome: dict[str, Any]) -> str:
    figures = "; ".join(f"{name} {number(value)}" for name, value in outcome["figures"].items())
    kind = {"passed": "finished", "failed": "failed"}.get(outcome["state"], "silent")
    badge = f'<span class="badge {kind}">{escape(outcome["state"])}</span>'
    texts = f"{escape(outcome['name'])}: {escape(outcome['title'])}", badge, f"{outcome['seconds']:.1f}"
    return "<tr>" + "".join(f"<td>{text}</td>" for text in (*texts, escape(outcome["why"] or figures))) + "</tr>"
