"""The document: one table as Markdown and CSV, and a page for each table beside an overview.

Values stand beside the paper's and stay blank where nothing has been run here; all comes from results files alone.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from matplotlib.axes import Axes

from equiav.config import shipped_recipes
from equiav.errors import ConfigError
from equiav.io import duration, write_whole
from equiav.report import new_figure, png
from equiav.reproduction.plan import TRANSFER, Folders, Record, default_of
from equiav.reproduction.statistics import (
    VERDICTS,
    Comparison,
    Estimate,
    Results,
    Verdict,
    collect,
    run_seconds,
)
from equiav.reproduction.tables import SCALES, Column, Row, ScaleName, Table, load_tables

NAMES: dict[ScaleName, str] = {"world": "world", "real": "real data", "paper": "paper's scale"}
MINUS = "\N{MINUS SIGN}"
OURS, PAPER = "#1f5fa8", "#c2571a"
PANEL_INCHES, ACROSS = 2.1, 5  # of a table's plot: the width of a panel, and at most how many stand side by side
CSV_HEADER = (
    "table", "row", "column", "from", "seeds", "mean", "std", "values",
    "compared_with", "difference", "low", "high", "paper_difference", "verdict",
)  # fmt: skip


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _joined(parts: Sequence[str]) -> str:
    """Paragraphs without the empty ones."""
    return "\n\n".join(part.strip("\n") for part in parts if part.strip())


def values_table(results: Sequence[Results]) -> str:
    """Every row as the paper gives it and as measured at each scale; blank where a column has no meaning there."""
    table = results[0].table

    def papers(row: Row, column: Column) -> str:
        if column.name not in row.paper:
            return ""
        value = row.paper[column.name]
        given = len(f"{value:g}".partition(".")[2])  # as many digits as the paper gives
        return f"{value:.{max(column.digits, given)}f}"

    def ours(result: Results, row: Row, column: Column) -> str:
        cell, digits = result.cell(row, column), column.digits
        if cell is None:
            return "not run" if (row.name, column.name) in result.asked else ""
        plain = cell.std is None or (cell.std == 0 and not column.compared)  # encoder passes do not vary
        fewer = f" ({_plural(cell.seeds, 'seed')})" if cell.seeds < result.seeds(row) else ""
        return f"{cell.mean:.{digits}f}" + ("" if plain else f" ± {cell.std:.{digits}f}") + fewer

    rows = []
    for row in table.rows:
        lines = []
        if row.paper and not table.own_references:
            lines.append(["paper", "", *(papers(row, c) for c in table.columns)])
        for result in results:
            if row.runs_at(result.scale):
                cells = [ours(result, row, c) for c in table.columns]
                lines.append([NAMES[result.scale], str(result.seeds(row) or ""), *cells])
        rows += [[row.name if i == 0 else "", *line] for i, line in enumerate(lines)]
    return _markdown_table(["row", "from", "seeds", *(c.name for c in table.columns)], rows)


def _signed(value: float, digits: int) -> str:
    text = f"{abs(value):.{digits}f}"
    return text if float(text) == 0 else f"{'+' if value > 0 else MINUS}{text}"


def _difference(found: Estimate | None, digits: int) -> str:
    """A difference with its interval; in bold where that excludes zero."""
    if found is None:
        return ""
    mean = _signed(found.mean, digits)
    if found.half_width is None:
        return mean
    low, high = (_signed(end, digits) for end in found.interval)
    if found.significant and 0 in (float(f"{end:.{digits}f}") for end in found.interval):
        low, high = (_signed(end, digits + 1) for end in found.interval)  # as rounded it would seem to hold zero
    return f"{f'**{mean}**' if found.significant else mean} ({low} to {high})"


def differences_table(results: Results) -> str:
    """Each row minus the one it is compared with: the paper's difference, ours with its interval, the verdict."""
    table, rows = results.table, []
    several = table.own_references
    for row, other, found in results.against_reference():
        if not any(c.ours for c in found):
            continue
        name = f"{row.name} {MINUS} {other}" if several else row.name
        if any(c.papers is not None for c in found) and not several:
            papers = ["" if c.papers is None else _signed(c.papers, c.column.digits) for c in found]
            rows.append([name, "paper", *papers])
            name = ""
        seeds = max(c.ours.seeds for c in found if c.ours)
        ours = [_difference(c.ours, c.column.digits) for c in found]
        rows.append([name, f"{NAMES[results.scale]}, {_plural(seeds, 'seed')}", *ours])
        if any(c.verdict for c in found):
            rows.append(["", "paper's order", *(c.verdict or "" for c in found)])
    if not rows:
        return ""
    first = "difference" if several else f"minus {table.reference}"
    return _markdown_table([first, "from", *(c.name for c in table.columns if c.compared)], rows)


