"""Search in a small library of real videos, judged by class: how good is it, and against what chance.

    python benchmarks/library.py library.csv runs/class_paired/seed0 runs/class_paired/seed1 runs/class_paired/seed2

library.csv lists the videos with a column `label`. Every video whose label another one shares asks once with its sound
for pictures and once with its pictures for sounds, and the same within sounds and within pictures; its own entries do
not count. Writes results/library.json.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import equiav
from equiav.io import provenance, write_json
from equiav.search import ask, index_folder

RESULTS = Path(__file__).parent / "results"
FIRST = (1, 5)


WAYS = {
    "sound to picture": ("audio", "visual"),
    "picture to sound": ("image", "audio"),
    "sound to sound": ("audio", "audio"),
    "picture to picture": ("image", "visual"),
}


def answers(index: Any, query: Any, entry: Any, labels: dict[str, str], among: Any) -> list[str]:
    """Labels of the files found, nearest first, each file once, without the one that asks."""
    found: dict[str, str] = {}
    for hit in index.search(query, k=len(index), among=among):
        source = hit.clip.source
        if source != entry.source and source in labels:
            found.setdefault(source, labels[source])
    return list(found.values())


def judged(index: Any, embedder: Any) -> dict[str, dict[str, float]]:
    """Precision among the first 1 and 5 labelled files, per cent, beside a random order."""
    entries = {e.source: e for e in index.clips() if e.labels}
    labels = {source: e.labels[0] for source, e in entries.items()}
    askers = [e for s, e in entries.items() if list(labels.values()).count(labels[s]) > 1]
    record: dict[str, dict[str, float]] = {}
    for way, (kind, among) in WAYS.items():
        sums, chance = dict.fromkeys(FIRST, 0.0), 0.0
        by_class: dict[str, list[float]] = {}
        for entry in askers:
            question: dict[str, Any] = {kind: entry.path}
            order = answers(index, ask(embedder, **question), entry, labels, among)
            same = [found == labels[entry.source] for found in order]
            for k in FIRST:
                sums[k] += sum(same[:k]) / k
            by_class.setdefault(labels[entry.source], []).append(float(same[0]))
            chance += sum(same) / len(same)
        n = len(askers)
        mean_of_classes = sum(sum(v) / len(v) for v in by_class.values()) / len(by_class)
        record[way] = {f"P@{k}": 100 * sums[k] / n for k in FIRST} | {
            "P@1, mean of classes": 100 * mean_of_classes, "chance": 100 * chance / n, "queries": n,
            "labelled": len(labels), "classes": len(by_class),
        }  # fmt: skip
    return record


def main() -> None:
    listed, *models = (Path(a) for a in sys.argv[1:])
    seeds: dict[str, Any] = {}
    for path in models:
        model = equiav.load_model(path)
        embedder = equiav.Embedder(model)
        with tempfile.TemporaryDirectory() as folder:
            index = equiav.Index.create(Path(folder) / "index", model, model_path=path)
            index_folder(index, embedder, listed, progress=lambda line: None)
            seeds[str(model.config.seed)] = {"entries": len(index), **judged(index, embedder)}
        print(path.name, seeds[str(model.config.seed)], flush=True)
        write_json(RESULTS / "library.json", {"recipe": "class_paired", "seeds": seeds, "provenance": provenance()})


if __name__ == "__main__":
    main()
