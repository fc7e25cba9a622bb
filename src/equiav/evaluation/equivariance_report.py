"""The page of equivariance: what was asked, the tables, and the pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from equiav.evaluation.equivariance import Example
from equiav.report import (
    Page,
    banded_curves,
    bars,
    cards,
    image_row,
    intervals,
    new_figure,
    png,
    spectrogram_row,
    table,
)
from equiav.types import AUDIO, VISUAL

TITLES = {"audio": "Sound", "visual": "Picture"}
BASELINES = {"identity": "identity", "redrawn": "redrawn", "left_out": "left out"}
SHOWN_MEANS = ("identity", "redrawn")
MARKS = {"above": "✓", "below": "✗", "level with": "≈"}
SPACES = {"representation": "h, Eq. (12)", "inter": "g_inter(h), Eq. (13)", "intra": "g_intra(h)"}


def equivariance_page(record: dict[str, Any], shown: Sequence[Example]) -> Page:
    """Everything that equivariance_record gives, for people."""
    page = Page("Does the predictor follow the augmentation?")
    page.text(
        "A view of every clip is made by a drawn augmentation t. The predictor u knows only the original and the "
        "vector of t, and says where the embedding of the view should be; the encoder says where it is. Cosines are "
        "means over clips; differences are paired, with 95 % intervals over clips."
    )
    headline = [(f"cosine, {TITLES[m].lower()}", f"{v['true']['mean']:.3f}") for m, v in record["similarity"].items()]
    for m, v in record["ranking"].items():
        chance = f"(chance {v['chance_first']:.1f} %)"
        headline.append((f"{TITLES[m].lower()}: finds its own view among {v['draws']} {chance}", f"{v['first']:.1f} %"))
    page.add(cards([*headline, ("clips", str(record["clips"]))]))
    _similarity(page, record)
    for m, rows in record["augmentations"].items():
        page.heading(f"{TITLES[m]}: augmentation by augmentation").add(part_table(rows)).figure(_part_figure(rows))
    page.text(
        "All augmentations are drawn together, as in training; a row counts the views in which its augmentation is "
        "on. Redrawn: only what the vector says of this augmentation is drawn anew (views where that changes "
        "nothing are not counted). Left out: the vector says that this augmentation did nothing. ✓ the true vector is "
        "above, ✗ below, ≈ the interval holds zero.",
        note=True,
    )
    _alone(page, record)
    _approximation(page, record)
    if shown:
        page.heading("A few clips and what was measured on them")
        page.text("True vector / identity / vectors of the clip's other draws.", note=True)
    for example in shown:
        page.figure(_example_figure(example), f"{TITLES[example.modality]} of {example.name}")
    return page


def equivariance_lines(record: dict[str, Any]) -> list[str]:
    """The record in a few lines, for a terminal."""
    lines = []
    for m, v in record["similarity"].items():
        rank = record["ranking"][m]
        lines.append(
            f"{m}: cosine {v['true']['mean']:.3f} (identity {v['identity']['mean']:.3f}, another draw "
            f"{v['another_draw']['mean']:.3f}); finds its own view among {rank['draws']} in {rank['first']:.1f} % "
            f"(chance {rank['chance_first']:.1f} %)"
        )
        for name, row in record["augmentations"][m].items():
            told = ", ".join(f"{row[k]['true_is']} {label} ({_difference(row[k])})" for k, label in BASELINES.items())
            lines.append(f"  {name}: {row['true']:.3f}, {told}")
    return lines


def _similarity(page: Page, record: dict[str, Any]) -> None:
    page.heading("Similarity under full augmentations")
    page.add(similarity_table(record))
    page.text(
        "True: cosine of z-hat = g_intra(u(h, t)) and z' = g_intra(mean h'), the paper's measure. Identity: "
        "g_intra(mean h) in place of z-hat. Another draw: z-hat for another draw of the same clip. Centred: the mean "
        "of all z' subtracted first (one draw a clip), so that embeddings which are all alike score nothing. First "
        "of n: how often z-hat is nearest to its own view among n views of its clip; ties count against it.",
        note=True,
    )
    ours = {c: record["similarity"][m]["true"]["mean"] for c, m in (("A", AUDIO), ("V", VISUAL))}
    named = {f"{kind}, paper": v for kind, v in record["paper"].items()} | {f"{record['predictor']}, this model": ours}
    page.add(table(["predictor", "A", "V"], [[name, f"{v['A']:.2f}", f"{v['V']:.2f}"] for name, v in named.items()]))
    page.text("The paper's figures are of ViT-B on AudioSet: other data, another scale.", note=True)


def similarity_table(record: dict[str, Any]) -> str:
    """Both modalities, plain and centred, with the ranks."""
    header = ["", "true", "identity", "another draw", "true - identity", "true - another", "first of n", "mean 1/rank"]
    rows = []
    for kind, label in (("similarity", ""), ("centred", ", centred")):
        for m, v in record[kind].items():
            rank = record["ranking"][m]
            ranks = [f"{rank['first']:.1f} %", f"{rank['reciprocal_rank']:.2f}"] if kind == "similarity" else ["", ""]
            rows.append(
                [TITLES[m] + label, f"{v['true']['mean']:.3f}"]
                + [f"{v[k]['mean']:.3f}" for k in ("identity", "another_draw")]
                + [_difference(v[k]) for k in ("identity", "another_draw")]
                + ranks
            )
    first = next(iter(record["ranking"].values()))
    chance = [f"{first['chance_first']:.1f} %", f"{first['chance_reciprocal_rank']:.2f}"]
    return table(header, [*rows, ["chance", *[""] * 5, *chance]])


def _difference(v: dict[str, Any]) -> str:
    # Spaces that do not break keep a difference on one line of its cell.
    return f"{v['difference']:+.4f} ± {v['high'] - v['difference']:.4f}".replace(" ", "\u00a0")


def part_table(rows: dict[str, Any]) -> str:
    """One line per augmentation: cosines, and paired differences marked by where the true vector stands."""
    known = {k: label for k, label in BASELINES.items() if k in next(iter(rows.values()))}
    header = ["augmentation", "clips", "true", *SHOWN_MEANS, *(f"true - {label}" for label in known.values())]
    lines = [
        [name, str(v["clips"]), f"{v['true']:.3f}"]
        + [f"{v[k]['mean']:.3f}" for k in SHOWN_MEANS]
        + [f"{MARKS[v[k]['true_is']]}\u00a0{_difference(v[k])}" for k in known]
        for name, v in rows.items()
    ]
    return table(header, lines)


def _part_figure(rows: dict[str, Any]) -> bytes:
    figure = new_figure(11.0, 6.0)
    above, below = figure.subplots(2, 1)
    series = {"true": [v["true"] for v in rows.values()]}
    series |= {label: [v[k]["mean"] for v in rows.values()] for k, label in BASELINES.items()}
    bars(above, list(rows), series, "mean cosine with z'", digits=2)
    above.margins(y=0.12)
    above.legend(frameon=False, fontsize=8, ncols=len(series), loc="lower right", bbox_to_anchor=(1, 1))
    told = {
        f"true - {label}": [(v[k]["difference"], v[k]["low"], v[k]["high"]) for v in rows.values()]
        for k, label in BASELINES.items()
    }
    intervals(below, list(rows), told, "difference of cosines, 95 % interval; linear below 0.001, then logarithmic")
    below.set_xscale("symlog", linthresh=1e-3)
    return png(figure)


def _alone(page: Page, record: dict[str, Any]) -> None:
    page.heading("Each augmentation alone")
    page.text(
        "Nothing else is applied, so that identity is the embedding of a view that differs by this augmentation only. "
        "Where it is near 1, the embedding hardly notices the augmentation and leaves u nothing to predict. Training "
        "never showed such views: crops of the whole with nothing else are at the edge of what it drew.",
        note=True,
    )
    for m, rows in record["alone"].items():
        page.add(f"<h3>{TITLES[m]}</h3>", part_table(rows))
        change = ", ".join(f"{name} {v['input_change']:.2f}" for name, v in rows.items())
        page.text(f"How far the input moves, in its own standard deviations: {change}.", note=True)


def _approximation(page: Page, record: dict[str, Any]) -> None:
    page.heading("The centroid and what it stands for")
    modalities = record["approximation"]
    first = next(iter(modalities.values()))
    page.text(
        "Eqs. (11), (12): the centroid of S predictions stands for the mean representation of augmented inputs. That "
        f"mean is taken over {first['real']} really augmented inputs, for {first['clips']} clips. Beside the centroid: "
        "the original, without any prediction, and the mean of S other really augmented inputs, which costs S passes "
        "of the encoder. Bands hold eight of ten clips.",
        note=True,
    )
    for kind, caption in (("plain", "Plain cosines."), ("centred", "Cosines about the mean over clips.")):
        page.figure(_approximation_figure(modalities, kind), caption)
    page.add(approximation_table(modalities))


def _approximation_figure(modalities: dict[str, Any], kind: str) -> bytes:
    figure = new_figure(11.0, 6.0)
    grid = figure.subplots(len(modalities), len(SPACES), squeeze=False)
    for axes, (m, spaces) in zip(grid, modalities.items(), strict=True):
        for axis, (space, label) in zip(axes, SPACES.items(), strict=True):
            v = spaces[space][kind]
            at = [float(s) for s in v["predicted"]]
            series = {
                name: [(p["mean"], p["p10"], p["p90"]) for p in v[k].values()]
                for k, name in (("predicted", "centroid of S predictions"), ("real", "mean of S real views"))
            }
            banded_curves(axis, at, series, {"original": v["original"]["mean"]}, "S", "cosine with the real mean")
            axis.set_title(f"{TITLES[m]}, {label}", fontsize=9)
    return png(figure)


def approximation_table(modalities: dict[str, Any]) -> str:
    """Mean cosines with the real mean against S."""
    at = list(next(iter(modalities.values()))["representation"]["plain"]["predicted"])
    rows = []
    for m, spaces in modalities.items():
        for space, label in SPACES.items():
            for kind in ("plain", "centred"):
                v, name = spaces[space][kind], f"{TITLES[m]}, {label}{', centred' if kind == 'centred' else ''}"
                for k, what in (("predicted", "centroid"), ("real", "real views")):
                    original = f"{v['original']['mean']:.3f}" if k == "predicted" else ""
                    rows.append([f"{name}: {what}", original, *(f"{v[k][s]['mean']:.3f}" for s in at)])
    return table(["cosine with the mean of real views", "original", *(f"S = {s}" for s in at)], rows)


def _example_figure(example: Example) -> bytes:
    titles = ["original"]
    for true, identity, another in zip(example.true, example.identity, example.another, strict=True):
        titles.append(f"{true:.2f} / {identity:.2f} / {another:.2f}")
    figure = new_figure(1.8 * len(titles), 1.9 if example.modality == VISUAL else 1.5)
    axes = list(figure.subplots(1, len(titles)))
    inputs = np.concatenate([example.original[None].numpy(), example.views.numpy()])
    if example.modality == VISUAL:
        image_row(axes, list(inputs.transpose(0, 2, 3, 1).clip(0, 1)), titles)
    else:
        limits = (float(np.quantile(inputs[0], 0.02)), float(np.quantile(inputs[0], 0.998)))
        spectrogram_row(axes, list(inputs[:, 0]), limits)
        for axis, title in zip(axes, titles, strict=True):
            axis.set_title(title, fontsize=8)
    return png(figure)