def _orderings_line(results: Results) -> str:
    """How many of the paper's orderings are found, in a sentence."""
    near, all_pairs = (results.orderings(all_pairs=x) for x in (False, True))
    if not sum(near.values()):
        return ""

    def counted(found: Counter[Verdict]) -> str:
        return ", ".join(f"{n} {'hold' if v == 'holds' and n != 1 else v}" for v, n in sorted(found.items()))

    table = results.table
    against = "each against its own reference" if table.own_references else f"against {table.reference}"
    return (
        f"Of the paper's {sum(near.values())} orderings {against}: {counted(near)}. "
        f"Of all {sum(all_pairs.values())} between pairs of rows: {counted(all_pairs)}."
    )


def _warnings(results: Results) -> list[str]:
    """What stands above values of a search, and beside those that do not count as results."""
    exploratory = "**Exploratory.** What it finds counts once confirmed on fresh seeds."
    split = f"Values of the {results.split} split."
    return [exploratory if results.table.exploratory else "", "" if results.split == "test" else split]


def _remarks(results: Results) -> list[str]:
    """Which rows were measured under former defaults, and how many clips of published lists were found."""
    lines = []
    for changes in sorted(set(results.former.values())):
        rows = [row for row, of_row in results.former.items() if of_row == changes]
        said = (
            "All values" if len(rows) == len({row for row, _ in results.values}) else f"The values of {', '.join(rows)}"
        )
        today = ", ".join(f"{c.split('=')[0]}={default_of(c.split('=')[0])}" for c in changes)
        lines.append(f"{said} were taken before a default changed: with {', '.join(changes)}, which is {today} now.")
    found: dict[str, set[str]] = {}
    for record in results.records.values():
        for name, of_set in record.get("elsewhere", {}).get(TRANSFER, {}).items():
            if clips := of_set.get("clips"):
                found.setdefault(name, set()).add(f"{clips['found']:,} of {clips['listed']:,}")
    if found:
        # Runs of several machines may have found different clips.
        counts = (f"{name} {' or '.join(sorted(of))}" for name, of in sorted(found.items()))
        lines.append(f"Clips found of those on the published lists: {', '.join(counts)}.")
    return lines


def _times(records: Sequence[Record]) -> tuple[str, str, str]:
    """Wall and CPU time of runs, and the days on which they were made."""
    wall, cpu = (duration(sum(run_seconds(r, kind) for r in records)) for kind in ("wall", "cpu"))
    days = sorted({r["provenance"]["utc"][:10] for r in records})
    return wall, cpu, days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def _cost_line(results: Results) -> str:
    """What the runs behind a table cost, and where they were made."""
    records = list(results.records.values())
    if not records:
        return f"not run (0 of {_plural(results.wanted, 'run')})."
    made = [r["provenance"] for r in records]
    machines = "; ".join(sorted({f"{p['cores']} cores of {p['cpu']}" for p in made}))
    threads = " or ".join(map(str, sorted({p["threads"] for p in made})))
    wall, cpu, when = _times(records)
    return (
        f"{len(records)} of {_plural(results.wanted, 'run')}, together {wall} of wall-clock and {cpu} of CPU time "
        f"({machines}; threads per run: {threads}; {when})."
    )


def markdown(results: Results) -> str:
    """The whole table at one scale, with the notes that its numbers bear out."""
    table, (exploratory, split) = results.table, _warnings(results)
    title = f"# {table.paper}: {table.title}"
    parts = [title, table.caption, exploratory, values_table([results]), split, differences_table(results)]
    parts += [_orderings_line(results), _cost_line(results), *_remarks(results), *results.notes()[0]]
    return _joined(parts) + "\n"


