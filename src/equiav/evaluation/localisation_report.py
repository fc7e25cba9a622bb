"""Pictures of localisation: overlays in a row, the page of an evaluation, the paper's qualitative figure."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from equiav.data import ClipDataset
from equiav.evaluation.heat import Method
from equiav.evaluation.localisation import CONTROLS, Localised, subsets
from equiav.evaluation.representative import Representative
from equiav.media import to_float
from equiav.report import (
    Page,
    bars,
    cards,
    heat_overlay,
    image,
    new_figure,
    outlined,
    picture_png,
    player,
    png,
    row,
    table,
)

SHOWN = 12
SIDE = 192  # pixels of a picture on a page
TITLES = {"sound": "its own sound", "other sound": "another clip's sound", "centre": "centre prior"}


def pixels(picture: UInt8[Tensor, "3 h w"] | Float[Tensor, "3 h w"], scale: int = 1) -> NDArray[np.uint8]:
    """A picture as an array (H, W, 3) of bytes, each pixel `scale` times as large."""
    values = picture if not picture.is_floating_point() else (picture.clamp(0, 1) * 255).round().byte()
    return values.permute(1, 2, 0).cpu().numpy().repeat(scale, 0).repeat(scale, 1)


def overlay(
    picture: UInt8[Tensor, "3 h w"] | Float[Tensor, "3 h w"], heat: Float[Tensor, "h w"], boxes: Tensor | None = None
) -> NDArray[np.uint8]:
    """The picture under its map, with frames round boxes, at a size that can be looked at."""
    scale = max(1, SIDE // picture.shape[1])
    large = heat.numpy().repeat(scale, 0).repeat(scale, 1)
    drawn = heat_overlay(pixels(picture, scale), large)
    return drawn if boxes is None else outlined(drawn, boxes.numpy() * scale)


def scale_of(picture: Tensor) -> int:
    """How many times larger a picture is shown."""
    return max(1, SIDE // picture.shape[1])


def example_rows(clips: ClipDataset, result: Localised, places: list[int], rate: int) -> list[str]:
    """One row per clip: its sound, its picture with boxes, and the map under its own and under another sound."""
    rows = []
    for place in places:
        index = result.rows[place]
        sample = clips.sample(index, clips.frames // 2)
        scale = scale_of(sample.frame)
        plain = outlined(pixels(sample.frame, scale), result.boxes[place].numpy() * scale)
        cells = [player(sample.waveform.numpy(), rate), image(picture_png(plain), sample.name)]
        for name in ("sound", "other sound"):
            drawn = overlay(sample.frame, result.maps[name][place], result.boxes[place])
            hit = bool(result.found[name].pointing[place])
            cells.append(image(picture_png(drawn), TITLES[name], hit=hit))
        rows.append(row(cells))
    return rows


def localisation_page(clips: ClipDataset, result: Localised, record: dict[str, Any], rate: int, method: Method) -> Page:
    """Figures against the two controls, then maps to look at: evenly spaced clips, none picked."""
    page = Page("Where the sound comes from")
    page.text(
        f"Maps by the method '{method}'. A map is judged by whether its maximum falls into a box (pointing), by its "
        "overlap with the boxes when it covers as many pixels as they do (area-adaptive IoU), and by the field's cIoU "
        "and AUC (map cut at its median), which suit boxes that fill a quarter of the picture. A model that ignores "
        "the sound does as well with another clip's."
    )
    for subset, values in record.items():
        lead = values["ahead_of_other_sound"]
        page.heading(f"Clips: {subset} ({values['sound']['pictures']})")
        page.add(
            cards(
                [(f"pointing, {TITLES[name]}", f"{values[name]['pointing']:.1f} %") for name in CONTROLS]
                + [("own above other sound", f"{lead['mean']:+.1f} [{lead['low']:.1f}, {lead['high']:.1f}]")]
            )
        )
        page.add(figures_table(values))
    page.heading("Pointing").figure(_pointing_figure(record))
    page.heading("Maps").text("White frames: what sounds. A green rim: the maximum lies in one.", note=True)
    last = list(subsets(clips, result.rows).values())[-1]
    chosen = [last[k * len(last) // min(SHOWN, len(last))] for k in range(min(SHOWN, len(last)))]
    page.add(*example_rows(clips, result, chosen, rate))
    return page


def figures_table(values: dict[str, Any]) -> str:
    """All figures of one subset."""
    keys = ("pointing", "adaptive_iou", "cIoU", "AUC")
    rows = [[TITLES[name], *(f"{values[name][k]:.1f}" for k in keys)] for name in CONTROLS]
    return table(["per cent", "pointing", "area-adaptive IoU", "cIoU at 0.5", "AUC"], rows)


def _pointing_figure(record: dict[str, Any]) -> bytes:
    figure = new_figure(6.5, 3.0)
    series = {TITLES[name]: [values[name]["pointing"] for values in record.values()] for name in CONTROLS}
    bars(figure.add_subplot(), list(record), series, "maximum in a box, per cent")
    return png(figure)


def representative_cells(found: Representative) -> list[str]:
    """The paper's figure: the picture and its map, the transformed picture and its map."""
    cells = []
    for picture, heat, name in (
        (found.original, found.maps[0], "as it is"),
        (found.transformed, found.maps[1], f"nearest to the centroid, cosine {found.cosine:.3f}"),
    ):
        cells.append(image(picture_png(pixels(picture, scale_of(picture))), name))
        cells.append(image(picture_png(overlay(picture, heat)), "where the sound comes from"))
    return cells


def clip_cells(squares: UInt8[Tensor, "n 3 side side"], maps: Float[Tensor, "n side side"]) -> list[str]:
    """Pictures of one clip, each beside its map."""
    cells = []
    for picture, heat in zip(squares, maps, strict=True):
        scale = scale_of(picture)
        cells.append(image(picture_png(pixels(picture, scale))))
        cells.append(image(picture_png(overlay(to_float(picture[None])[0], heat))))
    return cells
