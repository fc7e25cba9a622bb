"""Pre-training on real sounds and images paired by class: class-level retrieval on held-out data, three seeds.

    python benchmarks/paired.py class_paired class_paired_train.tar     # writes results/class_paired.json
    python benchmarks/paired.py av_mnist av_mnist.tar                   # writes results/av_mnist.json

Trains configs/pretrain/NAME.yaml with seeds 0, 1, 2 and reports P@1, P@5, P@10 and mAP on the test split beside chance,
and the same for the untrained model. Results are written after every seed.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

from equiav.build import build_dataset, build_model
from equiav.config import load_config
from equiav.evaluation import Retrieval
from equiav.inference import LoadedModel, load_model, with_banks
from equiav.io import provenance, write_json
from equiav.training import train_on_cores

ROOT = Path(__file__).parents[1]
SEEDS = (0, 1, 2)


def held_out(model: LoadedModel) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = Retrieval(examples=0)(model, build_dataset(model.config, "test"))["retrieval"]
    return found


def main() -> None:
    name, path = sys.argv[1], Path(sys.argv[2]).resolve()
    folder = Path(sys.argv[3]) if len(sys.argv) > 3 else ROOT / "runs" / name
    recipe = ROOT / "configs/pretrain" / f"{name}.yaml"
    runs: dict[str, object] = {}
    for seed in SEEDS:
        overrides = (f"data.path={path}", f"seed={seed}")
        out = folder / f"seed{seed}"
        shutil.rmtree(out, ignore_errors=True)
        start = time.perf_counter()
        train_on_cores(
            recipe, overrides, out, processes=2, say=lambda line, s=seed: print(f"seed {s}: {line}", flush=True)
        )
        seconds = time.perf_counter() - start
        config = load_config(recipe, overrides)
        untrained, trained = held_out(with_banks(build_model(config).eval(), config)), held_out(load_model(out))
        runs[str(seed)] = {"seconds": seconds, "test": trained, "untrained": untrained}
        record = {"recipe": f"configs/pretrain/{name}.yaml", "split": "test", "seeds": runs, "provenance": provenance()}
        write_json(ROOT / "benchmarks/results" / f"{name}.json", record)
        print(f"seed {seed}: {trained}", flush=True)


if __name__ == "__main__":
    main()
