"""Where the CPU time of a step goes with the small models that are trained without a GPU.

    OMP_NUM_THREADS=1 python benchmarks/small_step.py PREPARED_FOLDER     # 3 minutes; writes results/small_step.json

The recipe of the demo, and that for your own videos on a prepared folder (with 8 clips a step). Inside the networks:
encoders, predictors, heads, losses, their gradient and the optimiser. Outside: drawing, reading and collating clips,
the filter bank, the augmentations. The first steps, which make and keep clips, are left out.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from equiav.config import load_config
from equiav.io import provenance, write_json
from equiav.objectives import EquiAVObjective
from equiav.training import Trainer

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "small_step.json"
PARTS = {"draw": "draws", "_input": "filter bank and scaling", "view": "augmentations"}


def measured(recipe: str, overrides: tuple[str, ...], steps: int, left_out: int) -> dict[str, Any]:
    """CPU-milliseconds a step by part, and the share outside the networks."""
    spent: defaultdict[str, float] = defaultdict(float)
    marks: list[float] = []

    def counting(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            began = time.process_time()
            found = method(*args, **more)
            if left_out < len(marks) < steps:
                spent[name] += time.process_time() - began
            return found

        return call

    class Timed(Trainer):
        def _take(self, *args: Any) -> Any:
            marks.append(time.process_time())
            taken = super()._take(*args)
            if left_out < len(marks) < steps:
                spent["step"] += time.process_time() - marks[-1]
            return taken

    methods = {name: getattr(EquiAVObjective, name) for name in PARTS}
    out = Path(tempfile.mkdtemp())
    try:
        for name, method in methods.items():
            setattr(EquiAVObjective, name, counting(name, method))
        changes = (*overrides, f"train.steps={steps}", "train.epochs=null", "train.evaluate_every=null",
                   "train.checkpoint_every=100000", "train.workers=0")  # fmt: skip
        Timed(load_config(ROOT / "configs" / "pretrain" / f"{recipe}.yaml", changes), out, lambda line: None).run()
    finally:
        for name, method in methods.items():
            setattr(EquiAVObjective, name, method)
        shutil.rmtree(out)
    count = steps - left_out - 1  # the last one ends with a checkpoint
    whole = (marks[-1] - marks[left_out]) / count
    parts = {name: spent[name] / count for name in PARTS}
    parts["reading and collating"] = whole - spent["step"] / count
    outside = sum(parts.values())
    named = {PARTS.get(name, name): 1000 * seconds for name, seconds in parts.items()}
    return {"steps": count, "cpu_ms": 1000 * whole, "outside_ms": named, "share_outside": outside / whole}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a prepared folder")
    parser.add_argument("--dry", action="store_true", help="print, write nothing")
    args = parser.parse_args()
    own = (f"data.path={args.folder}", "train.batch=8", "train.shrink_batch=false")
    record = {
        "world": measured("world", ("data.count=256",), 40, 8),
        "own_videos": {"batch": 8, **measured("own_videos", own, 6, 1)},
    }
    print(record)
    if not args.dry:
        write_json(RESULTS, {**record, "provenance": provenance()})


if __name__ == "__main__":
    main()
