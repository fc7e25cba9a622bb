"""README's table of the paper's main variants, from the results files of `equiav ablate`; `tables.py` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from equiav.config import CHANGED, with_earlier_defaults
from equiav.reproduction import Column, Folders, Results, Row, collect, load_table, row_run, run_key

ROOT = Path(__file__).parents[1]
COLUMNS = {"V2A R@10": "V->A R@10", "A2V R@10": "A->V R@10", "A": "linear probe of the sound, mAP"}


def variants() -> tuple[list[str], list[list[str]], str, list[dict[str, Any]]]:
    """Header, rows, what is said below, and the records behind it.

    Rows are those with as many seeds as the row they are compared with.
    """
    table = load_table(ROOT / "configs/ablation/variants.yaml")
    found = collect(table, "world", Folders(ROOT / "results/ablation", ROOT / "runs/ablation"))
    columns = [next(column for column in table.columns if column.name == name) for name in COLUMNS]
    reference = table.row(table.reference or "")
    main = [row for row in table.rows if 0 < found.seeds(row) == found.seeds(reference)]
    rows = [[row.name, *(_cell(found, row, reference, column) for column in columns)] for row in main]
    note = (
        f"Means over {found.seeds(reference)} seeds ± standard deviation; test scenes, per cent. Beside EquiAV, paired "
        "over seeds: ↑ ahead, ↓ behind, = not significant at 95 %."
    )
    if found.former:
        note += f" Taken before the default of `{'`, `'.join(CHANGED)}` changed."
    seeds = found.values[reference.name, columns[0].name]
    configs = [row_run(table, row, "world", seed).config for row in main for seed in seeds]
    keys = {run_key(with_earlier_defaults(c) if found.former else c, trained=True) for c in configs}
    return ["variant", *COLUMNS.values()], rows, note, [found.records[key] for key in sorted(keys)]


def _cell(found: Results, row: Row, reference: Row, column: Column) -> str:
    cell, difference = found.cell(row, column), found.compare(row.name, reference.name, column).ours
    if cell is None:
        return ""
    text = f"{cell.mean:.1f}" if cell.std is None else f"{cell.mean:.1f} ± {cell.std:.1f}"
    if row is reference or difference is None:
        return text
    return f"{text} {'=' if not difference.significant else '↑' if difference.mean > 0 else '↓'}"
