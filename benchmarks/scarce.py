"""Retrieval against the number of training clips, one line per method: draws docs/images/scarce.png.

    equiav ablate configs/ablation/scarce_size.yaml --scale world      # the runs
    python benchmarks/scarce.py                                        # the figure

Lines are means over seeds with Student's 95 % interval, points are seeds, of the last checkpoint. Methods and sizes
without a run are left out. Diamonds are means at other learning rates, from rate.yaml and rate_chosen.yaml.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from ablation_tables import found_in
from equiav.report import new_figure, save

ROOT = Path(__file__).resolve().parents[1]
NAME = re.compile(r"(.+) \((\d+) clips\)")
SCENES = 2000  # among which is searched
CHANCE = 100 * sum(1 / rank for rank in range(1, SCENES + 1)) / SCENES
OTHER_RATES = {  # table, row: method, clips
    ("rate_chosen", "plain contrast"): ("plain contrast", 1000),
    ("rate_chosen", "invariant + original"): ("invariant + original", 1000),
    ("rate_chosen", "EquiAV"): ("EquiAV", 1000),
    ("rate", "plain contrast (8000 clips, lr 0.001)"): ("plain contrast", 8000),
}
PANELS = {"V2A MRR": "video to audio", "A2V MRR": "audio to video"}


def main() -> None:
    results = found_in("scarce_size")
    table = results.table
    columns = {column.name: column for column in table.columns}
    figure = new_figure(9, 4)
    for k, (name, title) in enumerate(PANELS.items(), 1):
        axis = figure.add_subplot(1, 2, k)
        lines = defaultdict(list)
        for row in table.rows:
            method, clips = NAME.fullmatch(row.name).groups()  # type: ignore[union-attr]
            found = results.cell(row, columns[name])
            if found is not None:
                seeds = list(results.values[row.name, name].values())
                lines[method].append((int(clips), found.mean, found.half_width or 0.0, seeds))
        colours = {}
        for method, points in lines.items():
            x, mean, half, seeds = zip(*points, strict=True)
            (line,) = axis.plot(x, mean, label=method)
            colours[method] = line.get_color()
            low, high = ([max(m + sign * h, CHANCE / 10) for m, h in zip(mean, half, strict=True)] for sign in (-1, 1))
            axis.fill_between(x, low, high, color=line.get_color(), alpha=0.12, linewidth=0)
            each = [(n, value) for n, values in zip(x, seeds, strict=True) for value in values]
            axis.scatter(*zip(*each, strict=True), s=7, color=line.get_color(), alpha=0.7, linewidth=0)
        for (other, row), (method, clips) in OTHER_RATES.items():
            values = found_in(other).values.get((row, name), {}).values()
            if values:
                colour = colours[method]
                axis.plot(clips, sum(values) / len(values), "D", markersize=6, markerfacecolor="none", color=colour)
        axis.plot([], [], "D", markersize=6, markerfacecolor="none", color="grey", label="another learning rate")
        axis.set_xscale("log")
        axis.set_xticks(sizes := sorted({point[0] for points in lines.values() for point in points}), map(str, sizes))
        axis.set(title=title, xlabel="training clips", ylabel="mean reciprocal rank, %")
        axis.set(
            yscale="log", ylim=(CHANCE / 1.3, 25), yticks=(0.5, 1, 2, 5, 10, 20), yticklabels=(0.5, 1, 2, 5, 10, 20)
        )
        axis.axhline(CHANCE, color="grey", linestyle=":", linewidth=1, label="chance")
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    save(figure, ROOT / "docs/images/scarce.png")
    print("written: docs/images/scarce.png")


if __name__ == "__main__":
    main()
