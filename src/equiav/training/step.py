"""One training step: whole, or in portions through a gradient cache."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from equiav.losses import LossWeights
from equiav.training.objectives import Objective, Projections, StepDraws
from equiav.types import Batch, LossTerms


@dataclass(frozen=True)
class Step:
    """What a step needs: the objective, the module that synchronises its gradients, and the arithmetic."""

    objective: Objective
    module: nn.Module  # the objective, or DDP around it
    micro_batch: int | None
    autocast: torch.dtype | None

    def _arithmetic(self, batch: Batch) -> AbstractContextManager[object]:
        return arithmetic(self.autocast, batch.waveforms.device)

    def __call__(self, batch: Batch, draws: StepDraws, weights: LossWeights) -> tuple[LossTerms, Projections]:
        """Leaves the gradient of the weighted sum in the parameters; returns terms and embeddings, detached."""
        if self.micro_batch is None or self.micro_batch >= len(batch):
            with self._arithmetic(batch):
                z = _float(self.module(batch, draws))
            terms = self.objective.losses(z, weights)
            terms.total.backward()  # type: ignore[no-untyped-call]
            return _detached(terms), z.like([x.detach() for x in z.tensors()])
        return self._cached(batch, draws, weights, self.micro_batch)

    def _cached(self, batch: Batch, draws: StepDraws, weights: LossWeights, size: int) -> tuple[LossTerms, Projections]:
        """The same gradient with the memory of `size` clips.

        All embeddings are computed without a graph, the loss is differentiated with respect to them, and then each
        portion is embedded again, the same draws with it, to carry its share of that gradient to the weights.
        """
        portions = [(i, min(i + size, len(batch))) for i in range(0, len(batch), size)]
        with torch.no_grad(), self._arithmetic(batch):
            embedded = [_float(self.objective(batch.rows(*p), draws.rows(*p))) for p in portions]
        columns = zip(*(z.tensors() for z in embedded), strict=True)
        leaves = [torch.cat(parts).requires_grad_() for parts in columns]
        moved = zip(*(z.displacement for z in embedded), strict=True)
        share = torch.tensor([stop - start for start, stop in portions]) / len(batch)
        displacement = tuple((torch.stack(of).cpu() * share).sum() for of in moved)
        whole = replace(embedded[0].like(leaves), displacement=displacement)
        terms = self.objective.losses(whole, weights)
        gradients = torch.autograd.grad(terms.total, leaves)
        for portion in portions:
            last = portion == portions[-1]
            with synchronised(self.module, last):
                with self._arithmetic(batch):
                    z = _float(self.module(batch.rows(*portion), draws.rows(*portion)))
                parts = zip(z.tensors(), gradients, strict=True)
                torch.stack([(x * g[slice(*portion)]).sum() for x, g in parts]).sum().backward()  # type: ignore[no-untyped-call]
        return _detached(terms), whole.like([x.detach() for x in leaves])


def arithmetic(autocast: torch.dtype | None, device: torch.device) -> AbstractContextManager[object]:
    """The precision networks compute in."""
    return nullcontext() if autocast is None else torch.autocast(device.type, dtype=autocast)


def synchronised(module: nn.Module, last: bool) -> AbstractContextManager[object]:
    """Ranks exchange gradients once per step, with the last portion."""
    if isinstance(module, DistributedDataParallel) and not last:
        return module.no_sync()
    return nullcontext()


def _float(z: Projections) -> Projections:
    """Losses are always taken in at least single precision."""
    return z.like([_at_least_float(x) for x in z.tensors()])


def _at_least_float(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def _detached(terms: LossTerms) -> LossTerms:
    return LossTerms(*(x.detach() for x in (terms.inter, terms.intra_audio, terms.intra_visual, terms.total)))
