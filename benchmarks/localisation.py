"""Localisation on the world's held-out scenes, for several seeds of one recipe.

    for s in 0 1 2; do equiav pretrain configs/pretrain/world.yaml seed=$s data.seed=$s --out runs/world-$s; done
    python benchmarks/localisation.py runs/world-0 runs/world-1 runs/world-2

Methods are compared on the validation split; the default one is reported on the test split, beside the centre prior and
another clip's sound. Writes results/localisation.json after every run.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from equiav.build import build_dataset
from equiav.evaluation import METHODS, Localisation, method_of
from equiav.inference import LoadedModel, load_model
from equiav.io import provenance, write_json

RESULTS = Path(__file__).parent / "results"


def localisation(loaded: LoadedModel) -> dict[str, Any]:
    def measured(split: Any, method: Any) -> dict[str, Any]:
        clips = build_dataset(loaded.config, split)
        found: dict[str, Any] = Localisation(method=method, examples=0)(loaded, clips)["localisation"]
        return found

    return {
        "method": method_of(loaded),
        "test": measured("test", None),
        "validation": {method: measured("validation", method) for method in METHODS},
    }


def main() -> None:
    where: dict[str, Any] = {}
    for name in sys.argv[1:]:
        loaded = load_model(name)
        seed = str(loaded.config.seed)
        facts = {"steps": loaded.meta["step"], "batch": loaded.config.train.batch}
        where[seed] = facts | localisation(loaded)
        write_json(RESULTS / "localisation.json", {"seeds": where, "provenance": provenance()})
        print(f"{name}: done", flush=True)


if __name__ == "__main__":
    main()
