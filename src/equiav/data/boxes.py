"""Where sounding things are in a clip's square picture, wherever the clip comes from."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from equiav.data.dataset import ClipDataset, WorldDataset
from equiav.data.shards import ShardDataset
from equiav.errors import DataError

LEAST = 1.0  # pixels that must be left of a box after the picture was cut square


def picture_boxes(clips: ClipDataset, index: int, frame: int) -> Float[Tensor, "boxes 4"]:
    """Boxes (x0, y0, x1, y1) in pixels of the square picture `frame` of a clip; none where nothing was annotated."""
    if isinstance(clips, WorldDataset):
        return clips.world.boxes(clips.start + index)[frame].float()
    if isinstance(clips, ShardDataset):
        shares = clips.info(index).get("boxes") or []
        if not shares:
            return torch.zeros(0, 4)
        height, width = clips.frame(index, frame, whole=True).shape[1:]
        return squared(torch.tensor(shares, dtype=torch.float32), height, width, clips.size)
    raise DataError("these clips have no boxes; localisation is measured on the world or on sets such as VGG-SS")


def squared(shares: Float[Tensor, "boxes 4"], height: int, width: int, side: int) -> Float[Tensor, "kept 4"]:
    """Boxes given as shares of a whole picture, in pixels of its middle square scaled to `side`.

    What lies outside the square is cut off, and boxes of which nothing is left are dropped.
    """
    short = min(height, width)
    offset = torch.tensor([(width - short) / 2, (height - short) / 2] * 2)
    pixels = (shares * torch.tensor([width, height] * 2) - offset) / short * side
    pixels = pixels.clamp(0, side)
    kept = (pixels[:, 2] - pixels[:, 0] >= LEAST) & (pixels[:, 3] - pixels[:, 1] >= LEAST)
    return pixels[kept]
