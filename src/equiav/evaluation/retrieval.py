"""Retrieval between modalities: R@k where each clip has one partner, precision where only classes pair.

Ranks are counted without ever holding the square matrix of similarities.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from statistics import fmean, pstdev
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from equiav.build import build_bank
from equiav.data import Dataset, evenly_spaced, labels_of, multi_hot
from equiav.errors import DataError, ShapeError
from equiav.evaluation.base import Examples, Report, Results, of_list, of_list_lines, silent
from equiav.evaluation.embed import embed_with_banks
from equiav.inference import Banks, LoadedModel
from equiav.types import VISUAL, Embeddings, Modality

CHUNK = 512
KS = (1, 5, 10)
SIZES = ("pool", "queries", "gallery", "chance")  # what no bank can change
FOUND = 5  # items shown for a query
EDGES = (1, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)  # of the bins of ranks
Metrics = dict[str, dict[str, float]]  # by direction and name
Ranks = dict[tuple[Modality, Modality], Int[Tensor, " n"]]  # by query and gallery


def direction(query: Modality, gallery: Modality) -> str:
    """The key of a direction in results: audio_to_video, video_to_audio, ... (visual is called video there)."""
    words = {VISUAL: "video"}
    return f"{words.get(query, query)}_to_{words.get(gallery, gallery)}"


def ranks(queries: Float[Tensor, "n d"], gallery: Float[Tensor, "n d"], chunk: int = CHUNK) -> Int[Tensor, " n"]:
    """Rank of gallery[i] for queries[i]: 1 + the number of strictly greater cosines."""
    return both_ranks(queries, gallery, chunk)[0]


def both_ranks(
    one: Float[Tensor, "n d"], other: Float[Tensor, "n d"], chunk: int = CHUNK
) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
    """Ranks with either side as queries, from one product of the two.

    A pair's own similarity is taken from the same product as the others', so that equal vectors tie exactly.
    """
    if one.shape != other.shape or one.ndim != 2 or len(one) == 0:
        raise ShapeError(f"retrieval wants two (N, D) sets, got {tuple(one.shape)} and {tuple(other.shape)}")
    one, other = F.normalize(one, dim=1), F.normalize(other, dim=1)
    if not bool(one.isfinite().all() and other.isfinite().all()):
        raise ShapeError("embeddings hold values that are not finite (NaN or infinity)")
    parts = [slice(start, start + chunk) for start in range(0, len(one), chunk)]
    own = torch.cat([(one[rows] @ other[rows].T).diagonal() for rows in parts])
    forth, back = (torch.ones(len(one), dtype=torch.int64, device=one.device) for _ in range(2))
    for rows in parts:
        for columns in parts:
            similarity = one[rows] @ other[columns].T
            forth[rows] += (similarity > own[rows, None]).sum(dim=1)
            back[columns] += (similarity > own[columns]).sum(dim=0)
    return forth, back


def rank_metrics(ranks: Int[Tensor, " n"], ks: Sequence[int] = KS) -> dict[str, float]:
    """R@k and mean reciprocal rank (MRR) in per cent, median rank, and the number of clips that were searched."""
    found = {f"R@{k}": 100 * float((ranks <= k).double().mean()) for k in ks}
    found |= {
        "MRR": 100 * float(ranks.double().reciprocal().mean()),
        "median_rank": float(ranks.double().quantile(0.5)),
    }
    return {**found, "pool": len(ranks)}


def chance(k: int, pool: int) -> float:
    """R@k of guessing, per cent."""
    return 100 * min(1.0, k / pool)


def class_scores(
    queries: Float[Tensor, "n d"],
    query_classes: Shaped[Tensor, "n ..."],
    gallery: Float[Tensor, "m d"],
    gallery_classes: Shaped[Tensor, "m ..."],
    chunk: int = CHUNK,
) -> dict[str, Float[Tensor, " n"]]:
    """How much of what is found first shares a class with each query, as shares: precision among the first k (`P@k`),
    average precision (`mAP`), and the share of its class in the gallery (`chance`).

    Classes are one number each, or rows of zeros and ones. Queries that share no class with anything in the gallery
    cannot be answered and are refused.
    """
    q, g = F.normalize(queries, dim=1), F.normalize(gallery, dim=1)
    places = torch.arange(1, len(g) + 1, device=g.device)
    parts = []
    for start in range(0, len(q), chunk):
        rows = slice(start, start + chunk)
        order = (q[rows] @ g.T).argsort(dim=1, descending=True, stable=True)
        own = query_classes[rows]
        shared = own[:, None] == gallery_classes if own.ndim == 1 else own @ gallery_classes.T > 0
        same = shared.gather(1, order).double()
        if not bool(same.any(dim=1).all()):
            raise ShapeError("some queries are of a class that the gallery does not hold")
        first = [same[:, : min(k, len(g))].mean(dim=1) for k in KS]
        average = (same.cumsum(dim=1) / places * same).sum(dim=1) / same.sum(dim=1)
        parts.append(torch.stack([*first, average, same.mean(dim=1)]))
    return dict(zip((*(f"P@{k}" for k in KS), "mAP", "chance"), torch.cat(parts, dim=1), strict=True))


def class_metrics(
    queries: Float[Tensor, "n d"],
    query_classes: Shaped[Tensor, "n ..."],
    gallery: Float[Tensor, "m d"],
    gallery_classes: Shaped[Tensor, "m ..."],
) -> dict[str, float]:
    """The means of `class_scores`, per cent; chance is the precision of a random order."""
    scores = class_scores(queries, query_classes, gallery, gallery_classes)
    found = {name: 100 * float(of.mean()) for name, of in scores.items()}
    return found | {"queries": len(queries), "gallery": len(gallery)}


def all_ranks(embeddings: Embeddings) -> Ranks:
    """Ranks in every direction between two modalities, each clip's own partner looked for among all clips."""
    found: Ranks = {}
    for a, b in combinations(embeddings.vectors, 2):
        found[a, b], found[b, a] = both_ranks(embeddings[a], embeddings[b])
    return {pair: found[pair] for pair in permutations(embeddings.vectors, 2)}


