"""The report as a PNG, drawn with matplotlib."""

from pathlib import Path
from typing import Any

from ..errors import MissingPackageError
from .history import Chart, LoggedRun

COLORS = ("#4269d0", "#ff725c", "#3ca951", "#efb118", "#a463f2", "#6cc5b0")
INK, FAINT, GRID = "#24292f", "#6e7781", "#e4e8ec"


def write(run: LoggedRun, path: Path) -> Path:
    """Draw the first four charts of the run in a 2x2 grid."""
    try:
        # The object-oriented interface instead of pyplot: no display needed, and no figure in a global registry.
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        raise MissingPackageError(
            "report.png requires matplotlib, which is not installed: pip install 'oneloop[report]'"
        ) from error

    charts = run.charts()[:4]
    rows, columns = (1, max(len(charts), 1)) if len(charts) < 3 else (2, 2)
    layout = ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.12)
    figure = Figure(figsize=(6.0 * columns, 3.4 * rows + 0.5), dpi=110, facecolor="white", layout=layout)
    FigureCanvasAgg(figure)
    figure.suptitle(run.title, fontsize=14, color=INK, x=0.015, ha="left", fontweight="bold")
    steps = [step for chart in charts for line in chart.lines for step in line.steps]
    for position, chart in enumerate(charts, start=1):
        axes = figure.add_subplot(rows, columns, position)
        _draw(axes, chart)
        # The same steps in all charts: one of them may have only a few points.
        axes.update_datalim([(min(steps), axes.dataLim.y0), (max(steps), axes.dataLim.y0)])
        axes.autoscale_view(scaley=False)
    if not charts:
        figure.text(0.5, 0.5, "nothing was logged", ha="center", color=FAINT)
    figure.savefig(path, metadata={"Software": "oneloop"})
    return path


def _draw(axes: Any, chart: Chart) -> None:
    for line, color in zip(chart.lines, COLORS * len(chart.lines)):
        marker = "o" if line.sparse or len(line.steps) == 1 else ""
        axes.plot(line.steps, line.values, color=color, marker=marker, markersize=4, linewidth=1.8, label=line.name)
    axes.set_title(chart.title, loc="left", fontsize=11, color=INK)
    axes.set_xlabel("step", fontsize=9, color=FAINT)
    axes.tick_params(colors=FAINT, labelsize=9, length=0)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.spines[:].set_visible(False)
    axes.spines["bottom"].set(visible=True, color=GRID)
    if chart.zero:
        axes.set_ylim(0, axes.get_ylim()[1] * 1.05)
    if len(chart.lines) > 1:
        axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="best")
