"""R@k on the generated world against steps and against time: EquiAV, plain contrast, contrast of augmented inputs.

    python benchmarks/world_curves.py       # 20 minutes on two idle cores; writes results/world_curves.json, a plot

Every variant is the world recipe with another objective: `original` contrasts (z, z), `augmented` contrasts (z', z'),
both without an intra-modal term, for as many steps as EquiAV; `original, equal time` gets as long as EquiAV took.
One seed each; the held-out scenes are the validation split.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

from equiav.config import load_config
from equiav.provenance import provenance, write_json
from equiav.report import curves, new_figure, save
from equiav.training import train_on_cores

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "configs/pretrain/world.yaml"
RESULTS = Path(__file__).parent / "results" / "world_curves.json"
PLOT = ROOT / "docs/images/world_curves.png"
PLAIN = ("objective.intra=none", "objective.inter=original")
WAYS = ("audio_to_video", "video_to_audio")


def train(name: str, overrides: tuple[str, ...], out: Path) -> dict[str, object]:
    shutil.rmtree(out, ignore_errors=True)
    start = time.perf_counter()
    train_on_cores(RECIPE, overrides, out, processes=2, say=lambda line: print(f"{name}: {line}", flush=True))
    seconds = time.perf_counter() - start
    records = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    checks = [r for r in records if r["kind"] == "validation"]
    return {
        "overrides": overrides,
        "seconds": seconds,
        "step": [r["step"] for r in checks],
        **{f"{way}/R@{k}": [r[f"{way}/R@{k}"] for r in checks] for way in WAYS for k in (1, 5, 10)},
    }


def mean_r10(run: dict[str, object]) -> list[float]:
    return [(a + b) / 2 for a, b in zip(*(run[f"{way}/R@10"] for way in WAYS), strict=True)]  # type: ignore[call-overload]


def plot(runs: dict[str, dict[str, object]]) -> None:
    figure = new_figure(10, 3.6)
    left, right = figure.subplots(1, 2)
    curves(left, {n: (r["step"], mean_r10(r)) for n, r in runs.items()}, "step", "R@10, mean of both ways, %")
    timed = {}
    for name, run in runs.items():
        steps = run["step"]
        timed[name] = ([s / steps[-1] * run["seconds"] / 60 for s in steps], mean_r10(run))  # type: ignore[index,operator]
    curves(right, timed, "minutes on two cores", "R@10, mean of both ways, %")
    save(figure, PLOT)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/world_curves")
    steps = load_config(RECIPE).train.steps or 0
    runs = {"EquiAV": train("EquiAV", (), folder / "equiav")}
    runs["original"] = train("original", PLAIN, folder / "original")
    runs["augmented"] = train("augmented", ("objective.intra=none", "objective.inter=augmented"), folder / "augmented")
    longer = round(steps * float(str(runs["EquiAV"]["seconds"])) / float(str(runs["original"]["seconds"])))
    more = (*PLAIN, f"train.steps={longer}", f"train.evaluate_every={longer // 10}")
    runs["original, equal time"] = train("original, equal time", more, folder / "original_long")
    write_json(RESULTS, {"recipe": "configs/pretrain/world.yaml", "runs": runs, "provenance": provenance()})
    plot(runs)
    print({name: round(mean_r10(run)[-1], 1) for name, run in runs.items()})


if __name__ == "__main__":
    main()
