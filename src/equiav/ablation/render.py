"""A table with its results as Markdown, CSV and a plot, the paper's figures beside ours."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from equiav.ablation.experiment import Column, Judged, Row, ScaleName, Table
from equiav.ablation.statistics import Cell, Difference, Verdict
from equiav.ablation.summary import Comparison, Results
from equiav.io import duration, write_whole

NAMES: dict[ScaleName, str] = {"world": "world", "real": "real data", "paper": "paper's scale"}
MINUS = "\N{MINUS SIGN}"


def plural(count: int, noun: str) -> str:
    """1 run, 2 runs."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def figures_table(results: Sequence[Results]) -> str:
    """Every row as the paper gives it and as measured at each scale; blank where nothing was run."""
    table = results[0].experiment.table
    header = ["row", "from", "seeds", *(c.name for c in table.columns)]
    rows = []
    for row in table.rows:
        lines = []
        if row.paper and not table.own_references:
            lines.append(["paper", "", *(_number(row.paper.get(c.name), c) for c in table.columns)])
        for result in results:
            if row.runs_at(result.scale):
                cells = [_cell(result.cell(row, c), c) for c in table.columns]
                lines.append([NAMES[result.scale], str(result.seeds(row) or ""), *cells])
        rows += [[row.name if i == 0 else "", *line] for i, line in enumerate(lines)]
    return markdown_table(header, rows)


def _number(value: float | None, column: Column) -> str:
    return "" if value is None else f"{value:.{max(column.digits, _digits(value))}f}"


def _digits(value: float) -> int:
    """As many digits as the paper gives."""
    text = f"{value:g}"
    return len(text.split(".")[1]) if "." in text else 0


def _cell(cell: Cell | None, column: Column) -> str:
    if cell is None:
        return ""
    spread = "" if cell.deviation is None else f" ± {cell.deviation:.{column.digits}f}"
    return f"{cell.mean:.{column.digits}f}{spread}"


def signed(value: float, digits: int) -> str:
    """A difference, with its sign."""
    text = f"{abs(value):.{digits}f}"
    return text if float(text) == 0 else f"{'+' if value > 0 else MINUS}{text}"


def _difference(found: Difference | None, digits: int) -> str:
    if found is None:
        return ""
    mean = signed(found.mean, digits)
    if found.half_width is None:
        return mean
    ends = [found.mean + side * found.half_width for side in (-1, 1)]
    low, high = (signed(end, digits) for end in ends)
    if found.is_one and 0 in (float(f"{end:.{digits}f}") for end in ends):
        low, high = (signed(end, digits + 1) for end in ends)  # as rounded it would seem to hold zero
    return f"{f'**{mean}**' if found.is_one else mean} ({low} to {high})"


def differences_table(results: Results) -> str:
    """Each row minus the one it is compared with: the paper's difference, ours with its interval, the verdict."""
    columns = results.experiment.table.columns
    digits = {c.name: c.digits for c in columns}
    several = results.experiment.table.own_references
    rows = []
    for row, other, found in results.against_reference():
        if not any(c.ours for c in found):
            continue
        seeds = max(c.ours.seeds for c in found if c.ours)
        name = f"{row.name} {MINUS} {other}" if several else row.name
        if any(c.papers is not None for c in found) and not several:
            papers = ["" if c.papers is None else signed(c.papers, digits[c.column]) for c in found]
            rows.append([name, "paper", *papers])
            name = ""
        rows.append(
            [
                name,
                f"{NAMES[results.scale]}, {plural(seeds, 'seed')}",
                *(_difference(c.ours, digits[c.column]) for c in found),
            ]
        )
        if any(c.verdict for c in found):
            rows.append(["", "paper's order", *(c.verdict or "" for c in found)])
    if not rows:
        return ""
    first = "difference" if several else f"minus {results.experiment.table.reference}"
    return markdown_table([first, "from", *(c.name for c in columns)], rows)


