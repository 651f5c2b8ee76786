"""A plan as one self-contained page, without scripts."""

from collections.abc import Iterable
from html import escape

from ..report.page import asset, checksum
from .results import TrainingPlan
from .text import CHOICES, HEADER, MOST_SHOWN, cells, choice_cells, effect_text, facts, search_remarks, search_title

STYLE = """
main { max-width: 70rem; margin: 0 auto; padding: 1.5rem; }
.scroll { overflow-x: auto; }
table.plan { border-collapse: collapse; margin: 0.5rem 0 1.5rem; }
table.plan th, table.plan td { text-align: left; padding: 0.25rem 0.9rem 0.25rem 0; vertical-align: top; }
table.plan.figures td:not(:first-child), table.plan.figures th:not(:first-child) { text-align: right; }
td.yes { color: #1a7f37; } td.no { color: #cf222e; }
"""


def render(plan: TrainingPlan, title: str) -> str:
    """The page as HTML; everything in it that comes from the run is escaped."""
    style = asset("page.css") + STYLE
    policy = f"default-src 'none'; img-src data:; style-src {checksum(style)}; base-uri 'none'; form-action 'none'"
    body = [f"<h1>{escape(title)}</h1>"]
    for name, rows in facts(plan):
        body.append(f"<h2>{escape(name)}</h2>{_table(rows)}")
    possible = [cells(each) for each in plan.strategies if each.refused is None]
    body.append("<h2>Memory of a process, and what it sends in an update</h2>")
    body.append(_table(possible, HEADER, "figures"))
    refused = [(each.name, f"refused, {each.refused}") for each in plan.strategies if each.refused is not None]
    body.append(_table(refused) if refused else "")
    if plan.search is not None:
        body.append(f"<h2>{escape(search_title(plan))}</h2>")
        body.append(_table(map(choice_cells, plan.search.choices[:MOST_SHOWN]), CHOICES, "figures"))
        body += [f"<p>{escape(line)}</p>" for line in search_remarks(plan.search)]
    if plan.arguments:
        body.append("<h2>Arguments</h2>")
        body.append(_table((each.argument, each.value, effect_text(each)) for each in plan.arguments))
    if plan.notes:
        body.append("<h2>Notes</h2>" + "".join(f"<p>{escape(note)}</p>" for note in plan.notes))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(title)}</title>\n<link rel="icon" href="data:,">\n<style>{style}</style>\n</head>\n'
        f"<body>\n<main>\n{chr(10).join(body)}\n</main>\n</body>\n</html>\n"
    )


def _table(rows: Iterable[Iterable[str]], header: Iterable[str] = (), kind: str = "") -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    lines = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    top = f"<thead><tr>{head}</tr></thead>" if head else ""
    return f'<div class="scroll"><table class="plan {kind}">{top}<tbody>{lines}</tbody></table></div>'


def _cell(text: str) -> str:
    kind = f' class="{text}"' if text in ("yes", "no") else ""
    return f"<td{kind}>{escape(text)}</td>"
