"""A comparison as text, as plain data, and as a page."""

from collections.abc import Iterable
from html import escape
from typing import Any

from ..backends._common.helpers import preview
from ..report.page import asset, checksum
from .comparison import Comparison, Finding, Pair

STYLE = """
main { max-width: 60rem; margin: 0 auto; padding: 1.5rem; }
table.diff { border-collapse: collapse; margin: 0.5rem 0 1.5rem; }
table.diff th, table.diff td { text-align: left; padding: 0.25rem 0.9rem 0.25rem 0; vertical-align: top; }
p.differs { font-size: 1.2rem; color: #cf222e; } p.agrees { font-size: 1.2rem; color: #1a7f37; }
"""


def to_text(found: Comparison) -> str:
    """A few lines for a terminal."""
    lines = [f"A: {found.names[0]} ({found.frameworks[0]})", f"B: {found.names[1]} ({found.frameworks[1]})"]
    lines += [headline(found)]
    if found.first is not None:
        lines += [f"  {line}" for line in details(found.first)]
        lines += [f"  hint: {hint}" for hint in found.first.hints]
    lines.append(agreement(found))
    for name, only in zip("AB", found.only, strict=True):
        if only:
            lines.append(
                f"Only in {name}, and not compared: {preview(only)}. "
                "Give --map NAME_IN_A=NAME_IN_B for names that differ."
            )
    return "\n".join(lines + found.notes)


def headline(found: Comparison) -> str:
    if found.first is None:
        where = " in what both have" if any(found.only) else ""
        return f"No difference{where} in {_steps(found.steps)} beyond what rounding explains."
    first = found.first
    return f"First difference: step {first.step}, {first.kind}, in {first.place}."


def details(first: Finding) -> list[str]:
    lines = [first.what]
    if first.pair is not None:
        lines.append(first.pair.reason or _distance(first.pair))
    if first.others > 0:
        lines.append(f"{first.others} more of this kind differ.")
    return lines


def _distance(pair: Pair) -> str:
    return (
        f"norms {pair.a.norm:.7g} and {pair.b.norm:.7g}; apart by {pair.distance:.3g}, of which rounding explains "
        f"{pair.expected:.3g}"
    )


def agreement(found: Comparison) -> str:
    if not found.agreed:
        return "Nothing was compared before it."
    counts = ", ".join(f"{count} {title}" for title, count in found.agreed.items())
    words = "Agreed" if found.first is None else "Agreed before it"
    return f"{words}: {counts}."


def _steps(steps: list[int]) -> str:
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]} ({len(steps)} recorded)"


def to_dict(found: Comparison) -> dict[str, Any]:
    """Plain data, for --json."""
    first = found.first
    return {
        "agrees": found.agrees,
        "names": list(found.names),
        "frameworks": list(found.frameworks),
        "steps": found.steps,
        "first": None if first is None else _finding(first),
        "agreed": found.agreed,
        "only_in": {"a": found.only[0], "b": found.only[1]},
        "notes": found.notes,
    }


def _finding(first: Finding) -> dict[str, Any]:
    pair = first.pair
    numbers = (
        {}
        if pair is None
        else {
            "norms": [pair.a.norm, pair.b.norm],
            "distance": pair.distance,
            "rounding": pair.expected,
            "reason": pair.reason,
        }
    )
    return {
        "step": first.step,
        "kind": first.kind,
        "module": first.module,
        "layer": first.layer,
        "what": first.what,
        "others": first.others,
        "hints": list(first.hints),
        **numbers,
    }


def to_html(found: Comparison) -> str:
    """One self-contained page, without scripts; everything that comes from a run is escaped."""
    style = asset("page.css") + STYLE
    policy = f"default-src 'none'; img-src data:; style-src {checksum(style)}; base-uri 'none'; form-action 'none'"
    rows = [("A", f"{found.names[0]} ({found.frameworks[0]})"), ("B", f"{found.names[1]} ({found.frameworks[1]})")]
    body = [
        "<h1>Where two runs part</h1>",
        _table(rows),
        f'<p class="{"agrees" if found.agrees else "differs"}">{escape(headline(found))}</p>',
    ]
    if found.first is not None:
        body += [f"<p>{escape(line)}</p>" for line in details(found.first)]
        body += [f"<p><strong>Hint:</strong> {escape(hint)}</p>" for hint in found.first.hints]
    body += ["<h2>Agreed</h2>", _table((title, str(count)) for title, count in found.agreed.items())]
    for name, only in zip("AB", found.only, strict=True):
        if only:
            body.append(f"<h2>Only in {name}, and not compared</h2>{_table((each,) for each in only)}")
    body += [f"<p>{escape(note)}</p>" for note in found.notes]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>oneloop diff</title>\n<link rel="icon" href="data:,">\n<style>{style}</style>\n</head>\n'
        f"<body>\n<main>\n{chr(10).join(body)}\n</main>\n</body>\n</html>\n"
    )


def _table(rows: Iterable[Iterable[str]]) -> str:
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<table class="diff"><tbody>{lines}</tbody></table>'
