"""Equivariance on held-out clips, for several seeds of one recipe.

    python benchmarks/equivariance.py world 500 runs/world-0 runs/world-1 runs/world-2
    python benchmarks/equivariance.py digits 2000 runs/digits-0 runs/digits-1 runs/digits-2 av_mnist.tar

Name, number of clips, runs, and where the data lie if not where they were trained on. Writes
results/equivariance_NAME.json after every run.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from equiav.build import build_dataset, with_data
from equiav.evaluation import Equivariance
from equiav.inference import load_model
from equiav.io import provenance, write_json

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    name, count, *places = sys.argv[1:]
    data = Path(places.pop()) if places[-1].endswith(".tar") else None
    seeds: dict[str, Any] = {}
    for place in places:
        loaded = load_model(place)
        clips = build_dataset(with_data(loaded.config, data), "test")
        record = Equivariance(count=int(count), examples=0)(loaded, clips).record
        facts = {"steps": loaded.meta["step"], "batch": loaded.config.train.batch}
        seeds[str(loaded.config.seed)] = facts | dict(record)
        write_json(RESULTS / f"equivariance_{name}.json", {"seeds": seeds, "provenance": provenance()})
        print(f"{place}: done", flush=True)


if __name__ == "__main__":
    main()
