"""Data to look at and listen to, as pages: a prepared folder, and scenes of the generated world."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from numpy.typing import NDArray
from PIL import Image

from equiav.data import PreparedIndex, ShardDataset, World, read_meta, read_skipped
from equiav.io import write_whole
from equiav.media import FilterBank, power_range
from equiav.report import image_png, new_figure, outlined, png, render, spectrogram_png, wav
from equiav.types import AUDIO, SPLITS, VISUAL, Split

SHEET = 24
MOST_LABELS = 30
THUMBNAIL = 160
SCALE = 3  # pixels of the page for one of a generated scene


def write_inspection(folder: Path, out: Path) -> None:
    """Counts, durations, labels, splits, reasons, and a sheet of 24 clips, in one file that needs nothing else."""
    meta, index, skipped = read_meta(folder), PreparedIndex(folder), list(read_skipped(folder))
    labels = Counter(label for i in range(len(index)) for label in index.labels(i))
    html = render(
        "inspection.html",
        name=folder.name,
        meta=meta,
        splits=_splits(index),
        durations=_histogram(index.times[:, 1]),
        labels=len(labels),
        label_bars=_bars(labels) if labels else None,
        most_labels=MOST_LABELS,
        reasons=_reasons(skipped),
        clips=[clip for split in SPLITS for clip in _sheet(folder, split, index)],
    )
    write_whole(out, html)


def _splits(index: PreparedIndex) -> list[tuple[str, str, str, str]]:
    rows: list[tuple[str, str, str, str]] = []
    for number, split in enumerate(SPLITS):
        chosen = np.flatnonzero(index.split == number)
        if len(chosen):
            hours = float(index.times[chosen, 1].sum()) / 3600
            sources = len({index.text("names", int(i)) for i in chosen})
            rows.append((split, f"{len(chosen):,}", f"{sources:,}", f"{hours:.3g}"))
    return rows


def _histogram(seconds: NDArray[np.float64]) -> bytes:
    figure = new_figure(7.0, 2.4)
    axis = figure.subplots()
    axis.hist(seconds, bins=40, color="#4c72b0")
    axis.set_xlabel("seconds")
    axis.set_ylabel("clips")
    axis.grid(axis="y", alpha=0.25)
    return png(figure)


def _bars(labels: Counter[str]) -> bytes:
    names, counts = zip(*reversed(labels.most_common(MOST_LABELS)), strict=True)
    figure = new_figure(7.0, 0.6 + 0.2 * len(names))
    axis = figure.subplots()
    # Dollar signs would start a formula.
    drawn = axis.barh([name.replace("$", r"\$")[:40] for name in names], counts, color="#4c72b0")
    axis.bar_label(drawn, fontsize=7, padding=2)
    axis.tick_params(axis="y", labelsize=7)
    axis.set_xlabel("clips")
    return png(figure)


def _reasons(skipped: Sequence[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Reasons that differ only in their numbers or in the file they name are one."""
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for source, _, reason in skipped:
        kind = re.sub(r"same content as .*", "same content as another", reason, flags=re.DOTALL)
        kind = re.sub(r"\d+(\.\d+)?", "…", kind)
        counts[kind] += 1
        examples.setdefault(kind, source)
    return [(kind, f"{count:,}", examples[kind][:60]) for kind, count in counts.most_common()]


def _sheet(folder: Path, split: Split, index: PreparedIndex) -> list[dict[str, Any]]:
    """Clips spread evenly over a split, as many as its share of the sheet."""
    count = int((index.split == SPLITS.index(split)).sum())
    if not count:
        return []
    data = ShardDataset(folder, split, size=THUMBNAIL)
    shown = min(count, max(1, round(SHEET * count / len(index))))
    return [_shown(data, i * count // shown, split) for i in range(shown)]


def _shown(data: ShardDataset, number: int, split: Split) -> dict[str, Any]:
    """The middle frame, the spectrogram and the audio of a clip, as files; None of what it does not have."""
    clip: dict[str, Any] = {
        "title": f"{split}: {data.source(number)[-60:]} {', '.join(data.labels(number))}",
        "seconds": data.clip(number).seconds,
        "frame": None,
        "spectrogram": None,
        "audio": None,
    }
    if VISUAL in data.has(number):
        frame = data.frame(number, data.frames // 2, whole=True).permute(1, 2, 0).numpy()
        small = Image.fromarray(frame)
        small.thumbnail((2 * THUMBNAIL, THUMBNAIL))
        clip["frame"] = image_png(np.array(small))
    if AUDIO in data.has(number):
        clip |= {"spectrogram": _spectrogram(data, number), "audio": data.audio_file(number)}
    return clip


def _spectrogram(data: ShardDataset, number: int) -> bytes:
    waveform = data.waveform(number)
    bank = FilterBank(sample_rate=data.sample_rate)
    energies = bank(waveform[None])[0]
    low, high = power_range(energies)
    scaled = ((energies - low) / max(high - low, 1e-6)).clamp(0, 1).T.flip(0).numpy()
    image = (colormaps["magma"](scaled)[..., :3] * 255).astype(np.uint8)
    small = Image.fromarray(image).resize((2 * THUMBNAIL, THUMBNAIL), Image.Resampling.BILINEAR)
    return image_png(np.array(small))


def write_gallery(world: World, out: Path, *, count: int, start: int = 0) -> None:
    """One row per scene: first, middle and last frame with boxes round what sounds, spectrogram, player, truth."""
    bank = FilterBank(world.sample_rate, frames=16 * max(1, int(world.seconds * 100) // 16), bins=64)
    scenes = []
    for index in range(start, start + count):
        waveform, frames, boxes = world.waveform(index), world.video(index), world.boxes(index)
        shown = {}
        for k in (0, world.frames // 2, world.frames - 1):
            frame = frames[k].permute(1, 2, 0).numpy().repeat(SCALE, 0).repeat(SCALE, 1)
            shown[k] = image_png(outlined(frame, boxes[k].numpy() * SCALE))
        scenes.append(
            {
                "audio": wav(waveform.numpy(), world.sample_rate),
                "spectrogram": spectrogram_png(bank(waveform[None])[0].numpy(), 2.4, 1.3, dpi=80),
                "sounding": world.scene(index).sounding,
                "frames": shown,
            }
        )
    write_whole(out, render("world.html", scenes=scenes))
