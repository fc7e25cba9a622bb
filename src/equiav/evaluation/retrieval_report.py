"""The page of a retrieval evaluation: sounds with the pictures found for them, figures against chance, ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from equiav.config import Config
from equiav.data import ClipDataset, PairedDataset, evenly_spaced
from equiav.evaluation.benchmark import WAYS, Record, RetrievalRun, Sides
from equiav.evaluation.exhibits import EXAMPLES, Exhibits, exhibits, small_picture
from equiav.evaluation.retrieval import KS, both_ranks, chance, class_scores
from equiav.report import Page, bars, cards, image, new_figure, player, png, row, table

WORST, BACK, SHOWN = 4, 4, 5
EDGES = (1, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
NAMES = {WAYS[0]: "sound to picture", WAYS[1]: "picture to sound"}


def sound_row(shown: Exhibits, sides: Sides, query: int) -> str:
    """A sound, its own picture and rank where it has one, and the pictures found first; right ones are framed."""
    similarity, best = _best(sides.audio[query], sides.visual)
    title = "its spectrogram" if shown.one_to_one else shown.sound_title(query)
    cells = [player(shown.sound(query).numpy(), shown.sample_rate), image(shown.spectrogram(query), title)]
    if shown.one_to_one:
        rank = 1 + int((similarity > similarity[query]).sum())
        cells.append(_picture(shown, query, f"its own, rank {rank}", hit=True))
    for place, j in enumerate(best, 1):
        more = "" if shown.one_to_one else f", {shown.picture_title(j)}"
        cells.append(_picture(shown, j, f"{place}. {similarity[j]:.2f}{more}", hit=shown.right(query, j)))
    return row(cells)


def picture_query_row(shown: Exhibits, sides: Sides, query: int) -> str:
    """A picture, and the spectrograms of the sounds found first; right ones are framed."""
    similarity, best = _best(sides.visual[query], sides.audio)
    cells = [_picture(shown, query, "the picture" if shown.one_to_one else shown.picture_title(query))]
    if shown.one_to_one:
        rank = 1 + int((similarity > similarity[query]).sum())
        cells.append(image(shown.spectrogram(query), f"its own, rank {rank}", hit=True))
    for place, i in enumerate(best, 1):
        more = "" if shown.one_to_one else f", {shown.sound_title(i)}"
        text = f"{place}. {similarity[i]:.2f}{more}"
        cells.append(image(shown.spectrogram(i), text, hit=shown.right(i, query)))
    return row(cells)


def _best(query: Tensor, gallery: Tensor) -> tuple[Tensor, list[int]]:
    similarity = F.normalize(gallery, dim=1) @ F.normalize(query, dim=0)
    return similarity, similarity.topk(min(SHOWN, len(gallery))).indices.tolist()


def _picture(shown: Exhibits, index: int, text: str, *, hit: bool = False) -> str:
    return small_picture(shown.picture(index), text, hit=hit)


def against_chance(record: Record) -> bytes:
    """Bars of both directions beside guessing, for figures by instance or by class."""
    first = record[WAYS[0]]
    groups = [f"R@{k}" for k in KS] if "R@1" in first else [*(f"P@{k}" for k in KS), "mAP"]
    guess = [chance(k, int(first["pool"])) for k in KS] if "R@1" in first else [first["chance"]] * len(groups)
    figure = new_figure(6.5, 3.0)
    series = {NAMES[way]: [record[way][g] for g in groups] for way in WAYS}
    axis = figure.add_subplot()
    bars(axis, groups, {**series, "chance": guess}, "per cent")
    axis.margins(y=0.1)
    return png(figure)


def rank_histogram(found: dict[str, Int[Tensor, " n"]]) -> bytes:
    """How many queries have their partner at which rank, in bins that widen, beside guessing."""
    pool = len(next(iter(found.values())))
    ends = [*(e for e in EDGES if e < pool), pool]
    starts = [1, *(e + 1 for e in ends[:-1])]
    groups = [f"{a}" if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True)]
    series = {
        name: [100 * float(((r >= a) & (r <= b)).double().mean()) for a, b in zip(starts, ends, strict=True)]
        for name, r in found.items()
    }
    series["chance"] = [100 * (b - a + 1) / pool for a, b in zip(starts, ends, strict=True)]
    figure = new_figure(9.0, 3.0)
    axis = figure.add_subplot()
    bars(axis, groups, series, "per cent of queries")
    axis.margins(y=0.1)
    axis.set_xlabel("rank of the true partner")
    return png(figure)


def _difficulty(clips: ClipDataset, sides: Sides) -> tuple[dict[str, Tensor], Tensor]:
    """Ranks by direction (none where only classes pair), and how badly each sound fared."""
    if isinstance(clips, PairedDataset):
        scores = class_scores(sides.audio, clips.sounds.labels, sides.visual, clips.images.labels)
        return {}, -scores.average_precision
    forth, back = both_ranks(sides.audio, sides.visual)
    return {NAMES[WAYS[0]]: forth, NAMES[WAYS[1]]: back}, forth


def figures_table(run: RetrievalRun) -> str:
    """Every figure on the stored bank, and its spread over the banks where further ones were drawn."""
    rows = []
    for way, values in run.figures.items():
        for name, value in values.items():
            over = run.spread.get(way, {}).get(name)
            cells = [f"{over[k]:.2f}" for k in ("mean", "std", "min", "max")] if over else [""] * 4
            rows.append([f"{NAMES[way]}: {name}", _number(value), *(cells if run.spread else [])])
    header = ["", "stored bank"]
    if run.spread:
        header += [f"mean of {len(run.seeds) + 1} banks", "deviation", "least", "greatest"]
    return table(header, rows)


def _number(value: float | int) -> str:
    return str(value) if isinstance(value, int) else f"{value:.2f}"


def retrieval_page(clips: ClipDataset, config: Config, run: RetrievalRun) -> Page:
    """The whole page."""
    shown, sides = exhibits(clips, config), run.sides
    by_rank, badness = _difficulty(clips, sides)
    page = Page("Retrieval: sounds and pictures that belong together")
    page.add(cards(_headline(run)))
    page.heading("Against chance").figure(against_chance(run.figures), _meaning(shown))
    page.add(figures_table(run))
    page.text(_about_banks(run), note=True)
    if run.by_class:
        page.heading("By class").figure(
            against_chance(run.by_class),
            "How much of what is found first shares a label with the query, its own partner included.",
        )
    if by_rank:
        page.heading("Ranks").figure(rank_histogram(by_rank), "Where the true partner stands; bins widen.")
    own = "its own picture, then " if shown.one_to_one else ""
    page.heading("Sounds, and the pictures found for them")
    page.text(f"Evenly spaced. Each row: a sound, {own}the pictures found first. Green is right.", note=True)
    page.add(*(sound_row(shown, sides, i) for i in evenly_spaced(len(sides.audio), EXAMPLES)))
    page.heading("The sounds that fared worst")
    page.add(*(sound_row(shown, sides, i) for i in badness.topk(min(WORST, len(badness))).indices.tolist()))
    page.heading("Pictures, and the sounds found for them")
    page.add(*(picture_query_row(shown, sides, j) for j in evenly_spaced(len(sides.visual), BACK)))
    return page


def _headline(run: RetrievalRun) -> Sequence[tuple[str, str]]:
    forth, back = (run.figures[way] for way in WAYS)
    if "R@1" in forth:
        names, guess = ("R@1", "R@10"), f"{chance(10, int(forth['pool'])):.1f} %"
        last = [("R@10 by chance", guess), ("clips", str(forth["pool"]))]
    else:
        names = ("P@1", "mAP")
        last = [
            ("by chance", f"{forth['chance']:.1f} %"),
            ("sounds, images", f"{forth['queries']}, {forth['gallery']}"),
        ]
    return [
        *((f"{k}, {NAMES[w]}", f"{v[k]:.1f} %") for w, v in zip(WAYS, (forth, back), strict=True) for k in names),
        *last,
    ]


def _meaning(shown: Exhibits) -> str:
    if shown.one_to_one:
        return "R@k: share of queries whose own partner is among the first k; rank = 1 + the number strictly nearer."
    return "P@k: share of the first k that are of the query's class; no sound of this set belongs to one image."


def _about_banks(run: RetrievalRun) -> str:
    if not run.seeds:
        return "One bank of augmentation vectors; --banks draws further ones to state how much they matter."
    seeds = ", ".join(map(str, run.seeds))
    return f"The banks: the one stored with the model, and those drawn from the seeds {seeds}. The same encoder tokens."
