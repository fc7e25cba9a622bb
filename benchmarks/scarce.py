"""Retrieval against the number of training clips, one line per method: draws docs/images/scarce.png.

    equiav ablate configs/ablation/scarce_size.yaml --scale world      # the runs
    python benchmarks/scarce.py                                        # the figure

Lines are means over seeds with Student's 95 % interval, points are seeds, of the last checkpoint. Methods and sizes
without a run are left out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from equiav.report import new_figure, save
from equiav.reproduction import Folders, collect, load_tables

ROOT = Path(__file__).resolve().parents[1]
NAME = re.compile(r"(.+) \((\d+) clips\)")
SCENES = 2000  # among which is searched
CHANCE = 100 * sum(1 / rank for rank in range(1, SCENES + 1)) / SCENES
PANELS = {"V2A MRR": "video to audio", "A2V MRR": "audio to video"}


def main() -> None:
    (table,) = load_tables([ROOT / "configs/ablation/scarce_size.yaml"])
    results = collect(table, "world", Folders(ROOT / "results/ablation", ROOT / "runs/ablation"))
    columns = {column.name: column for column in table.columns}
    figure = new_figure(9, 3.6)
    for k, (name, title) in enumerate(PANELS.items(), 1):
        axis = figure.add_subplot(1, 2, k)
        lines = defaultdict(list)
        for row in table.rows:
            method, clips = NAME.fullmatch(row.name).groups()  # type: ignore[union-attr]
            found = results.cell(row, columns[name])
            if found is not None:
                seeds = list(results.values[row.name, name].values())
                lines[method].append((int(clips), found.mean, found.half_width or 0.0, seeds))
        for method, points in lines.items():
            x, mean, half, seeds = zip(*points, strict=True)
            (line,) = axis.plot(x, mean, label=method)
            low, high = ([max(m + sign * h, CHANCE / 10) for m, h in zip(mean, half, strict=True)] for sign in (-1, 1))
            axis.fill_between(x, low, high, color=line.get_color(), alpha=0.12, linewidth=0)
            each = [(n, value) for n, values in zip(x, seeds, strict=True) for value in values]
            axis.scatter(*zip(*each, strict=True), s=7, color=line.get_color(), alpha=0.7, linewidth=0)
        axis.set_xscale("log")
        axis.set_xticks(sizes := sorted({point[0] for points in lines.values() for point in points}), map(str, sizes))
        axis.set(title=title, xlabel="training clips", ylabel="mean reciprocal rank, %")
        axis.set(
            yscale="log", ylim=(CHANCE / 1.3, 25), yticks=(0.5, 1, 2, 5, 10, 20), yticklabels=(0.5, 1, 2, 5, 10, 20)
        )
        axis.axhline(CHANCE, color="grey", linestyle=":", linewidth=1, label="chance")
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axis.legend(fontsize=7, loc="lower right", bbox_to_anchor=(1, 0.12))
    save(figure, ROOT / "docs/images/scarce.png")
    print("written: docs/images/scarce.png")


if __name__ == "__main__":
    main()
