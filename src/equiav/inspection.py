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
from equiav.report import (
    Page,
    cards,
    data_uri,
    image,
    image_png,
    new_figure,
    outlined,
    png,
    render,
    row,
    spectrogram_png,
    table,
    wav,
)
from equiav.types import SPLITS, Split

SHEET = 24
MOST_LABELS = 30
THUMBNAIL = 160
SCALE = 3  # pixels of the page for one of a generated scene


def write_inspection(folder: Path, out: Path) -> None:
    """Counts, durations, labels, splits, reasons, and a sheet of 24 clips, in one file that needs nothing else."""
    meta, index, skipped = read_meta(folder), PreparedIndex(folder), list(read_skipped(folder))
    page = Page(f"Prepared data: {folder.name}")
    page.add(cards(_figures(meta)))
    page.heading("Splits").add(_splits(index))
    page.heading("How long clips last").figure(_histogram(index.times[:, 1]))
    labels = Counter(label for i in range(len(index)) for label in index.labels(i))
    if labels:
        page.heading("Labels").figure(_bars(labels), f"{len(labels)} labels; the {MOST_LABELS} most frequent at most")
    page.heading("Left out")
    if skipped:
        page.add(table(("reason", "count", "for example"), _reasons(skipped)))
        page.text("Every file and stretch is listed in skipped.csv.", note=True)
    else:
        page.text("No file, and no part of one but tails shorter than 2 s.")
    page.heading("Clips").text("Middle picture, spectrogram and sound of clips spread over the folder.", note=True)
    for split in SPLITS:
        page.add(*_sheet(folder, split, index))
    page.write(out)


def _figures(meta: dict[str, Any]) -> list[tuple[str, str]]:
    spectrogram, sources = meta["spectrogram"], meta["sources"]
    found = [
        ("clips", f"{meta['clips']:,}"),
        ("hours", f"{meta['seconds'] / 3600:.3g}"),
        ("files used", f"{sources['used']:,}"),
        ("files left out", f"{sources['skipped']:,}"),
        ("modalities", " + ".join(meta["modalities"])),
    ]
    if spectrogram["mean"] is not None:
        found.append(("spectrogram mean, deviation", f"{spectrogram['mean']:.3f}, {spectrogram['std']:.3f}"))
    return found


def _splits(index: PreparedIndex) -> str:
    rows = []
    for number, split in enumerate(SPLITS):
        chosen = np.flatnonzero(index.split == number)
        if len(chosen):
            hours = float(index.times[chosen, 1].sum()) / 3600
            sources = len({index.text("names", int(i)) for i in chosen})
            rows.append((split, f"{len(chosen):,}", f"{sources:,}", f"{hours:.3g}"))
    return table(("split", "clips", "files", "hours"), rows)


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
    """Reasons that differ only in their figures or in the file they name are one."""
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for source, _, reason in skipped:
        kind = re.sub(r"same content as .*", "same content as another", reason, flags=re.DOTALL)
        kind = re.sub(r"\d+(\.\d+)?", "…", kind)
        counts[kind] += 1
        examples.setdefault(kind, source)
    return [(kind, f"{count:,}", examples[kind][:60]) for kind, count in counts.most_common()]


def _sheet(folder: Path, split: Split, index: PreparedIndex) -> list[str]:
    """Clips spread evenly over a split, as many as its share of the sheet."""
    count = int((index.split == SPLITS.index(split)).sum())
    if not count:
        return []
    data = ShardDataset(folder, split, size=THUMBNAIL)
    shown = min(count, max(1, round(SHEET * count / len(index))))
    cells = [_cells(data, i * count // shown, split) for i in range(shown)]
    return [row([cell for clip in cells[i : i + 2] for cell in clip]) for i in range(0, shown, 2)]


def _cells(data: ShardDataset, number: int, split: Split) -> list[str]:
    title = f"{split}: {data.source(number)[-60:]} {', '.join(data.labels(number))}"
    cells = []
    if data.frames:
        picture = data.frame(number, data.frames // 2, whole=True).permute(1, 2, 0).numpy()
        small = Image.fromarray(picture)
        small.thumbnail((2 * THUMBNAIL, THUMBNAIL))
        cells.append(image(image_png(np.array(small)), title))
    if "audio" in data.modalities:
        cells.append(image(_spectrogram(data, number), f"{data.clip(number).seconds:.1f} s" if data.frames else title))
        sound = data_uri("audio/flac", data.audio_file(number))
        cells.append(f'<audio controls preload="none" src="{sound}"></audio>')
    return cells


def _spectrogram(data: ShardDataset, number: int) -> bytes:
    waveform = data.waveform(number)
    bank = FilterBank(sample_rate=data.sample_rate)
    energies = bank(waveform[None])[0]
    low, high = power_range(energies)
    scaled = ((energies - low) / max(high - low, 1e-6)).clamp(0, 1).T.flip(0).numpy()
    picture = (colormaps["magma"](scaled)[..., :3] * 255).astype(np.uint8)
    small = Image.fromarray(picture).resize((2 * THUMBNAIL, THUMBNAIL), Image.Resampling.BILINEAR)
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
