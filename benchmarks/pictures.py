"""Pictures of the documentation, all of them of the generated world: the centroid, and heat maps.

    python benchmarks/pictures.py runs/demo      # writes docs/images/centroid.png and docs/images/localisation.png

docs/images/augmentations.png is what `equiav augment` draws of a scene.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from numpy.typing import NDArray
from torch import Tensor

from equiav.build import build_dataset, build_pipelines
from equiav.data import Dataset, WorldDataset
from equiav.evaluation import heat_maps
from equiav.inference import LoadedModel, load_model
from equiav.media import normalise, to_float
from equiav.models import centroid, mean_pool
from equiav.randomness import generator
from equiav.report import heat_overlay, image_row, new_figure, outlined, save

IMAGES = Path(__file__).parents[1] / "docs" / "images"
VECTORS = 200
SCENES = 5
LINES = 40
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e")


def planes(points: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and first two principal directions of points (n, width)."""
    mean = points.mean(dim=0)
    _, _, directions = torch.linalg.svd(points - mean, full_matrices=False)
    return mean, directions[:2].T


def scatter(axis: Axes, points: Tensor, **style: object) -> None:
    axis.scatter(points[:, 0].numpy(), points[:, 1].numpy(), linewidths=0.5, **style)


@torch.inference_mode()
def clouds(loaded: LoadedModel, frame: Tensor) -> tuple[Tensor, Tensor]:
    """u(h, t_i) of one picture (3, H, W) for drawn vectors, and MeanPool(f(t_i(x))) of the really augmented picture."""
    pipeline, branch = build_pipelines(loaded.config)["visual"], loaded.model["visual"]
    draws = pipeline.sample(VECTORS, generator(0, 0, "pictures"))
    t = pipeline.encode(draws)
    x = to_float(frame[None])
    h_hat = branch.u(branch.encode(normalise(x)), t[None])[0]
    x_aug = pipeline.apply(x.expand(VECTORS, -1, -1, -1).contiguous(), draws)
    return h_hat, mean_pool(branch.encode(normalise(x_aug)))


@torch.inference_mode()
def _followed(axis: Axes, loaded: LoadedModel, h_hat: Tensor, h_aug: Tensor) -> None:
    """Where the predictor says that each augmentation moves one scene, and where it really does."""
    net = loaded.model["visual"]
    z_hat, z_aug = F.normalize(net.g_intra(h_hat), dim=1), F.normalize(net.g_intra(h_aug), dim=1)
    mean, directions = planes(torch.cat([z_hat, z_aug]))
    predicted, real = (z_hat - mean) @ directions, (z_aug - mean) @ directions
    for a, b in list(zip(predicted.tolist(), real.tolist(), strict=True))[:LINES]:
        axis.plot([a[0], b[0]], [a[1], b[1]], color="#cccccc", linewidth=0.6, zorder=0)
    scatter(axis, real, s=12, c="#888888", label="z', the augmented picture")
    scatter(axis, predicted, s=12, c=COLOURS[0], label="ẑ, predicted from the vector t")
    axis.set_title(f"One scene, {VECTORS} augmentations, lines join {LINES} pairs", fontsize=9)
    axis.legend(fontsize=7, loc="best")


def centroid_figure(loaded: LoadedModel, clips: Dataset, path: Path) -> None:
    frames = [clips.sample(i, clips.frames // 2).inputs["visual"] for i in range(SCENES)]
    pairs = [clouds(loaded, frame) for frame in frames]
    figure = new_figure(10.5, 4.4)
    grid = figure.add_gridspec(SCENES, 3, width_ratios=[1, 5, 5])
    pictures = [np.ascontiguousarray(frame.permute(1, 2, 0).numpy()) for frame in frames]
    for row, colour in enumerate(COLOURS):
        axis = figure.add_subplot(grid[row, 0])
        image_row([axis], [pictures[row]], [""])
        for side in axis.spines.values():
            side.set(color=colour, linewidth=2.5)
    one, several = figure.add_subplot(grid[:, 1]), figure.add_subplot(grid[:, 2])
    _followed(one, loaded, *pairs[0])
    with torch.inference_mode():
        z = [F.normalize(loaded.model["visual"].g_inter(h_hat), dim=1) for h_hat, _ in pairs]
        z_bar = [loaded.model["visual"].g_inter(centroid(h_hat[None])) for h_hat, _ in pairs]
    mean, directions = planes(torch.cat(z))
    for points, middle, colour in zip(z, z_bar, COLOURS, strict=True):
        scatter(several, (points - mean) @ directions, s=8, c=colour, alpha=0.5)
        place = (F.normalize(middle, dim=1) - mean) @ directions
        scatter(several, place, s=190, c=colour, marker="*", edgecolors="black")
    several.set_title("Five scenes: ẑ of each draw, and z̄, the centroid's embedding", fontsize=9)
    for axis in (one, several):
        axis.tick_params(labelsize=6)
        axis.set_xlabel("first two principal directions", fontsize=7)
    save(figure, path)


def telling(clips: WorldDataset) -> list[int]:
    """The first scenes in which one thing sounds and another is silent."""
    scenes = ((i, clips.scene(i)) for i in range(len(clips)))
    return [i for i, s in scenes if len(s.sounding) == 1 and len(s.objects) >= 2][: SCENES + 1]


@torch.inference_mode()
def localisation_figure(loaded: LoadedModel, clips: WorldDataset, path: Path) -> None:
    chosen = telling(clips)
    middle = clips.frames // 2
    samples = [clips.sample(i, middle) for i in chosen]
    frames = torch.stack([s.inputs["visual"] for s in samples])
    audio = loaded.inputs["audio"]
    z_a = loaded.embed("audio", audio.finish(audio.prepare(torch.stack([s.inputs["audio"] for s in samples]))))
    x = loaded.frames(frames)
    own, other = heat_maps(loaded, x, z_a), heat_maps(loaded, x, z_a.roll(1, dims=0))
    figure = new_figure(1.75 * len(chosen), 5.4)
    axes = figure.subplots(3, len(chosen))
    pictures = [np.ascontiguousarray(frame.permute(1, 2, 0).numpy()) for frame in frames]
    boxes = [clips.boxes(i, middle).numpy() for i in chosen]
    sounds = ["-".join(clips.scene(i).labels) for i in chosen]
    rows: list[tuple[list[NDArray[np.uint8]], list[str]]] = [
        ([outlined(p, b) for p, b in zip(pictures, boxes, strict=True)], [f"{s} sounds" for s in sounds]),
        ([heat_overlay(p, m.numpy()) for p, m in zip(pictures, own, strict=True)], ["its own sound"] * len(chosen)),
        ([heat_overlay(p, m.numpy()) for p, m in zip(pictures, other, strict=True)],
         [f"another's: {s}" for s in sounds[-1:] + sounds[:-1]]),
    ]  # fmt: skip
    for axis_row, (shown, titles) in zip(axes, rows, strict=True):
        image_row(list(axis_row), shown, titles)
    save(figure, path)


def main() -> None:
    loaded = load_model(sys.argv[1] if len(sys.argv) > 1 else "runs/demo")
    clips = build_dataset(loaded.config, "test")
    assert isinstance(clips, WorldDataset)
    centroid_figure(loaded, clips, IMAGES / "centroid.png")
    localisation_figure(loaded, clips, IMAGES / "localisation.png")
    print(f"written: {IMAGES / 'centroid.png'}, {IMAGES / 'localisation.png'}")


if __name__ == "__main__":
    main()
