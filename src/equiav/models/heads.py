"""Projection heads g_intra, g_inter: three layers, layer norm after each."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class ProjectionHead(nn.Module):
    """Linear, norm, ReLU; linear, norm, ReLU; linear, norm."""

    def __init__(self, width: int, hidden: int, out: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.norm1 = nn.LayerNorm(hidden, eps=eps)
        self.fc2 = nn.Linear(hidden, hidden)
        self.norm2 = nn.LayerNorm(hidden, eps=eps)
        self.fc3 = nn.Linear(hidden, out)
        self.norm3 = nn.LayerNorm(out, eps=eps)

    def forward(self, h: Tensor) -> Tensor:
        """z = g(h), on the last axis."""
        h = F.relu(self.norm1(self.fc1(h)))
        h = F.relu(self.norm2(self.fc2(h)))
        return self.norm3(self.fc3(h))  # type: ignore[no-any-return]
