"""Cross-validation over the publishers' folds: one classifier per fold, each judged on the fold it never saw."""

from __future__ import annotations

import os
import statistics
from pathlib import Path
from typing import Any

from equiav.build_labelled import sections
from equiav.config import Config, ShardsConfig
from equiav.data import INDEX, META, ShardDataset, prepare, read_benchmark
from equiav.distributed import broadcast_flag, rank
from equiav.errors import ConfigError, DataError, EquiAVError
from equiav.evaluation import write_evaluation
from equiav.report import Page, bars, cards, new_figure, png, table
from equiav.training.finetune import finetune
from equiav.training.run import Say, log

FIGURES = ("mAP", "accuracy", "d_prime")
PREPARED = "data"  # in the run's folder, where a published layout was given


def finetune_folds(config: Config, out: Path, say: Say = log.info) -> dict[str, Any] | None:
    """Fine-tunes and judges once per fold, in `out`/fold1 and so on; None if told to stop before the last.

    `data.path` is a prepared folder whose clips have folds, or ESC-50 as it is published. Run again, it carries on.
    """
    _, tune = sections(config)
    if not isinstance(config.data, ShardsConfig):
        raise ConfigError("--folds needs a prepared folder or a published set (data.kind: shards)")
    folder = _prepared(Path(config.data.path), out / PREPARED, say)
    results = {}
    for fold in _folds(folder):
        data = config.data.model_copy(update={"path": str(folder), "fold": fold})
        done = finetune(config.model_copy(update={"data": data}), out / f"fold{fold}", _announced(fold, say))
        if done.outcome.interrupted:
            return None
        assert done.results is not None  # a fold always has test clips
        results[fold] = done.results["metrics"]
    record: dict[str, Any] = {"task": "folds", "metric": tune.metric, "weights": config.weights or "none: from scratch"}
    record |= {"folds": results, "mean": _mean(results), "seed": config.seed}
    if rank() == 0:
        write_evaluation(out, record, _page(record))
    return record


def _announced(fold: int, say: Say) -> Say:
    return lambda line: say(f"fold {fold}: {line}")


def _prepared(path: Path, place: Path, say: Say) -> Path:
    """The folder itself if it is prepared; ESC-50's published layout is prepared first, by the first process."""
    if (path / META).is_file() and (path / INDEX).is_dir():
        return path
    failure: EquiAVError | None = None
    if rank() == 0:
        try:
            found = read_benchmark("esc50", path)
            say(found.line())
            prepare(found.sources, place, workers=os.cpu_count() or 1, need=("audio",), say=say)
        except EquiAVError as error:
            failure = error
    if broadcast_flag(failure is not None):
        raise failure or DataError(f"{path}: could not be prepared by the first process")
    return place


def _folds(folder: Path) -> list[int]:
    clips = ShardDataset(folder, None)
    found = sorted({int(clips.info(i).get("fold") or 0) for i in range(len(clips))} - {0})
    if len(found) < 2:
        raise DataError(f"{folder}: its clips have no folds; --folds is for sets published with some, as ESC-50 is")
    return found


def _mean(results: dict[int, dict[str, float | None]]) -> dict[str, float | None]:
    """Mean over folds of each figure that is defined in all of them."""
    means: dict[str, float | None] = {}
    for name in FIGURES:
        values = [of_fold[name] for of_fold in results.values()]
        known = [v for v in values if v is not None]
        means[name] = statistics.fmean(known) if len(known) == len(values) else None
    return means


def _page(record: dict[str, Any]) -> Page:
    page = Page("One classifier per fold")
    page.text("Each classifier was trained without one fold, chosen on a part of the others, and judged on that fold.")
    mean, metric = record["mean"], record["metric"]
    page.add(cards([(f"mean {name}", _shown(mean[name])) for name in ("mAP", "accuracy")]))
    figure = new_figure(6.5, 3.0)
    names = [f"fold {fold}" for fold in record["folds"]]
    bars(figure.add_subplot(), names, {metric: [f[metric] or 0.0 for f in record["folds"].values()]}, f"{metric}, %")
    page.figure(png(figure))
    rows = [[f"fold {k}", *(_shown(v[name]) for name in FIGURES), str(v["clips"])] for k, v in record["folds"].items()]
    page.text("mAP and accuracy in per cent.", note=True)
    page.add(table(["", *FIGURES, "clips"], [*rows, ["mean", *(_shown(mean[name]) for name in FIGURES), ""]]))
    return page


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