def retrieval_metrics(embeddings: Embeddings, ks: Sequence[int] = KS) -> Metrics:
    """R@k in every direction between two modalities, each clip's own partner looked for among all clips."""
    return {direction(*pair): rank_metrics(of, ks) for pair, of in all_ranks(embeddings).items()}


def rank_histogram(ranked: Ranks) -> dict[str, dict[str, float]]:
    """Per cent of queries whose partner has which rank, by direction and bin (they widen), and by chance."""
    pool = len(next(iter(ranked.values())))
    ends = [*(e for e in EDGES if e < pool), pool]
    bins = list(zip([1, *(e + 1 for e in ends[:-1])], ends, strict=True))
    found = {
        direction(*pair): {_bin(a, b): 100 * float(((r >= a) & (r <= b)).double().mean()) for a, b in bins}
        for pair, r in ranked.items()
    }
    return found | {"chance": {_bin(a, b): 100 * (b - a + 1) / pool for a, b in bins}}


def _bin(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low}-{high}"


def labelled_embeddings(dataset: Dataset, embeddings: Embeddings) -> dict[Modality, tuple[list[int], Tensor, Tensor]]:
    """The clips that have labels, by modality: their numbers, embeddings and classes; empty where one has none."""
    sides = dataset.sides()
    labels = {m: labels_of(sides[m]) for m in embeddings.vectors}
    classes = dataset.classes or sorted({label for of in labels.values() for clip in of for label in clip})
    found = {}
    for m, of_clips in labels.items():
        rows = [i for i, of_clip in enumerate(of_clips) if of_clip]
        found[m] = (rows, embeddings[m][rows], multi_hot([of_clips[i] for i in rows], classes))
    return found if all(rows for rows, _, _ in found.values()) else {}