def csv_text(results: Results) -> str:
    """One line per row, column and source."""
    table = results.table

    def exact(value: float | None) -> str:
        return "" if value is None else f"{value:.6g}"

    def comparison(found: Comparison | None) -> list[str]:
        if found is None or found.ours is None:
            return ["", "", "", "", ""]
        ends = (None, None) if found.ours.half_width is None else found.ours.interval
        return [*map(exact, (found.ours.mean, *ends, found.papers)), found.verdict or ""]

    compared = {row.name: (other, found) for row, other, found in results.against_reference()}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_HEADER)
    for row in table.rows:
        other, comparisons = compared.get(row.name, ("", []))
        by_column = {c.column.name: c for c in comparisons}
        for column in table.columns:
            if column.name in row.paper and not table.own_references:
                writer.writerow([table.name, row.name, column.name, "paper", "", row.paper[column.name]])
            cell = results.cell(row, column)
            if cell is not None:
                seen = results.values[row.name, column.name]
                writer.writerow([
                    table.name, row.name, column.name, results.scale, cell.seeds, exact(cell.mean), exact(cell.std),
                    " ".join(f"{s}:{v:.6g}" for s, v in sorted(seen.items())),
                    other if column.compared else "", *comparison(by_column.get(column.name)),
                ])  # fmt: skip
    return out.getvalue()


def write_table(results: Results, folder: Path) -> Path:
    """Writes NAME.md, NAME.csv and NAME.png, NAME-SPLIT of another split than its own; returns the first."""
    another = "" if results.split == results.table.split else f"-{results.split}"
    path = folder / f"{results.table.name}{another}.md"
    plot = table_plot(results)
    text = markdown(results)
    if plot is not None:
        write_whole(path.with_suffix(".png"), plot)
        text += f"\n![{results.table.title}]({path.stem}.png)\n"
    write_whole(path, text)
    write_whole(path.with_suffix(".csv"), csv_text(results))
    return path


