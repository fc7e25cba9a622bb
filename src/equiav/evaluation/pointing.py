"""How well a heat map agrees with boxes: pointing, area-adaptive IoU, and the cIoU of the field with its AUC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from equiav.errors import ShapeError

Maps = Float[Tensor, "n h w"]
Boxes = Float[Tensor, "_ 4"]  # x0, y0, x1, y1 in pixels
THRESHOLDS = tuple(k / 20 for k in range(21))


@dataclass(frozen=True)
class Agreement:
    """Per picture: did the maximum fall into a box; IoU at the boxes' own area; IoU when cut at the map's median."""

    pointing: Float[Tensor, " n"]
    adaptive_iou: Float[Tensor, " n"]
    median_iou: Float[Tensor, " n"]

    def rows(self, rows: Sequence[int]) -> Agreement:
        """Some of the pictures."""
        index = torch.tensor(list(rows), dtype=torch.long)
        return Agreement(self.pointing[index], self.adaptive_iou[index], self.median_iou[index])

    def record(self) -> dict[str, float]:
        """Per cent; `cIoU`: pictures with a median IoU of at least 0.5; `AUC`: the same over all thresholds."""
        success = [float((self.median_iou >= threshold).double().mean()) for threshold in THRESHOLDS]
        step = THRESHOLDS[1] - THRESHOLDS[0]
        area = sum((a + b) / 2 * step for a, b in pairwise(success))
        return {
            "pointing": 100 * float(self.pointing.double().mean()),
            "adaptive_iou": 100 * float(self.adaptive_iou.double().mean()),
            "cIoU": 100 * success[THRESHOLDS.index(0.5)],
            "AUC": 100 * area,
            "pictures": len(self.pointing),
        }


def agreement(maps: Maps, boxes: Sequence[Boxes]) -> Agreement:
    """Every map against the union of its picture's boxes; a picture without boxes is refused."""
    if len(maps) != len(boxes):
        raise ShapeError(f"{len(maps)} maps for the boxes of {len(boxes)} pictures")
    rows = [_one(heat, box) for heat, box in zip(maps, boxes, strict=True)]
    return Agreement(*(torch.tensor(column) for column in zip(*rows, strict=True)))


def covered(boxes: Boxes, height: int, width: int) -> Bool[Tensor, "h w"]:
    """The pixels whose centres lie in any of the boxes."""
    y, x = torch.arange(height)[:, None] + 0.5, torch.arange(width)[None] + 0.5
    inside = [(x >= x0) & (x <= x1) & (y >= y0) & (y <= y1) for x0, y0, x1, y1 in boxes.tolist()]
    return torch.stack(inside).any(dim=0) if inside else torch.zeros(height, width, dtype=torch.bool)


def _one(heat: Float[Tensor, "h w"], boxes: Boxes) -> tuple[float, float, float]:
    truth = covered(boxes, *heat.shape)
    area = int(truth.sum())
    if not area:
        raise ShapeError("a picture without boxes (or with boxes outside it) cannot be judged; leave it out")
    flat = heat.flatten()
    order = flat.argsort(descending=True, stable=True)
    adaptive = torch.zeros_like(flat, dtype=torch.bool)
    adaptive[order[:area]] = True
    hit = float(truth.flatten()[order[0]])
    return hit, _iou(adaptive, truth.flatten()), _iou(flat > flat.median(), truth.flatten())


def _iou(found: Bool[Tensor, " pixels"], truth: Bool[Tensor, " pixels"]) -> float:
    return float((found & truth).sum() / (found | truth).sum().clamp(min=1))


def centre_prior(height: int, width: int) -> Float[Tensor, "h w"]:
    """The guess of somebody who has neither seen nor heard anything: the nearer to the middle, the likelier."""
    y = (torch.arange(height) + 0.5) / height - 0.5
    x = (torch.arange(width) + 0.5) / width - 0.5
    return -(y[:, None].square() + x[None].square())
