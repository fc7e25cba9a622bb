"""The token store: an epoch with it against one with frozen encoders that are computed in every step; same losses.

    OMP_NUM_THREADS=1 python benchmarks/token_store.py       # 4 minutes on one idle core

Tiny encoders on 1,000 clips of the world, views fixed to two a clip. Each way takes one epoch from the same start with
the same draws; CPU time of its steps is compared (wall time is recorded too), and the losses of every step. Filling the
store is timed apart: it happens once. Writes results/token_store.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from equiav.build import build_dataset
from equiav.config import Config, load_config
from equiav.data import Dataset
from equiav.io import provenance, write_json
from equiav.training import LOG, Trainer

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "configs/pretrain/world.yaml"
RESULTS = Path(__file__).parent / "results" / "token_store.json"
TERMS = ("loss", "inter", "intra_audio", "intra_visual")


class Epoch(Trainer):
    """A run whose clock starts when the store is full, and which writes no checkpoint."""

    filled = 0.0
    began = (0.0, 0.0)

    def _stored(self) -> Dataset | None:
        start = time.process_time()
        found = super()._stored()
        self.filled, self.began = time.process_time() - start, now()
        return found

    def _write(self) -> None:
        pass


def now() -> tuple[float, float]:
    return time.process_time(), time.perf_counter()


def config_of(args: argparse.Namespace, store: Path | None, precision: str = "float32") -> Config:
    views = f"{{count: 2, frames: 1, store: {store or 'null'}, precision: {precision}}}"
    return load_config(
        RECIPE,
        (
            f"model.encoder={{size: {args.size}}}", f"data.count={args.clips}", "optim.freeze={encoder: all}",
            f"train.views={views}", "train.steps=null", "train.epochs=1", "train.evaluate_every=null",
            "train.log_every=1", "optim.warmup_steps=1",
        ),
    )  # fmt: skip


def epoch(config: Config, clips: Dataset) -> dict[str, Any]:
    """CPU and wall seconds of the steps of an epoch, those of filling, and all losses."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = Epoch(config, Path(folder), lambda line: print(line, end="\r", flush=True), dataset=clips)
        trainer.began = now()
        trainer.run()
        cpu, wall = (after - before for after, before in zip(now(), trainer.began, strict=True))
        records = [json.loads(line) for line in (Path(folder) / LOG).read_text().splitlines()]
    print()
    losses = [[r[k] for k in TERMS] for r in records if r["kind"] == "train"]
    return {"cpu_seconds": cpu, "wall_seconds": wall, "filling_cpu_seconds": trainer.filled, "losses": losses}


def difference(a: dict[str, Any], b: dict[str, Any]) -> float:
    """The largest relative difference of any loss term in any step."""
    steps = zip(a["losses"], b["losses"], strict=True)
    return max(abs(x - y) / abs(y) for step in steps for x, y in zip(*step, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=1000)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    clips = build_dataset(config_of(args, None), "train")
    for i in range(len(clips)):  # the world keeps its clips: neither way pays for drawing them
        clips.sample(i, 0)
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "tokens"
        stored = epoch(config_of(args, store), clips)
        again = epoch(config_of(args, store), clips)
        size = sum(p.stat().st_size for p in store.iterdir())
    recomputed = epoch(config_of(args, None), clips)
    record = {
        "clips": args.clips, "size": args.size, "steps": len(stored["losses"]), "store_bytes": size,
        "stored": again, "recomputed": recomputed, "filling_cpu_seconds": stored["filling_cpu_seconds"],
        "times_as_fast": recomputed["cpu_seconds"] / again["cpu_seconds"],
        "largest_relative_difference": difference(again, recomputed), "provenance": provenance(),
    }  # fmt: skip
    write_json(args.results, record)
    shown = ("times_as_fast", "largest_relative_difference", "filling_cpu_seconds", "store_bytes", "steps")
    print({key: record[key] for key in shown}, {k: record[k]["cpu_seconds"] for k in ("stored", "recomputed")})


if __name__ == "__main__":
    main()