def class_retrieval_metrics(dataset: Dataset, embeddings: Embeddings) -> Metrics:
    """Every direction by class: found is what shares at least one label with the query.

    Clips without labels are left out; empty where none has any.
    """
    known = labelled_embeddings(dataset, embeddings)
    return {direction(a, b): class_metrics(*known[a][1:], *known[b][1:]) for a, b in permutations(known, 2)}


def spread(records: Sequence[Metrics]) -> dict[str, dict[str, dict[str, float]]]:
    """Mean, standard deviation, least and greatest of every metric over records of the same dataset."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for way, first in records[0].items():
        found[way] = {}
        for name in (name for name in first if name not in SIZES):
            values = [r[way][name] for r in records]
            found[way][name] = {"mean": fmean(values), "std": pstdev(values), "min": min(values), "max": max(values)}
    return found


@dataclass(frozen=True)
class Retrieval:
    """The evaluator of retrieval, in all directions between the modalities of a dataset.

    `banks` further banks of augmentation vectors, from the seeds that follow the stored one's, state how much the
    choice of bank matters; a model that uses no bank gets none. `split` is for the record, and so is `listed`, the
    number of clips on the published list that the dataset was chosen by. `examples` queries of the first direction are
    shown, half as many of the worst, and half as many of every other direction; 0 shows none.
    """

    ks: tuple[int, ...] = KS
    banks: int = 0
    all_frames: bool = False
    split: str | None = None
    listed: int | None = None
    examples: int = 8
    report: Report = silent

    greater_is_better = True

    @property
    def primary(self) -> str:
        """The last R@k from audio to video, where clips pair the modalities."""
        return f"retrieval/audio_to_video/R@{self.ks[-1]}"

    def __call__(self, model: LoadedModel, dataset: Dataset) -> Results:
        """Both directions of every pair of modalities, from the same embeddings."""
        if self.all_frames and not dataset.one_to_one:
            raise DataError("images paired by class have no frames; leave --all-frames out")
        others, seeds = further_banks(model, self.banks)
        found = embed_with_banks(model, dataset, [model.banks, *others], all_frames=self.all_frames, report=self.report)
        embeddings = found[0]
        if len(embeddings.vectors) < 2:
            raise DataError(f"retrieval needs two modalities; these clips hold only {', '.join(embeddings.vectors)}")
        if dataset.one_to_one:
            ranked = [all_ranks(of_bank) for of_bank in found]
            records = [{direction(*pair): rank_metrics(r, self.ks) for pair, r in of.items()} for of in ranked]
            guess = {f"R@{k}": chance(k, len(embeddings.ids)) for k in self.ks}
        else:
            ranked = []
            records = [class_retrieval_metrics(dataset, of_bank) for of_bank in found]
            if not records[0]:
                raise DataError("only classes pair these modalities, and no clip of one of them has a label")
            first = next(iter(records[0].values()))
            guess = {name: first["chance"] for name in first if name not in SIZES}
        shown = Examples(dataset.sides(), model.config)
        record: dict[str, Any] = {
            "task": "retrieval",
            "split": self.split,
            **of_list(dataset, self.listed),
            "frames": "all" if self.all_frames else "middle",
            "one_to_one": dataset.one_to_one,
            "retrieval": records[0],
            "chance": guess,
            "by_class": class_retrieval_metrics(dataset, embeddings) if dataset.one_to_one else {},
            "spread_over_banks": spread(records) if others else {},
            "further_bank_seeds": list(seeds),
            "bank_seed": model.config.bank.seed if model.banks else None,
            "bank_size": model.config.bank.size if model.banks else None,
            "checkpoint": model.meta,
            "rank_histogram": rank_histogram(ranked[0]) if ranked else {},
            "examples": [],
        }
        if self.examples:
            self.report("drawing examples")
            record["examples"] = list(self._examples(shown, dataset, embeddings, ranked[0] if ranked else {}))
        metric = f"R@{self.ks[-1]}" if dataset.one_to_one else "P@10"
        return Results(
            record,
            primary=f"retrieval/{next(iter(records[0]))}/{metric}",
            lines=tuple(_lines(record)),
            template="retrieval.html",
            assets=shown.assets,
            watch="retrieval",
        )

    def _examples(
        self, shown: Examples, dataset: Dataset, embeddings: Embeddings, ranked: Ranks
    ) -> Iterator[dict[str, Any]]:
        """Queries with what is found first for them, in sections: direction, how they were chosen, queries."""
        few = max(1, self.examples // 2)
        for number, (a, b) in enumerate(permutations(embeddings.vectors, 2)):
            chosen = {"evenly spaced": evenly_spaced(len(embeddings[a]), few if number else self.examples)}
            if number == 0:
                chosen["worst"] = _worst(dataset, embeddings, a, b, few, ranked.get((a, b)))
            for choice, queries in chosen.items():
                asked = [_answers(shown, embeddings, a, b, query, ranked.get((a, b))) for query in queries]
                yield {"direction": direction(a, b), "choice": choice, "queries": asked}


def _answers(
    shown: Examples, embeddings: Embeddings, a: Modality, b: Modality, query: int, found_at: Tensor | None
) -> dict[str, Any]:
    """A query and the items found first for it; where clips pair the modalities also its own partner and rank."""
    similarity = F.normalize(embeddings[b], dim=1) @ F.normalize(embeddings[a][query], dim=0)
    asked = shown.item(a, query, play=True)
    answers = []
    for j in similarity.topk(min(FOUND, len(similarity))).indices.tolist():
        item = shown.item(b, j)
        right = j == query if found_at is not None else bool(set(asked["labels"]) & set(item["labels"]))
        answers.append({**item, "score": round(float(similarity[j]), 4), "right": right})
    own = {} if found_at is None else {"own": shown.item(b, query), "rank": int(found_at[query])}
    return {"query": asked, **own, "found": answers}


def _worst(
    dataset: Dataset, embeddings: Embeddings, a: Modality, b: Modality, count: int, found_at: Tensor | None
) -> list[int]:
    """The queries whose partner has the worst rank, or with the least average precision where only classes pair."""
    if found_at is not None:
        return found_at.topk(min(count, len(found_at))).indices.tolist()
    known = labelled_embeddings(dataset, embeddings)
    rows, queries, classes = known[a]
    scores = class_scores(queries, classes, *known[b][1:])["mAP"]
    return [rows[i] for i in (-scores).topk(min(count, len(rows))).indices.tolist()]


def further_banks(model: LoadedModel, count: int) -> tuple[list[Banks], tuple[int, ...]]:
    """Banks like the stored one from the seeds that follow its own, and those seeds; none for models without one."""
    config = model.config
    seeds = tuple(config.bank.seed + 1 + i for i in range(count if model.uses_banks else 0))
    drawn = [config.model_copy(update={"bank": config.bank.model_copy(update={"seed": s})}) for s in seeds]
    return [{m: build_bank(c, m) for m in model.model.modalities} for c in drawn], seeds


def _lines(record: Mapping[str, Any]) -> list[str]:
    """The metrics for a terminal, with their range over the banks."""
    over = record["spread_over_banks"]

    def said(way: str, name: str, value: float | int) -> str:
        if name in ("pool", "queries", "gallery"):
            return f"{name} {value}"
        of = over.get(way, {}).get(name)
        return f"{name} {value:.1f}" + (f" ({of['min']:.1f} to {of['max']:.1f})" if of else "")

    lines = [f"{way}: " + ", ".join(said(way, k, v) for k, v in of.items()) for way, of in record["retrieval"].items()]
    for way, values in record["by_class"].items():
        lines.append(f"{way} by class: " + ", ".join(f"{k} {values[k]:.1f}" for k in ("P@1", "P@10", "mAP", "chance")))
    lines += of_list_lines(record)
    if record["further_bank_seeds"]:
        lines.append(f"in brackets: least and greatest over {len(record['further_bank_seeds']) + 1} banks of vectors")
    return lines
