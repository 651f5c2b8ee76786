"""The run as one HTML file: curves as SVG, no script, nothing fetched, light or dark as the reader's system is."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from .history import Chart, Line, Run

WIDTH, HEIGHT = 560, 260
LEFT, RIGHT, TOP, BOTTOM = 56, 20, 12, 28  # margins of the plotted area, in the units of the drawing
MOST_POINTS = 1000  # a curve has no more; beyond it the eye sees no difference and the file only grows

STYLE = """
:root { color-scheme: light dark; --paper: #f6f7f9; --card: #fff; --ink: #1f2328; --faint: #656d76; --grid: #e4e8ec;
  --c0: #4269d0; --c1: #e5533d; --c2: #2f8f3f; --c3: #b98900; --c4: #8a4bdb; --c5: #2f9c86; }
@media (prefers-color-scheme: dark) { :root { --paper: #0f1318; --card: #171c23; --ink: #e6e9ed; --faint: #929ba6;
  --grid: #2a313a; --c0: #7a9bff; --c1: #ff8a75; --c2: #5fcb72; --c3: #f0c14b; --c4: #bd93f9; --c5: #6cd3bd; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 24px 16px 48px; max-width: 1220px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", sans-serif; }
h1 { font-size: 22px; margin: 0 0 16px; overflow-wrap: anywhere; } h2 { font-size: 15px; margin: 0 0 8px; }
.cards { display: grid; gap: 16px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr));
  align-items: start; }
section { padding: 14px 16px; background: var(--card); border: 1px solid var(--grid);
  border-radius: 10px; min-width: 0; }
svg { display: block; width: 100%; height: auto; } svg text { fill: var(--faint); font-size: 11px; }
svg .grid { stroke: var(--grid); } svg path { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.legend { color: var(--faint); font-size: 13px; } .legend span { margin-right: 14px; white-space: nowrap; }
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 5px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
td { padding: 3px 0; border-top: 1px solid var(--grid); } tr:first-child td { border-top: 0; }
td + td { padding-left: 16px; text-align: right; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
"""


def write(run: Run, path: Path, arguments: Mapping[str, Any]) -> Path:
    """Writes the page of a run, with a table of `arguments` when there are any."""
    charts = "".join(f"<section><h2>{escape(chart.title)}</h2>{_chart(chart)}</section>" for chart in run.charts())
    tables = _table("last figures", {name: _number(value) for name, value in run.final_figures().items()})
    tables += _table("arguments that differ from the defaults", {name: str(value) for name, value in arguments.items()})
    path.write_text(
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(run.title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>\n'
        f"<body><h1>{escape(run.title)}</h1>\n"
        f'<div class="cards">{charts or "<section>nothing was logged</section>"}{tables}</div></body></html>\n',
        encoding="utf-8",
    )
    return path


def _table(title: str, rows: Mapping[str, str]) -> str:
    if not rows:
        return ""
    body = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in rows.items())
    return f"<section><h2>{escape(title)}</h2><table>{body}</table></section>"


def _chart(chart: Chart) -> str:
    """One SVG: grid, labels and curves, all placed by two linear scales."""
    values = [value for line in chart.lines for value in line.values if math.isfinite(value)]
    steps = [step for line in chart.lines for step in line.steps]
    if not values:
        return "<p>no finite value was logged</p>"
    y_ticks = _ticks(min([0.0, *values] if chart.zero else values), max(values))
    x_ticks = _ticks(min(steps), max(steps))
    # The vertical axis ends on ticks; the horizontal one where the curves do.
    x = _scale(min(steps), max(steps), LEFT, WIDTH - RIGHT)
    y = _scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    parts = [
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
        f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{_number(tick)}</text>'
        for tick in y_ticks
    ]
    parts += [
        f'<text x="{x(tick):.1f}" y="{HEIGHT - 8}" text-anchor="middle">{_number(tick)}</text>'
        for tick in x_ticks
        if min(steps) <= tick <= max(steps)
    ]
    parts += [_curve(line, f"var(--c{i % 6})", x, y) for i, line in enumerate(chart.lines)]
    legend = (
        ""
        if len(chart.lines) == 1
        else "".join(
            f'<span><i style="background:var(--c{i % 6})"></i>{escape(line.name)}</span>'
            for i, line in enumerate(chart.lines)
        )
    )
    label = escape(f"{chart.title} by step", quote=True)
    return (
        f'<div class="legend">{legend}</div>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
    )


def _curve(line: Line, color: str, x: Any, y: Any) -> str:
    """A path that breaks at values that are not finite; a dot with its figures on each point of a sparse line."""
    stride = math.ceil(len(line.steps) / MOST_POINTS)
    points = list(zip(line.steps, line.values))
    points = points[::stride] + (points[-1:] if (len(points) - 1) % stride else [])
    path, pen = [], "M"
    for step, value in points:
        if math.isfinite(value):
            path.append(f"{pen}{x(step):.1f} {y(value):.1f}")
        pen = "L" if math.isfinite(value) else "M"
    drawn = f'<path stroke="{color}" d="{"".join(path)}"/>'
    if line.sparse or len(points) == 1:
        drawn += "".join(
            f'<circle cx="{x(step):.1f}" cy="{y(value):.1f}" r="3.5" fill="{color}">'
            f"<title>{escape(line.name)} {_number(value)} at step {_number(step)}</title></circle>"
            for step, value in points
            if math.isfinite(value)
        )
    return drawn


def _scale(low: float, high: float, start: float, end: float) -> Any:
    span = high - low
    return lambda value: start + (end - start) * ((value - low) / span if span else 0.5)


def _ticks(low: float, high: float, most: int = 6) -> Sequence[float]:
    """Round numbers around low and high, at most `most` steps apart: 1, 2 or 5 times a power of ten."""
    if high == low:
        spread = abs(low) / 2 or 1.0
        low, high = low - spread, high + spread
    rough = (high - low) / (most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def _number(value: float) -> str:
    """Four significant digits, without the exponent where a person would not write one."""
    if isinstance(value, int) or (math.isfinite(value) and value == round(value) and abs(value) < 1e9):
        return f"{int(value):,}"
    return f"{value:,.1f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"