def table_plot(results: Results) -> bytes | None:
    """PNG with one panel per measured column: differences to the reference, the paper's beside ours, or plain values.

    None where nothing was measured.
    """
    table = results.table
    rows = [row for row in table.rows if results.seeds(row)]
    columns = [c for c in table.columns if c.compared and any(results.cell(row, c) for row in rows)]
    compared = {row.name: found for row, _, found in results.against_reference() if row in rows}
    if not columns:
        return None
    shown = [row for row in rows if row.name in compared] if compared else rows
    lines = -(-len(columns) // ACROSS)
    across = -(-len(columns) // lines)
    figure = new_figure(2.2 + PANEL_INCHES * across, 0.9 + lines * (0.4 + 0.38 * len(shown)))
    panels = figure.subplots(lines, across, squeeze=False, sharey=True).flatten()
    for axis in panels[len(columns) :]:
        axis.set_visible(False)
    for axis, column in zip(panels, columns, strict=False):
        if compared:
            found = [next(c for c in compared[row.name] if c.column == column) for row in shown]
            _plot_differences(axis, found, papers=not table.own_references)
        else:
            for place, row in enumerate(shown):
                if column.name in row.paper:
                    _plot_paper(axis, row.paper[column.name], place)
                for value in results.values.get((row.name, column.name), {}).values():
                    axis.plot(value, place + 0.14, "o", color=OURS, markersize=4.5, alpha=0.7)
        axis.set_title(column.name, fontsize=9)
        if column.less_is_better:
            axis.set_xlabel("less is better", fontsize=7)
        labels = [f"{row.name} ({_plural(results.seeds(row), 'seed')})" for row in shown]
        axis.set_yticks(range(len(shown)), labels, fontsize=8)
        axis.set_ylim(len(shown) - 0.5, -0.5)
        axis.tick_params(axis="x", labelsize=7)
        axis.grid(axis="x", alpha=0.25)
    if any(row.paper for row in rows) and not table.own_references:
        panels[0].plot([], [], "D", color=PAPER, markerfacecolor="none", markersize=5, label="paper")
    panels[0].plot([], [], "o", color=OURS, markersize=4.5, label=NAMES[results.scale])
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    minus = f" (minus {'its reference' if table.own_references else table.reference}; bars: 95 % intervals)"
    figure.suptitle(f"{table.paper}: {table.title}{minus if compared else ''}", fontsize=9)
    return png(figure)


def _plot_paper(axis: Axes, value: float, place: int) -> None:
    axis.plot(value, place - 0.14, "D", color=PAPER, markersize=5, markerfacecolor="none")


def _plot_differences(axis: Axes, found: Sequence[Comparison], *, papers: bool) -> None:
    axis.axvline(0, color="black", linewidth=0.8)
    for place, comparison in enumerate(found):
        if papers and comparison.papers is not None:
            _plot_paper(axis, comparison.papers, place)
        if comparison.ours is not None:
            axis.errorbar(
                comparison.ours.mean, place + 0.14, xerr=comparison.ours.half_width, fmt="o", color=OURS,
                markersize=4.5, capsize=2.5, linewidth=1.2, alpha=1.0 if comparison.ours.significant else 0.45,
            )  # fmt: skip


@dataclass(frozen=True)
class Section:
    """A numbered item of the paper: what regenerates it, and the results of its table at each scale it has."""

    number: str
    subject: str
    commands: tuple[str, ...] = ()
    text: str = ""
    table: Table | None = None
    results: tuple[Results, ...] = ()

    @property
    def title(self) -> str:
        """As in its heading."""
        return f"{self.number}: {self.subject}"

    @property
    def page(self) -> str:
        """The name of a table's own page."""
        return f"{self.number.lower().replace(' ', '-')}.md"

    @property
    def link(self) -> str:
        """From the overview to a table's page, or to a section of the overview by the anchor that renderers give it."""
        kept = "".join(c for c in self.title.lower() if c.isalnum() or c in " -_")
        return f"[{self.number}]({self.page if self.table else '#' + kept.replace(' ', '-')})"


def shipped_tables() -> dict[str, Path]:
    """The tables that come with the package, by name."""
    return {path.stem: path for name, path in shipped_recipes().items() if name.startswith("ablation/")}


def _paper() -> dict[str, Any]:
    """`introduction` and `reading` of the overview, and the `items` of the paper in its order."""
    tree: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "paper.yaml").read_text(encoding="utf-8"))
    return tree


def _sections(folders: Folders, tables: dict[str, Path]) -> list[Section]:
    """All items of the paper in order, with what has been run."""
    items = _paper()["items"]
    if odd := sorted({item["table"] for item in items if "table" in item} ^ set(tables)):
        raise ConfigError(f"configs/ablation and the list of the paper's tables do not agree on {', '.join(odd)}")
    loaded = {table.name: table for table in load_tables(list(tables.values()))}
    made = []
    for item in items:
        table = loaded.get(item.get("table", ""))
        results = [collect(table, scale, folders) for scale in SCALES if table and scale in table.scales]
        commands = [item["command"]] if "command" in item else []
        for r in results:
            more = " --list" if r.table.scales[r.scale].processes > 1 else ""
            more += " --set data.path=PATH" if r.scale == "real" else ""
            commands.append(f"equiav ablate configs/ablation/{r.table.path.name} --scale {r.scale}{more}")
        text = item.get("text", "")
        made.append(Section(item["number"], item["subject"], tuple(commands), text, table, tuple(results)))
    return made


def _overview(found: Sequence[Section]) -> str:
    """Which command regenerates what, and what has been run."""
    rows = []
    for section in found:
        commands = section.commands
        if not section.results or any(r.scale == "world" for r in section.results):
            # Without the scale, which stands beside the number of runs.
            commands = tuple(dict.fromkeys(command.split(" --scale")[0] for command in commands))
        runs = [f"`{r.scale}`: {len(r.records)} of {r.wanted}" for r in section.results]
        wall, cpu = (
            [duration(r.seconds(kind)) if r.records else "" for r in section.results] for kind in ("wall", "cpu")
        )
        cells = ["<br>".join(part) for part in ([f"`{c}`" for c in commands], runs, wall, cpu)]
        rows.append([section.link, section.subject, *cells])
    note = (
        "Tables share runs: each run's time counts for every table that shows it. Wall-clock times are of a machine "
        "with other work to do; a core of its own needs about the CPU time."
    )
    header = ["item", "subject", "command", "runs at each `--scale`", "wall-clock", "CPU"]
    return _joined([note, _markdown_table(header, rows)])


