"""A look at the augmentations: one file under a grid of draws, with the vectors that describe them."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.figure import Figure

from equiav.build import build_inputs, build_pipelines
from equiav.config import Config
from equiav.media import square
from equiav.randomness import generator
from equiav.report import image_row, new_figure, spectrogram_row, value_table
from equiav.types import AUDIO, VISUAL, DecodedClip


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
        table = figure.add_subplot(grid[2 * row + 1, 1:])
        value_table(table, pipeline.encode(draws).T.numpy(), pipeline.slots, titles[1:])
    return figure
