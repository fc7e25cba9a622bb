"""The plot of a table: differences to the reference, the paper's beside ours, or plain figures without one."""

from __future__ import annotations

from matplotlib.axes import Axes

from equiav.ablation.experiment import Column, Row
from equiav.ablation.render import NAMES, plural, rows_with_results
from equiav.ablation.summary import Comparison, Results
from equiav.report import new_figure, png

OURS, PAPER = "#1f5fa8", "#c2571a"
PANEL = 2.1  # inches


def table_figure(results: Results) -> bytes | None:
    """PNG with one panel per measured column; none where nothing was measured."""
    rows = rows_with_results(results)
    columns = [c for c in results.experiment.table.columns if any(results.cell(row, c) for row in rows)]
    compared = [(row, found) for row, _, found in results.against_reference() if row in rows]
    if not columns:
        return None
    shown = [row for row, _ in compared] if compared else rows
    figure = new_figure(2.2 + PANEL * len(columns), 1.3 + 0.38 * len(shown))
    panels = figure.subplots(1, len(columns), squeeze=False, sharey=True)[0]
    for axis, column in zip(panels, columns, strict=True):
        if compared:
            shown_column = [next(c for c in found if c.column == column.name) for _, found in compared]
            _differences(axis, shown_column, papers=not results.experiment.table.own_references)
        else:
            _figures(axis, results, shown, column)
        axis.set_title(column.name, fontsize=9)
        axis.set_yticks(range(len(shown)), [_named(results, row) for row in shown], fontsize=8)
        axis.set_ylim(len(shown) - 0.5, -0.5)
        axis.tick_params(axis="x", labelsize=7)
        axis.grid(axis="x", alpha=0.25)
    _legend(panels[0], results)
    figure.suptitle(_title(results, differences=bool(compared)), fontsize=9)
    return png(figure)


def _named(results: Results, row: Row) -> str:
    """A row with its number of seeds."""
    return f"{row.name} ({plural(results.seeds(row), 'seed')})"


def _title(results: Results, *, differences: bool) -> str:
    table = results.experiment.table
    what = (
        f"minus {'its reference' if table.own_references else table.reference}; bars: 95 % intervals"
        if differences
        else ""
    )
    return f"{table.paper}: {table.title}" + (f" ({what})" if what else "")


def _differences(axis: Axes, found: list[Comparison], *, papers: bool) -> None:
    axis.axvline(0, color="black", linewidth=0.8)
    for place, comparison in enumerate(found):
        if papers and comparison.papers is not None:
            axis.plot(comparison.papers, place - 0.14, "D", color=PAPER, markersize=5, markerfacecolor="none")
        if comparison.ours is not None:
            half = comparison.ours.half_width
            axis.errorbar(
                comparison.ours.mean, place + 0.14, xerr=half, fmt="o", color=OURS, markersize=4.5, capsize=2.5,
                linewidth=1.2, alpha=1.0 if comparison.ours.is_one else 0.45,
            )  # fmt: skip


def _figures(axis: Axes, results: Results, rows: list[Row], column: Column) -> None:
    for place, row in enumerate(rows):
        if column.name in row.paper:
            axis.plot(row.paper[column.name], place - 0.14, "D", color=PAPER, markersize=5, markerfacecolor="none")
        for value in results.values.get((row.name, column.name), {}).values():
            axis.plot(value, place + 0.14, "o", color=OURS, markersize=4.5, alpha=0.7)


def _legend(axis: Axes, results: Results) -> None:
    table = results.experiment.table
    if any(row.paper for row in rows_with_results(results)) and not table.own_references:
        axis.plot([], [], "D", color=PAPER, markerfacecolor="none", markersize=5, label="paper")
    axis.plot([], [], "o", color=OURS, markersize=4.5, label=NAMES[results.scale])
    axis.figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
