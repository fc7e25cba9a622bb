"""Tables on scarce data from the results files of `equiav ablate`; `tables.py` prints them.

README's table of variants, and each hypothesis of docs/explanation/plan.md beside the differences that speak to it.
"""

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

MRR, MAP = ("V2A MRR", "A2V MRR"), ("V2A mAP", "A2V mAP")
# Of each hypothesis: the table, what was expected to be ahead, and of what.
HYPOTHESES = [
    *((f"1, ahead of {name} at equal steps", "scarce", "EquiAV", name)
      for name in ("plain contrast", "invariant + original", "CAV-MAE")),
    *((f"2, ahead of {name} at equal CPU time", "scarce", "EquiAV", f"{name} (equal CPU time)")
      for name in ("plain contrast", "invariant + original", "CAV-MAE")),
    *((f"3, lead over plain contrast on {n:,} clips", "scarce_size", f"EquiAV ({n} clips)",
       f"plain contrast ({n} clips)") for n in (500, 1000, 2000, 4000, 8000)),
    ("4, ahead of equivariant + original", "scarce_size", "EquiAV (1000 clips)", "equivariant + original (1000 clips)"),
    ("4, ahead of S = 1", "scarce_parts", "EquiAV", "S = 1"),
    *((f"5, lead over plain contrast, {n} % noisy", "noisy", f"EquiAV ({n} % noisy)", f"plain contrast ({n} % noisy)")
      for n in (0, 30)),
    ("6, a masked start is ahead at equal CPU time", "scarce", "EquiAV from a masked start (equal CPU time)", "EquiAV"),
    ("7, behind without crops", "augmentation", "EquiAV", "EquiAV without crops"),
    ("7, behind without colours", "augmentation", "EquiAV", "EquiAV without colours"),
    *((f"8 and 9, ahead of {name} on {part} of the real data", "real_scarce", f"EquiAV ({part})", f"{name} ({part})")
      for name in ("plain contrast", "invariant + original") for part in ("a quarter", "all")),
    *((f"10, a masked start helps {name}, {part} of the real data", "real_scarce", f"{name} ({part}, masked start)",
       f"{name} ({part})") for name in ("plain contrast", "EquiAV") for part in ("a quarter", "all")),
    ("11, not behind plain contrast on digits", "real_digits", "EquiAV", "plain contrast"),
]  # fmt: skip


def hypotheses() -> tuple[list[str], list[list[str]], str]:
    """Header, rows, what is said below: each difference with its 95 % interval, and what it says of the hypothesis."""
    rows, found = [], {}
    for text, name, ahead, behind in HYPOTHESES:
        if name not in found:
            table = load_table(ROOT / f"configs/ablation/{name}.yaml")
            folders = Folders(ROOT / "results/ablation", ROOT / "runs/ablation")
            found[name] = collect(table, next(iter(table.scales)), folders)
        results = found[name]
        columns = [c for wanted in (MRR, MAP) for c in results.table.columns if c.name in wanted]
        ours = [results.compare(ahead, behind, column).ours for column in columns]
        estimates = [o for o in ours if o is not None]
        if len(estimates) < len(ours) or estimates[0].seeds == 1:
            rows.append([text, "", "", "", "not run"])
            continue
        signs = {(o.mean > 0) - (o.mean < 0) if o.significant else 0 for o in estimates}
        outcome = {frozenset({1}): "yes", frozenset({-1}): "the reverse", frozenset({0}): "not significant"}
        cells = [f"{o.mean:+.1f} ({o.interval[0]:+.1f} to {o.interval[1]:+.1f})" for o in estimates]
        rows.append([text, *cells, str(estimates[0].seeds), outcome.get(frozenset(signs), "in one direction")])
    note = (
        "Differences in mean reciprocal rank, on real data in mean average precision, in per cent: what was expected "
        "to be ahead minus the other, paired over seeds, last checkpoint, 95 % interval of Student's t. `yes`: "
        "significant in both directions of retrieval. Intervals are not corrected for their number."
    )
    return ["hypothesis", "video to audio", "audio to video", "seeds", "outcome"], rows, note


def scarce() -> tuple[list[str], list[list[str]], str, list[dict[str, Any]]]:
    """Header, rows, what is said below, and the records behind it."""
    table = load_table(ROOT / "configs/ablation/scarce.yaml")
    found = collect(table, "world", Folders(ROOT / "results/ablation", ROOT / "runs/ablation"))
    columns = [next(column for column in table.columns if column.name == wanted) for wanted in COLUMNS]
    reference = table.row(table.reference or "")
    run = [row for row in table.rows if found.seeds(row)]
    main = [reference, *(row for row in run if row is not reference)] if reference in run else []
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
