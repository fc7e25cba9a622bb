"""CPU time of a training step with and without `train.compile`, taken in turns in one process.

    python benchmarks/compile.py        # about 3 minutes on one idle core; results/compile.json

The first compiled step, which includes the compilation, is reported apart.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from base_step import SIZES, Stepper, config_of
from equiav.io import provenance, write_json
from equiav.training.optim import compile_blocks

RESULTS = Path(__file__).parent / "results" / "compile.json"


def measure(size: str, clips: int, repeats: int) -> dict[str, Any]:
    """Seconds of CPU time a step, medians of `repeats`, with losses' gradients of the same draws."""
    steppers = {"plain": Stepper(config_of(size), clips), "compiled": Stepper(config_of(size), clips)}
    compile_blocks(steppers["compiled"].objective.model)
    first = {name: stepper.timed(stepper.draws(0))[0] for name, stepper in steppers.items()}
    found: dict[str, list[float]] = {name: [] for name in steppers}
    for number in range(1, repeats + 1):
        for name, stepper in steppers.items():
            found[name].append(stepper.timed(stepper.draws(number))[0])
    medians = {name: statistics.median(times) for name, times in found.items()}
    return {
        "clips": clips, "repeats": repeats, "first_step_cpu_seconds": first, "step_cpu_seconds": medians,
        "compiled_over_plain": medians["compiled"] / medians["plain"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["micro", "tiny"])
    parser.add_argument("--clips", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    record: dict[str, Any] = {"sizes": {}}
    for size in args.sizes:
        record["sizes"][size] = measure(size, args.clips, args.repeats)
        print(size, record["sizes"][size], flush=True)
        write_json(args.results, {**record, "provenance": provenance()})


if __name__ == "__main__":
    main()
