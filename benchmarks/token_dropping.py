"""Half of the tokens in pre-training: how much faster a step is, and what that costs in retrieval.

    python benchmarks/token_dropping.py speed       # the base model; 4 minutes on two idle cores
    OMP_NUM_THREADS=1 python benchmarks/token_dropping.py world       # 3 seeds, 15 minutes on one idle core

Both write results/token_dropping.json. `speed`: steps with all tokens and with half of them take turns, and medians of
CPU time are compared. `world`: configs/pretrain/ablation_world.yaml with all and with half of the tokens, equal seeds
and steps; R@k on the test scenes, on all tokens either way, and differences paired by seed. Runs that the file already
holds are not repeated; --again repeats them.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
from pathlib import Path
from typing import Any

from base_step import SIZES, Stepper, config_of
from equiav.build import build_dataset
from equiav.evaluation import Retrieval
from equiav.inference import load_model
from equiav.io import provenance, write_json
from equiav.reproduction import paired_difference
from equiav.training import train_on_cores

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "configs/pretrain/ablation_world.yaml"
RESULTS = Path(__file__).parent / "results" / "token_dropping.json"
ALL, HALF = 1.0, 0.5
WAYS, RECALLS = ("audio_to_video", "video_to_audio"), ("R@1", "R@5", "R@10")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("speed", "world"))
    parser.add_argument("overrides", nargs="*", help="key=value, for the world")
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "runs/token_dropping")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--again", action="store_true")
    return parser.parse_args()


def speed(size: str, batch: int, pairs: int) -> dict[str, Any]:
    stepper = Stepper(config_of(size), batch)
    stepper.timed(stepper.draws(0))
    times: dict[float, list[tuple[float, float]]] = {ALL: [], HALF: []}
    for pair in range(pairs):
        for keep in (ALL, HALF) if pair % 2 else (HALF, ALL):
            times[keep].append(stepper.timed(stepper.draws(pair, keep=keep)))
        print(f"pair {pair + 1}/{pairs}:", {k: f"{t[-1][0]:.1f} CPU-s" for k, t in times.items()}, flush=True)
    cpu, wall = ({k: statistics.median(t[i] for t in v) for k, v in times.items()} for i in (0, 1))
    return {
        "size": size, "batch": batch, "pairs": pairs, "cpu_seconds": cpu, "wall_seconds": wall,
        "times_as_fast": cpu[ALL] / cpu[HALF], "all": times, "provenance": provenance(),
    }  # fmt: skip


def children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def trained(keep: float, seed: int, out: Path, overrides: list[str]) -> dict[str, Any]:
    """A run of the recipe, and its retrieval on the test scenes."""
    before = children_cpu()
    changes = (f"objective.keep_tokens={keep}", f"seed={seed}", *overrides)
    label = f"keep {keep}, seed {seed}"
    train_on_cores(RECIPE, changes, out, processes=1, say=lambda line: print(f"{label}: {line}", flush=True))
    loaded = load_model(out)
    found = Retrieval(examples=0)(loaded, build_dataset(loaded.config, "test"))["retrieval"]
    return {
        "steps": loaded.meta["step"], "cpu_seconds": children_cpu() - before,
        **{f"{way}/{k}": found[way][k] for way in WAYS for k in RECALLS},
    }  # fmt: skip


def differences(runs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Half minus all, paired by seed, with the 95 % interval."""
    found = {}
    for measure in (f"{way}/{k}" for way in WAYS for k in RECALLS):
        by_seed: dict[float, dict[int, float]] = {ALL: {}, HALF: {}}
        for key, run in runs.items():
            keep, seed = key.split("/")
            by_seed[float(keep)][int(seed)] = run[measure]
        difference = paired_difference(by_seed[HALF], by_seed[ALL])
        if difference:
            found[measure] = {"mean": difference.mean, "half_width": difference.half_width}
    return found


def world(args: argparse.Namespace, whole: dict[str, Any]) -> None:
    """All runs, the results file written after each."""
    part = {} if args.again else whole.get("world", {})
    if part and part["overrides"] != args.overrides:
        raise SystemExit(f"{args.results} holds runs with other settings; use --again")
    runs = part.get("runs", {})
    for seed in range(args.seeds):
        for keep in (ALL, HALF):
            key = f"{keep}/{seed}"
            if key not in runs:
                runs[key] = trained(keep, seed, args.out / f"{keep}-{seed}", args.overrides)
            whole["world"] = {
                "recipe": "configs/pretrain/ablation_world.yaml", "overrides": args.overrides, "runs": runs,
                "half_minus_all": differences(runs), "provenance": provenance(),
            }  # fmt: skip
            write_json(args.results, whole)
    print(json.dumps(whole["world"]["half_minus_all"], indent=1))


def main() -> None:
    args = arguments()
    whole: dict[str, Any] = json.loads(args.results.read_text()) if args.results.exists() else {}
    if args.part == "world":
        world(args, whole)
        return
    whole["speed"] = speed(args.size, args.batch, args.pairs)
    write_json(args.results, whole)
    print({k: whole["speed"][k] for k in ("cpu_seconds", "times_as_fast")})


if __name__ == "__main__":
    main()
