"""Linear probe: a linear classifier on frozen, pooled tokens says what the encoders know."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from equiav.data.dataset import ClipDataset
from equiav.data.loader import evaluation_batches
from equiav.evaluation.classification import mean_average_precision
from equiav.media.inputs import Inputs
from equiav.models.equiav import EquiAV, mean_pool
from equiav.types import Modality

PENALTIES = (1e-4, 1e-3, 1e-2)


@torch.inference_mode()
def pooled_features(model: EquiAV, clips: ClipDataset, inputs: Inputs, *, batch: int = 64) -> dict[Modality, Tensor]:
    """MeanPool(h) of every clip and modality."""
    device = next(model.parameters()).device
    parts: dict[Modality, list[Tensor]] = {m: [] for m in Modality}
    for loaded in evaluation_batches(clips, batch=batch):
        x = inputs.of(loaded.to(device))
        for m in Modality:
            parts[m].append(mean_pool(model[m].encode(x[m])).float().cpu())
    return {m: torch.cat(rows).clone() for m, rows in parts.items()}


@dataclass(frozen=True)
class LinearProbe:
    """Weights of a linear classifier on standardised features."""

    weight: Float[Tensor, "width classes"]
    bias: Float[Tensor, " classes"]
    mean: Float[Tensor, " width"]
    std: Float[Tensor, " width"]

    def __call__(self, features: Float[Tensor, "n width"]) -> Float[Tensor, "n classes"]:
        """Logits."""
        return ((features - self.mean) / self.std) @ self.weight + self.bias


def fit_probe(features: Float[Tensor, "n width"], labels: Float[Tensor, "n classes"], penalty: float) -> LinearProbe:
    """Logistic regression, one output per class, by L-BFGS from zero: deterministic."""
    mean, std = features.mean(dim=0), features.std(dim=0).clamp(min=1e-6)
    x = (features - mean) / std
    weight = torch.zeros(x.shape[1], labels.shape[1], requires_grad=True)
    bias = torch.zeros(labels.shape[1], requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = F.binary_cross_entropy_with_logits(x @ weight + bias, labels) + penalty * weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    return LinearProbe(weight.detach(), bias.detach(), mean, std)


def probe(
    train: tuple[Tensor, Tensor], validation: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]
) -> tuple[float, float]:
    """Mean AP on the test part, per cent, and the penalty that the validation part chose; pairs: features, labels."""
    fitted = {penalty: fit_probe(*train, penalty) for penalty in PENALTIES}
    scores = {p: mean_average_precision(f(validation[0]), validation[1])[0] for p, f in fitted.items()}
    best = max(scores, key=lambda p: scores[p])
    return mean_average_precision(fitted[best](test[0]), test[1])[0], best