def _outcome(found: Sequence[Section]) -> str:
    """How many of the paper's orderings hold, table by table."""
    rows = []
    for section in found:
        for r in section.results:
            near, pairs = r.orderings(all_pairs=False), r.orderings(all_pairs=True)
            if sum(near.values()):
                subject = section.subject + (" (exploratory)" if r.table.exploratory else "")
                rows.append([section.link, subject, NAMES[r.scale], *(f"{near[v]} ({pairs[v]})" for v in VERDICTS)])
    if not rows:
        return ""
    header = ["item", "subject", "scale", "hold", "reversed", "not significant", "one seed only"]
    note = "Orderings against the paper's own choice, over all columns; in brackets those between any two rows."
    return _joined(["## Which of the paper's orderings show", note, _markdown_table(header, rows)])


def _totals(found: Sequence[Section]) -> str:
    """What all runs cost, each counted once, and where they were made."""
    lines = []
    for scale in SCALES:
        records = {k: v for s in found for r in s.results if r.scale == scale for k, v in r.records.items()}.values()
        if records:
            wall, cpu, when = _times(list(records))
            made = [r["provenance"] for r in records]
            where = ", ".join(sorted({f"{p['cores']} cores of {p['cpu']} with torch {p['torch']}" for p in made}))
            lines.append(
                f"- {NAMES[scale].capitalize()}: {_plural(len(records), 'run')}, {wall} of wall-clock and {cpu} of CPU "
                f"time; {where}; {when}; commits {', '.join(sorted({p['commit'] for p in made}))}."
            )
    note = "Tables share runs; here each is counted once. Times are summed over runs, several of which go side by side."
    return _joined(["## What has been run", note, "\n".join(lines or ["Nothing yet."])])


def _section_text(section: Section, plots: dict[ScaleName, str]) -> str:
    """One item: the paper's values, ours, differences, command, cost, notes."""
    commands = "\n".join(f"    {command}" for command in section.commands)
    parts = [f"{'#' if section.table else '##'} {section.title}", section.text, commands]
    if section.table is not None:
        parts += [section.table.caption, *_warnings(section.results[0]), values_table(section.results)]
        for r in section.results:
            if r.records:
                parts += [differences_table(r), _orderings_line(r)]
                if r.scale in plots:
                    parts.append(f"![{section.table.title}]({plots[r.scale]})")
            parts += [f"{NAMES[r.scale].capitalize()}: {_cost_line(r)}", *_remarks(r), *r.notes()[0]]
    return _joined(parts)


def write_reproduction(out: Path, folders: Folders, tables: dict[str, Path] | None = None) -> list[Section]:
    """Writes the overview `index.md` and a page per table into the folder `out`, their plots into `images/` beside it.

    Returns what the pages show. A note that the numbers contradict is an error. `NAME.md` names the folder `NAME`.
    """
    out = out.with_suffix("") if out.suffix == ".md" else out
    found = _sections(folders, tables or shipped_tables())
    if contradicted := [line for section in found for r in section.results for line in r.notes()[1]]:
        raise ConfigError(" | ".join(contradicted))
    for section in (s for s in found if s.table):
        plots: dict[ScaleName, str] = {}
        for r in section.results:
            plot = table_plot(r)
            if plot is not None:
                place = Path("images") / out.name / f"{r.table.name}-{r.scale}.png"
                write_whole(out.parent / place, plot)
                plots[r.scale] = f"../{place.as_posix()}"
        write_whole(out / section.page, _section_text(section, plots) + "\n")
    paper = _paper()
    parts = [paper["introduction"], "## All tables and figures", _overview(found), _outcome(found), _totals(found)]
    parts += [paper["reading"], *(_section_text(section, {}) for section in found if not section.table)]
    write_whole(out / "index.md", _joined(parts) + "\n")
    return found
