"""Data to look at and listen to: a prepared folder, scenes of the generated world, one file under augmentations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure
from PIL import Image

from equiav.build import build_inputs, build_pipelines
from equiav.config import Config
from equiav.data import PreparedIndex, ShardDataset, World, read_meta, read_skipped
from equiav.io import write_whole
from equiav.media import FilterBank, power_range, square
from equiav.randomness import generator
from equiav.report import (
    image_png,
    image_row,
    new_figure,
    outlined,
    png,
    render,
    spectrogram_png,
    spectrogram_row,
    wav,
)
from equiav.types import AUDIO, SPLITS, VISUAL, DecodedClip, Split

SHEET = 24
MOST_LABELS = 30
THUMBNAIL = 160
BARS = "#4c72b0"
SCALE = 3  # pixels of the page for one of a generated scene


def write_inspection(folder: Path, out: Path) -> None:
    """Counts, durations, labels, splits, reasons, and a sheet of 24 clips, in one file that needs nothing else."""
    meta, index = read_meta(folder), PreparedIndex(folder)
    labels = Counter(label for i in range(len(index)) for label in index.labels(i))
    splits = []
    for number, split in enumerate(SPLITS):
        chosen = np.flatnonzero(index.split == number)
        if len(chosen):
            hours = float(index.times[chosen, 1].sum()) / 3600
            sources = len({index.text("names", int(i)) for i in chosen})
            splits.append((split, f"{len(chosen):,}", f"{sources:,}", f"{hours:.3g}"))
    durations = new_figure(7.0, 2.4)
    axis = durations.subplots()
    axis.hist(index.times[:, 1], bins=40, color=BARS)
    axis.set_xlabel("seconds")
    axis.set_ylabel("clips")
    axis.grid(axis="y", alpha=0.25)
    html = render(
        "inspection.html",
        name=folder.name,
        meta=meta,
        splits=splits,
        durations=png(durations),
        labels=len(labels),
        label_bars=_label_bars(labels) if labels else None,
        most_labels=MOST_LABELS,
        reasons=_reasons(list(read_skipped(folder))),
        clips=[clip for split in SPLITS for clip in _sheet(folder, split, index)],
    )
    write_whole(out, html)


def _label_bars(labels: Counter[str]) -> bytes:
    names, counts = zip(*reversed(labels.most_common(MOST_LABELS)), strict=True)
    figure = new_figure(7.0, 0.6 + 0.2 * len(names))
    axis = figure.subplots()
    # Dollar signs would start a formula.
    drawn = axis.barh([name.replace("$", r"\$")[:40] for name in names], counts, color=BARS)
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


def _sheet(folder: Path, split: Split, index: PreparedIndex) -> Iterator[dict[str, Any]]:
    """Clips spread evenly over a split, as many as its share of the sheet: middle frame, spectrogram and audio.

    None stands for what a clip does not have.
    """
    count = int((index.split == SPLITS.index(split)).sum())
    if not count:
        return
    data = ShardDataset(folder, split, size=THUMBNAIL)
    shown = min(count, max(1, round(SHEET * count / len(index))))
    for number in (i * count // shown for i in range(shown)):
        clip: dict[str, Any] = {
            "title": f"{split}: {data.source(number)[-60:]} {', '.join(data.labels(number))}",
            "seconds": data.clip(number).seconds,
            "frame": None,
            "spectrogram": None,
            "audio": None,
        }
        if VISUAL in data.has(number):
            small = Image.fromarray(data.frame(number, data.frames // 2, whole=True).permute(1, 2, 0).numpy())
            small.thumbnail((2 * THUMBNAIL, THUMBNAIL))
            clip["frame"] = image_png(np.array(small))
        if AUDIO in data.has(number):
            energies = FilterBank(sample_rate=data.sample_rate)(data.waveform(number)[None])[0]
            low, high = power_range(energies)
            scaled = ((energies - low) / max(high - low, 1e-6)).clamp(0, 1).T.flip(0).numpy()
            image = Image.fromarray((colormaps["magma"](scaled)[..., :3] * 255).astype(np.uint8))
            small = image.resize((2 * THUMBNAIL, THUMBNAIL), Image.Resampling.BILINEAR)
            clip |= {"spectrogram": image_png(np.array(small)), "audio": data.audio_file(number)}
        yield clip


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


def augmentation_figure(clip: DecodedClip, config: Config, *, count: int = 6, seed: int = 0) -> Figure:
    """Frames and spectrograms before and after, each column over its vector."""
    pipelines, inputs = build_pipelines(config), build_inputs(config)
    raw = {}
    if clip.frames is not None:
        raw[VISUAL] = square(clip.frames[len(clip.frames) // 2][None], config.visual.size)
    if clip.waveform is not None:
        raw[AUDIO] = clip.waveform[None]
    heights = [h for m in raw for h in ((2.2, 2.6) if m == VISUAL else (1.8, 3.4))]
    figure = new_figure(1.9 * (count + 1), sum(heights))
    grid = figure.add_gridspec(len(heights), count + 1, height_ratios=heights)
    titles = ["original", *(f"draw {i + 1}" for i in range(count))]
    for row, (m, given) in enumerate(raw.items()):
        pipeline = pipelines[m]
        x = inputs[m].prepare(given)
        draws = pipeline.sample(count, generator(seed, 0, f"show/{m}"))
        views = torch.cat([x, pipeline.apply(x.expand(count, -1, -1, -1), draws)])
        axes = [figure.add_subplot(grid[2 * row, i]) for i in range(count + 1)]
        if m == VISUAL:
            image_row(axes, list(views.permute(0, 2, 3, 1).clamp(0, 1).numpy()), titles)
        else:
            limits = (float(np.quantile(x, 0.02)), float(np.quantile(x, 0.998)))
            spectrogram_row(axes, list(views[:, 0].numpy()), limits)
        # The vectors, coloured by value; zeros stay pale, so that what is on stands out.
        table, values = figure.add_subplot(grid[2 * row + 1, 1:]), pipeline.encode(draws).T.numpy()
        table.imshow(values, aspect="auto", cmap="RdBu_r", vmin=-1.6, vmax=1.6)
        for (slot, column), value in np.ndenumerate(values):
            shade = "#b0b0b0" if value == 0 else "black"
            table.text(column, slot, f"{value:.2f}", ha="center", va="center", fontsize=6, color=shade)
        table.set_yticks(range(len(pipeline.slots)), pipeline.slots, fontsize=6)
        table.set_xticks(range(count), titles[1:], fontsize=6)
        table.tick_params(length=0)
    return figure
