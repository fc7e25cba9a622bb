"""What pre-training is worth to a classifier, three seeds each; results are written after every run.

    python benchmarks/finetune.py class_paired --pretrained 'runs/class_paired/seed{seed}' --data class_paired_train.tar
    python benchmarks/finetune.py av_mnist --pretrained 'runs/av_mnist/seed{seed}' --data av_mnist.tar
    python benchmarks/finetune.py world --pretrained runs/demo

class_paired and av_mnist: the audio branch from the checkpoint and from scratch, equal epochs, judged on held-out folds
or speakers. world: audio, visual and audio-visual classifiers, from the checkpoint and from scratch. Runs that
results/finetune.json already holds are not repeated; --again repeats them. key=value changes the recipe for all runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from equiav.config import load_config
from equiav.provenance import provenance, write_json
from equiav.training import finetune

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results/finetune.json"
MODES = {"world": ("audio", "visual", "audiovisual"), "class_paired": ("audio",), "av_mnist": ("audio",)}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", choices=MODES)
    parser.add_argument("overrides", nargs="*", help="key=value")
    parser.add_argument("--pretrained", required=True, help="a run's folder; {seed} in it stands for the seed")
    parser.add_argument("--data", help="the tar of a paired recipe")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "runs/finetune-benchmark")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--again", action="store_true")
    return parser.parse_args()


def one(args: argparse.Namespace, start: str, mode: str, seed: int) -> dict[str, Any]:
    """One run; a folder of its own, so that an interrupted one carries on."""
    where = Path(args.pretrained.format(seed=seed)).resolve()
    overrides = [f"seed={seed}", f"classifier.mode={mode}", *args.overrides]
    overrides += [f"weights={where}"] if start == "pretrained" else []
    overrides += [f"data.path={Path(args.data).resolve()}"] if args.data else []
    began = time.process_time()
    done = finetune(
        load_config(ROOT / f"configs/finetune/{args.recipe}.yaml", tuple(overrides)),
        args.out / args.recipe / f"{start}-{mode}-{seed}",
        lambda line: print(f"{start}, {mode}, seed {seed}: {line}", flush=True),
    )
    assert done.results is not None
    assert done.best is not None
    return {
        "metrics": done.results["metrics"],
        "chance": done.results["chance"],
        "validation": done.best["validation"],
        "chosen_at": done.best["step"],
        "steps": done.outcome.total,
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def table(runs: dict[str, dict[str, Any]], metric: str) -> str:
    """Per start and mode: every seed, mean and deviation, on the test split."""
    lines = [f"{'start':<12} {'mode':<12} {metric} on test by seed; mean and deviation"]
    groups: dict[str, list[float]] = {}
    for key, run in sorted(runs.items()):
        groups.setdefault(key.rpartition("/")[0], []).append(run["metrics"][metric])
    for key, values in groups.items():
        start, mode = key.split("/")
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        each = " ".join(f"{v:.1f}" for v in values)
        lines.append(f"{start:<12} {mode:<12} {each}; {statistics.fmean(values):.1f} +- {spread:.1f}")
    return "\n".join(lines)


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    config = load_config(ROOT / f"configs/finetune/{args.recipe}.yaml", tuple(args.overrides))
    assert config.finetune is not None
    whole: dict[str, Any] = json.loads(args.results.read_text()) if args.results.exists() else {}
    part = {} if args.again else whole.get(args.recipe, {})
    facts = {"epochs": config.train.epochs, "overrides": args.overrides, "metric": config.finetune.metric}
    if part and any(part[k] != v for k, v in facts.items()):
        raise SystemExit(f"{args.results} holds runs of {args.recipe} with other settings; use --again")
    part = {**facts, "recipe": f"configs/finetune/{args.recipe}.yaml", "runs": part.get("runs", {})}
    for seed in range(args.seeds):
        for mode in MODES[args.recipe]:
            for start in ("pretrained", "scratch"):
                key = f"{start}/{mode}/{seed}"
                if key in part["runs"]:
                    continue
                part["runs"][key] = one(args, start, mode, seed)
                whole[args.recipe] = {**part, "provenance": provenance()}
                write_json(args.results, whole)
    print(table(part["runs"], config.finetune.metric))


if __name__ == "__main__":
    main()
