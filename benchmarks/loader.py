"""CPU-ms per training sample from shards to encoder inputs, piece by piece, on one thread.

    python benchmarks/loader.py PREPARED_FOLDER        # writes results/loader.json

Counts everything a step needs for a clip: reading, decoding sound and picture, filter bank, both views of both
modalities, the intra-modal vector and all S = 16 vectors. The authors' released loader needs 157 CPU-ms per sample.
Beside the filter bank stand two others that need no torchaudio, on the same sounds: kaldi-native-fbank (C++), and the
numpy path of transformers' feature extractor for AST (`pip install '.[rivals,transformers]'`).
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

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


def other_filter_banks(bank: FilterBank, sounds: list[NDArray[np.float32]]) -> dict[str, dict[str, float]]:
    """CPU-ms a sound, and how far the log energies lie from ours."""
    import kaldi_native_fbank as kaldi  # type: ignore[import-not-found,unused-ignore]
    import transformers

    options = kaldi.FbankOptions()
    options.frame_opts.dither, options.frame_opts.window_type = 0.0, "hanning"
    options.mel_opts.num_bins = bank.bins
    extractor = transformers.ASTFeatureExtractor(num_mel_bins=bank.bins, max_length=bank.frames, do_normalize=False)

    def by_kaldi(sound: NDArray[np.float32]) -> Any:
        online = kaldi.OnlineFbank(options)
        online.accept_waveform(16000, sound)
        online.input_finished()
        return np.stack([online.get_frame(i) for i in range(online.num_frames_ready)])

    def by_transformers(sound: NDArray[np.float32]) -> Any:
        found = extractor(sound, sampling_rate=16000, return_tensors="np")["input_values"][0]
        return found[: (len(sound) - bank.window) // bank.hop + 1]

    record = {}
    for name, compute in (("kaldi-native-fbank", by_kaldi), ("transformers, numpy", by_transformers)):
        apart = []
        for sound in sounds:
            other = compute(sound)
            ours = bank(torch.from_numpy(sound)[None])[0, : len(other)].numpy()
            apart.append(float(np.abs(ours - other[: len(ours)]).max()))
        times = cpu_ms(lambda compute=compute: [compute(sound) for sound in sounds])  # type: ignore[misc]
        record[name] = {"cpu_ms": times, "largest_difference": max(apart)}
    return record


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
    sounds = [w[:n].sub(w[:n].mean()).numpy() for w, n in zip(waveforms, lengths.tolist(), strict=True)]
    record = {
        "unit": "CPU-ms per sample, one thread",
        "batch": BATCH,
        "seconds_of_sound": float(lengths.double().mean()) / 16000,
        "pieces": cost,
        "total": total,
        "other_filter_banks": other_filter_banks(bank, sounds),
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
