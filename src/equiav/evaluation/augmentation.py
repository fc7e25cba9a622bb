"""A look at the augmentations: one file under a grid of draws, with the vectors that describe them."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from equiav.augment import Pipeline
from equiav.build import build_inputs, build_pipelines
from equiav.config import Config
from equiav.media import square, to_float
from equiav.randomness import stream
from equiav.report import new_figure, picture_row, spectrogram_row, value_table
from equiav.types import DecodedClip, Modality


def augmented(pipeline: Pipeline, x: Tensor, count: int, seed: int, modality: Modality) -> tuple[Tensor, Tensor]:
    """The input x (1, C, H, W) under `count` draws, and the vectors of the draws."""
    draws = pipeline.sample(count, stream(seed, 0, f"show/{modality.value}"))
    return pipeline.apply(x.expand(count, -1, -1, -1), draws), pipeline.encode(draws)


def augmentation_figure(clip: DecodedClip, config: Config, *, count: int = 6, seed: int = 0) -> Figure:
    """Pictures and spectrograms before and after, each column over its vector."""
    pipelines = build_pipelines(config.augment)
    has = {Modality.VISUAL: clip.frames is not None, Modality.AUDIO: clip.waveform is not None}
    heights = [h for m, pair in ((Modality.VISUAL, [2.2, 2.6]), (Modality.AUDIO, [1.8, 3.4])) if has[m] for h in pair]
    figure = new_figure(1.9 * (count + 1), sum(heights))
    grid = figure.add_gridspec(len(heights), count + 1, height_ratios=heights)
    titles = ["original", *(f"draw {i + 1}" for i in range(count))]
    row = 0
    if clip.frames is not None:
        x = to_float(square(clip.frames[len(clip.frames) // 2][None], config.visual.size))
        out, t = augmented(pipelines[Modality.VISUAL], x, count, seed, Modality.VISUAL)
        pictures = torch.cat([x, out]).permute(0, 2, 3, 1).clamp(0, 1).numpy()
        picture_row([figure.add_subplot(grid[row, i]) for i in range(count + 1)], list(pictures), titles)
        value_table(figure.add_subplot(grid[row + 1, 1:]), t.T.numpy(), pipelines[Modality.VISUAL].slots, titles[1:])
        row += 2
    if clip.waveform is not None:
        x = build_inputs(config.audio).spectrograms(clip.waveform[None])
        out, t = augmented(pipelines[Modality.AUDIO], x, count, seed, Modality.AUDIO)
        spectrograms = torch.cat([x, out])[:, 0].numpy()
        limits = (float(np.quantile(x, 0.02)), float(np.quantile(x, 0.998)))
        spectrogram_row([figure.add_subplot(grid[row, i]) for i in range(count + 1)], list(spectrograms), limits)
        value_table(figure.add_subplot(grid[row + 1, 1:]), t.T.numpy(), pipelines[Modality.AUDIO].slots, titles[1:])
    return figure
