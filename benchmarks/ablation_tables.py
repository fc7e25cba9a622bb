"""README's table of variants where data are scarce, from the results files of `equiav ablate`; `tables.py` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from equiav.reproduction import Column, Folders, Results, Row, collect, load_table, row_run

ROOT = Path(__file__).parents[1]
COLUMNS = {
    "V2A MRR": "V->A MRR",
    "A2V MRR": "A->V MRR",
    "V2A R@10": "V->A R@10",
    "A2V R@10": "A->V R@10",
    "CPU min": "CPU-minutes",
}


def scarce() -> tuple[list[str], list[list[str]], str, list[dict[str, Any]]]:
    """Header, rows, what is said below, and the records behind it.

    Rows are EquiAV and those that trained for as much CPU time.
    """
    table = load_table(ROOT / "configs/ablation/scarce.yaml")
    found = collect(table, "world", Folders(ROOT / "results/ablation", ROOT / "runs/ablation"))
    columns = [next(column for column in table.columns if column.name == wanted) for wanted in COLUMNS]
    reference = table.row(table.reference or "")
    equal = [row for row in table.rows if row.name.endswith("(equal CPU time)") and found.seeds(row)]
    main = [reference, *equal] if equal else []
    rows = [[row.name, *(_cell(found, row, reference, column) for column in columns)] for row in main]
    counts = sorted({found.seeds(row) for row in main})
    note = (
        f"Means over {' to '.join(map(str, counts))} seeds ± standard deviation; test scenes, per cent. Beside EquiAV, "
        "paired over seeds: ↑ ahead, ↓ behind, = not significant at 95 %."
    )
    seeds = {row.name: found.values[row.name, columns[0].name] for row in main}
    keys = {row_run(table, row, "world", seed).key for row in main for seed in seeds[row.name]}
    return ["variant", *COLUMNS.values()], rows, note, [found.records[key] for key in sorted(keys)]


def _cell(found: Results, row: Row, reference: Row, column: Column) -> str:
    cell, difference = found.cell(row, column), found.compare(row.name, reference.name, column).ours
    if cell is None:
        return ""
    text = f"{cell.mean:.1f}" if cell.std is None else f"{cell.mean:.1f} ± {cell.std:.1f}"
    if row is reference or difference is None or not column.compared:
        return text
    return f"{text} {'=' if not difference.significant else '↑' if difference.mean > 0 else '↓'}"