def orderings_line(results: Results) -> str:
    """How many of the paper's orderings are found, in a sentence."""
    near, all_pairs = (results.orderings(all_pairs=x) for x in (False, True))
    if not sum(near.values()):
        return ""

    def counted(found: Counter[Verdict]) -> str:
        parts = [f"{n} {'hold' if v == 'holds' and n != 1 else v}" for v, n in sorted(found.items())]
        return ", ".join(parts)

    table = results.experiment.table
    against = "each against its own reference" if table.own_references else f"against {table.reference}"
    return (
        f"Of the paper's {sum(near.values())} orderings {against}: {counted(near)}. "
        f"Of all {sum(all_pairs.values())} between pairs of rows: {counted(all_pairs)}."
    )


def exploratory_line(table: Table) -> str:
    """A warning above tables that search for something."""
    return "**Exploratory.** What it finds counts once confirmed on fresh seeds." if table.exploratory else ""


def split_line(split: Judged) -> str:
    """Said of figures that do not count as results."""
    return "" if split == "test" else f"Figures of the {split} split."


def cost_line(results: Results) -> str:
    """What the runs behind a table cost, and where they were made."""
    records = list(results.records.values())
    if not records:
        return f"not run (0 of {plural(results.wanted, 'run')})."
    made = [r["provenance"] for r in records]
    machines = sorted({f"{p['cores']} cores of {p['cpu']}" for p in made})
    threads = " or ".join(map(str, sorted({p["threads"] for p in made})))
    days = sorted({p["utc"][:10] for p in made})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    wall, cpu = (duration(results.seconds(kind)) for kind in ("wall", "cpu"))
    return (
        f"{len(records)} of {plural(results.wanted, 'run')}, together {wall} of wall-clock and {cpu} of processor time "
        f"({'; '.join(machines)}; threads per run: {threads}; {when})."
    )


def markdown(results: Results) -> str:
    """The whole table at one scale."""
    table = results.experiment.table
    parts = [f"# {table.paper}: {table.title}", table.caption, exploratory_line(table), figures_table([results])]
    parts += [
        split_line(results.split),
        differences_table(results),
        orderings_line(results),
        cost_line(results),
        table.notes,
    ]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


CSV_HEADER = (
    "table", "row", "column", "from", "seeds", "mean", "deviation", "values",
    "compared_with", "difference", "low", "high", "paper_difference", "verdict",
)  # fmt: skip


def csv_text(results: Results) -> str:
    """One line per row, column and source."""
    table = results.experiment.table
    compared = {row.name: (other, found) for row, other, found in results.against_reference()}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_HEADER)
    for row in table.rows:
        for i, column in enumerate(table.columns):
            if column.name in row.paper and not table.own_references:
                writer.writerow([results.experiment.name, row.name, column.name, "paper", "", row.paper[column.name]])
            cell = results.cell(row, column)
            if cell is not None:
                other, found = compared.get(row.name, ("", []))
                seen = results.values[row.name, column.name]
                writer.writerow([
                    results.experiment.name, row.name, column.name, results.scale, cell.seeds, _exact(cell.mean),
                    _exact(cell.deviation), " ".join(f"{s}:{v:.6g}" for s, v in sorted(seen.items())),
                    other, *_csv_comparison(found[i] if found else None),
                ])  # fmt: skip
    return out.getvalue()


def _exact(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _csv_comparison(found: Comparison | None) -> list[str]:
    if found is None or found.ours is None:
        return ["", "", "", "", ""]
    half = found.ours.half_width
    ends = [None, None] if half is None else [found.ours.mean - half, found.ours.mean + half]
    return [*map(_exact, (found.ours.mean, *ends, found.papers)), found.verdict or ""]


def write_table(results: Results, folder: Path) -> Path:
    """Writes NAME.md, NAME.csv and NAME.png, NAME-SPLIT of another split than its own; returns the first."""
    from equiav.ablation.plot import table_figure  # matplotlib takes a second and only pictures need it

    another = "" if results.split == results.experiment.table.split else f"-{results.split}"
    path = folder / f"{results.experiment.name}{another}.md"
    picture = table_figure(results)
    text = markdown(results)
    if picture is not None:
        write_whole(path.with_suffix(".png"), picture)
        text += f"\n![{results.experiment.table.title}]({path.stem}.png)\n"
    write_whole(path, text)
    write_whole(path.with_suffix(".csv"), csv_text(results))
    return path


def rows_with_results(results: Results) -> list[Row]:
    """Rows that have been run."""
    return [row for row in results.experiment.table.rows if results.seeds(row)]
