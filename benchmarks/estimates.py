"""The arithmetic of docs/explanation/estimates.md: measured figures times assumed machines. `tables.py` prints it.

What is assumed stands here and is printed with the rows; everything else comes from results/*.json.
"""

from __future__ import annotations

from typing import Any

from equiav.search import code_parts, lists_for

CLIPS_OF_AUDIOSET, EPOCHS = 1_893_278, 20
COLLECTION = 100_000_000
SECONDS = 10  # of a clip
PICTURES = 10  # of a clip, all of them embedded for search
WIDTH = 512  # of an embedding of the base model
GPUS = 8
PEAK = {"A6000": 155e12, "A100": 312e12, "H100": 989e12}  # dense bf16 FLOP/s by the maker's data sheets
REACHED = 0.35  # of that peak, in a real step: a guess; measure yours
CORES = 64  # of the machines that prepare

Row = list[str]


def shard_bytes(storage: dict[str, Any]) -> tuple[float, str]:
    """Bytes of a clip of ten seconds in shards, and how they come about."""
    s = storage["shards"]
    parts = (SECONDS * s["sound_per_second"], s["pictures_per_clip"], s["else_per_clip"] + s["index_per_clip"])
    kilobytes = [f"{part / 1e3:.0f}" for part in parts]
    return sum(parts), f"{kilobytes[0]} KB FLAC + {kilobytes[1]} KB of JPEGs + {kilobytes[2]} KB tar, text, index"


def training(
    step: dict[str, Any], loader: dict[str, Any], prepare: dict[str, Any], storage: dict[str, Any]
) -> list[Row]:
    """Pre-training on AudioSet-2M."""
    flop = step["gflop_per_step"] / step["batch"] * 1e9
    seen = CLIPS_OF_AUDIOSET * EPOCHS
    size, how = shard_bytes(storage)
    rate = prepare["clips_per_cpu_second"]["equiav"]
    rows = [
        ["one clip in shards", how, f"{size / 1e3:.0f} KB"],
        ["all shards", f"{CLIPS_OF_AUDIOSET:,} clips x {size / 1e3:.0f} KB",
         f"{size * CLIPS_OF_AUDIOSET / 1e9:.0f} GB"],
        ["preparing", f"{CLIPS_OF_AUDIOSET:,} clips / {rate:.1f} a CPU-second",
         f"{CLIPS_OF_AUDIOSET / rate / 3600:.0f} CPU-hours"],
        ["work of a clip in a step", f"{step['gflop_per_step']:,.0f} GFLOP / batch {step['batch']}",
         f"{flop / 1e9:.0f} GFLOP"],
        ["work of the training", f"{CLIPS_OF_AUDIOSET:,} clips x {EPOCHS} epochs x {flop / 1e9:.0f} GFLOP",
         f"{seen * flop / 1e18:.1f} x 10^18 FLOP"],
    ]  # fmt: skip
    decode = sum(loader["pieces"][k] for k in ("decode sound", "decode picture", "collate"))
    for name, peak in PEAK.items():
        speed = GPUS * peak * REACHED
        clips = speed / flop
        rows.append([
            f"{GPUS} {name}",
            f"{seen * flop / 1e18:.1f} x 10^18 FLOP / ({GPUS} x {peak / 1e12:.0f} TFLOP/s x {REACHED})",
            f"{seen * flop / speed / 3600:.1f} h",
        ])  # fmt: skip
        rows.append([
            f"cores to feed them ({name})", f"{clips:,.0f} clips a second x {decode:.1f} CPU-ms to decode and collate",
            f"{clips * decode / 1e3:.1f} cores",
        ])  # fmt: skip
    return rows


def collection(cost: dict[str, Any], prepare: dict[str, Any], storage: dict[str, Any]) -> list[Row]:
    """A hundred million clips: stored, embedded by the base model, and searchable."""
    size, _ = shard_bytes(storage)
    rate = prepare["clips_per_cpu_second"]["equiav"]
    passes = {m["modality"]: m["baseline_gmac"] / 2 for m in cost["modalities"]}  # the table counts two passes
    gmac = passes["audio"] + PICTURES * passes["visual"]
    speed = GPUS * PEAK["A100"] * REACHED
    vectors, codes = 2 * WIDTH * 4, 2 * (code_parts(WIDTH) // 2 + 8)
    lists = lists_for(COLLECTION)
    known, thumbnail = storage["index"]["known_per_entry"], storage["index"]["thumbnail"]
    count = f"{COLLECTION / 1e6:.0f} million"
    return [
        ["shards, if the media are not kept", f"{count} x {size / 1e3:.0f} KB", f"{COLLECTION * size / 1e12:.0f} TB"],
        ["preparing", f"{count} / {rate:.1f} a CPU-second / {CORES} cores",
         f"{COLLECTION / rate / CORES / 3600:.0f} h"],
        ["embedding a clip", f"{passes['audio']:.1f} + {PICTURES} x {passes['visual']:.1f} G multiply-adds",
         f"{2 * gmac:.0f} GFLOP"],
        [f"embedding all, {GPUS} A100", f"{count} x {2 * gmac:.0f} GFLOP / ({GPUS} x "
         f"{PEAK['A100'] / 1e12:.0f} TFLOP/s x {REACHED})", f"{COLLECTION * 2e9 * gmac / speed / 3600:.1f} h"],
        ["vectors, on disk", f"{count} x 2 sides x {WIDTH} x 4 bytes", f"{COLLECTION * vectors / 1e9:.0f} GB"],
        ["compressed index, in memory",
         f"{count} x 2 x ({code_parts(WIDTH)} parts x 4 bits + 8 bytes of number); its {lists:,} lists add little",
         f"{COLLECTION * codes / 1e9:.1f} GB"],
        ["what is known of the clips", f"{count} x {known:.0f} bytes", f"{COLLECTION * known / 1e9:.0f} GB"],
        ["thumbnails", f"{count} x {thumbnail / 1e3:.1f} KB", f"{COLLECTION * thumbnail / 1e12:.1f} TB"],
    ]  # fmt: skip
