"""Half of the tokens in pre-training: how much faster a step of the base model is.

    python benchmarks/token_dropping.py       # 4 minutes on two idle cores; writes results/token_dropping.json

Steps with all tokens and with half of them take turns, and medians of CPU time are compared. What half of the tokens
costs in retrieval is a table of its own: configs/ablation/tokens.yaml.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from base_step import SIZES, Stepper, config_of
from equiav.io import provenance, write_json

RESULTS = Path(__file__).parent / "results" / "token_dropping.json"
ALL, HALF = 1.0, 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    stepper = Stepper(config_of(args.size), args.batch)
    stepper.timed(stepper.draws(0))
    times: dict[float, list[tuple[float, float]]] = {ALL: [], HALF: []}
    for pair in range(args.pairs):
        for keep in (ALL, HALF) if pair % 2 else (HALF, ALL):
            times[keep].append(stepper.timed(stepper.draws(pair, keep=keep)))
        print(f"pair {pair + 1}/{args.pairs}:", {k: f"{t[-1][0]:.1f} CPU-s" for k, t in times.items()}, flush=True)
    cpu, wall = ({k: statistics.median(t[i] for t in v) for k, v in times.items()} for i in (0, 1))
    record = {
        "size": args.size, "batch": args.batch, "pairs": args.pairs, "cpu_seconds": cpu, "wall_seconds": wall,
        "times_as_fast": cpu[ALL] / cpu[HALF], "all": times, "provenance": provenance(),
    }  # fmt: skip
    write_json(args.results, record)
    print({k: record[k] for k in ("cpu_seconds", "times_as_fast")})


if __name__ == "__main__":
    main()
