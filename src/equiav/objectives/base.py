"""What a training method is: it draws, it computes, it compares; the trainer knows nothing else of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from equiav.distributed import gather
from equiav.types import Batch

# Outputs of an objective by name, one row per clip in every tensor; those under `log/` carry no gradient.
Outputs = Mapping[str, Tensor]
LOG = "log/"
D = TypeVar("D", bound="Draws")


def rows_of(drawn: Any, start: int, stop: int) -> Any:
    """Rows `start` up to `stop` of tensors, of draws, of mappings of either; nothing of nothing."""
    if drawn is None:
        return None
    if isinstance(drawn, Tensor):
        return drawn[start:stop]
    return drawn.rows(start, stop) if hasattr(drawn, "rows") else {k: rows_of(v, start, stop) for k, v in drawn.items()}


@dataclass(frozen=True)
class Draws:
    """All randomness of one step, for the global batch; methods that draw add fields with a row per clip."""

    def rows(self: D, start: int, stop: int) -> D:
        """What one rank or micro-batch takes of it."""
        return replace(self, **{f.name: rows_of(getattr(self, f.name), start, stop) for f in fields(self)})


class NoDraws(Draws):
    """For methods in which nothing is drawn."""


class Objective(nn.Module, ABC):
    """A training method: model, inputs, augmentations and losses in one module.

    `forward` gives a row per clip in every output, and only `losses` looks across clips, over all processes: so any
    objective can be trained in micro-batches through a gradient cache and on any number of processes.
    """

    model: nn.Module
    # The total is a mean over clips: micro-batches then need no gradient cache, their gradients just add up.
    separable: bool = False

    @abstractmethod
    def draw(self, count: int, seed: int, step: int) -> Draws:
        """The randomness of a step (counted from 0) for a global batch of `count` clips."""

    @abstractmethod
    def forward(self, batch: Batch, draws: Any) -> Outputs:
        """The outputs that the losses compare, one row per clip."""

    @abstractmethod
    def losses(self, outputs: Outputs, step: int, total: int) -> dict[str, Tensor]:
        """The terms by name over the batches of all processes, and under `total` what is minimised.

        `step` counts from 1 to `total` steps, for methods that change their weights as they go.
        """

    def health(self, outputs: Outputs) -> dict[str, float]:
        """Further numbers for the log, over the batches of all processes; computed only when a step is logged."""
        return {}


def collapse_signs(outputs: Outputs, part: str) -> dict[str, float]:
    """Effective rank and uniformity of the embeddings `part`/modality, over the batches of all processes."""
    found: dict[str, float] = {}
    for name in (name for name in outputs if name.startswith(f"{part}/")):
        whole, m = gather(outputs[name]), name.removeprefix(f"{part}/")
        found |= {f"effective_rank_{m}": effective_rank(whole), f"uniformity_{m}": uniformity(whole)}
    return found


@torch.no_grad()
def effective_rank(z: Float[Tensor, "n d"]) -> float:
    """exp(entropy of the normalised singular values): how many directions the embeddings use; 1 is collapse."""
    spectrum = torch.linalg.svdvals(F.normalize(z.double(), dim=1))
    share = spectrum / spectrum.sum().clamp(min=1e-12)
    return float(torch.exp(-(share * share.clamp(min=1e-12).log()).sum()))


@torch.no_grad()
def uniformity(z: Float[Tensor, "n d"]) -> float:
    """Log of the mean of exp(-2 d^2) over pairs on the sphere: 0 is collapse, about -4 is spread evenly."""
    distances = torch.pdist(F.normalize(z.double(), dim=1))
    return float(torch.exp(-2 * distances.square()).mean().log()) if len(distances) else 0.0
