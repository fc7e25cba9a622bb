"""What is drawn to measure equivariance: for all clips at once, batches take their rows and do not matter."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from equiav.augment import Pipeline, PipelineDraw
from equiav.randomness import stream
from equiav.types import Modality


@dataclass(frozen=True)
class Plan:
    """What is drawn for one modality: `draws` rows per clip in the full draws, one row per clip in those alone."""

    pipeline: Pipeline
    draws: int
    full: PipelineDraw
    redrawn: dict[str, PipelineDraw]
    alone: dict[str, PipelineDraw]
    alone_redrawn: dict[str, PipelineDraw]

    def rows(self, start: int, stop: int) -> Plan:
        """The draws of clips `start` up to `stop`."""
        many = slice(start * self.draws, stop * self.draws)
        return Plan(
            self.pipeline,
            self.draws,
            self.full.rows(many.start, many.stop),
            {name: draw.rows(many.start, many.stop) for name, draw in self.redrawn.items()},
            {name: draw.rows(start, stop) for name, draw in self.alone.items()},
            {name: draw.rows(start, stop) for name, draw in self.alone_redrawn.items()},
        )

    def vectors(self, draws: PipelineDraw) -> Float[Tensor, "clips draws d_t"]:
        """The vectors of full draws, clip by clip."""
        return self.pipeline.encode(draws).view(-1, self.draws, len(self.pipeline.slots))

    def counted(self, name: str) -> Bool[Tensor, "clips draws"]:
        """Where a part is on, and drawn anew says something else."""
        differs = self._differs(name, self.full, self.redrawn[name])
        return (self.full[name].on & differs).view(-1, self.draws)

    def counted_alone(self, name: str) -> Bool[Tensor, "clips 1"]:
        """The same for the part alone, which is always on."""
        return self._differs(name, self.alone[name], self.alone_redrawn[name])[:, None]

    def _differs(self, name: str, one: PipelineDraw, other: PipelineDraw) -> Bool[Tensor, " rows"]:
        encode = self.pipeline.parts[name].encode
        return (encode(one[name]) != encode(other[name])).any(dim=1)


def make_plan(pipeline: Pipeline, m: Modality, *, clips: int, draws: int, seed: int, parts: bool = True) -> Plan:
    """All randomness of one modality; without `parts` only the full draws."""

    def source(purpose: str) -> torch.Generator:
        return stream(seed, 0, f"equivariance/{purpose}/{m.value}")

    full = pipeline.sample(clips * draws, source("full"))
    names = tuple(pipeline.parts) if parts else ()
    alone = {name: pipeline.alone(name, clips, source(f"alone/{name}")) for name in names}
    return Plan(
        pipeline,
        draws,
        full,
        {name: pipeline.redraw(full, name, source(f"redrawn/{name}")) for name in names},
        alone,
        {name: pipeline.redraw(alone[name], name, source(f"alone/redrawn/{name}")) for name in names},
    )
