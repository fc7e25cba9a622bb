"""CPU-ms per training sample from shards to encoder inputs, piece by piece, on one thread.

    python benchmarks/loader.py PREPARED_FOLDER        # writes results/loader.json

Counts everything a step needs for a clip: reading, decoding sound and picture, filter bank, both views of both
modalities, the intra-modal vector and all S = 16 vectors. The authors' released loader needs 157 CPU-ms per sample.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from equiav.augment import PipelineDraw, audio_pipeline, visual_pipeline
from equiav.data import ShardDataset, collate
from equiav.io import provenance, write_json
from equiav.media import FilterBank, normalise, standardise, to_float
from equiav.randomness import generator

RESULTS = Path(__file__).parent / "results" / "loader.json"
BATCH, REPEATS, RELEASED = 32, 7, 156.9


def cpu_ms(run: Callable[[], object]) -> float:
    run()
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        run()
        times.append((time.process_time() - start) * 1000 / BATCH)
    return statistics.median(times)


def main() -> None:
    torch.set_num_threads(1)
    clips = ShardDataset(Path(sys.argv[1]), "train")
    numbers = [i % len(clips) for i in range(BATCH)]
    augment = {"audio": audio_pipeline(), "visual": visual_pipeline()}
    bank = FilterBank()
    batch = collate([clips.sample(i, 5) for i in numbers])
    waveforms, lengths, frames = batch.inputs["audio"], batch.lengths["audio"], batch.inputs["visual"]
    x_a = standardise(bank(waveforms, lengths), -4.346, 4.332)[:, None]
    x_v = to_float(frames)

    def draw_all(step: int) -> dict[str, PipelineDraw]:
        """What a step draws: two augmentations and sixteen vectors per clip and modality."""
        drawn = {}
        for m, pipeline in augment.items():
            drawn[m] = pipeline.sample(BATCH, generator(0, step, f"intra/{m}"))
            pipeline.sample(BATCH, generator(0, step, f"second/{m}"))
            pipeline.vectors(BATCH, 16, generator(0, step, f"inter/{m}"))
        return drawn

    draws = draw_all(0)
    pieces = {
        "decode sound": lambda: [clips.waveform(i) for i in numbers],
        "decode picture": lambda: [clips.frame(i, 5) for i in numbers],
        "collate": lambda: collate([clips.sample(i, 5) for i in numbers]),
        "filter bank": lambda: standardise(bank(waveforms, lengths), -4.346, 4.332),
        "augment sound": lambda: augment["audio"].apply(x_a, draws["audio"]),
        "augment picture": lambda: augment["visual"].apply(x_v, draws["visual"]),
        "normalise pictures": lambda: [normalise(to_float(frames)), normalise(x_v)],
        "draw all vectors": lambda: draw_all(1),
    }
    cost = {name: cpu_ms(run) for name, run in pieces.items()}
    cost["collate"] = max(0.0, cost["collate"] - cost["decode sound"] - cost["decode picture"])
    total = sum(cost.values())
    record = {
        "unit": "CPU-ms per sample, one thread",
        "batch": BATCH,
        "seconds_of_sound": float(lengths.double().mean()) / 16000,
        "pieces": cost,
        "total": total,
        "released": RELEASED,
        "ratio_to_released": RELEASED / total,
        "provenance": provenance(),
    }
    write_json(RESULTS, record)
    print(
        {k: round(v, 2) for k, v in cost.items()},
        f"total {total:.1f} ms, released {RELEASED}: {RELEASED / total:.1f} times",
    )


if __name__ == "__main__":
    main()
