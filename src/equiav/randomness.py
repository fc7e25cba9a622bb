"""Random number generators: one per (seed, step, purpose), so that nothing drawn depends on anything else drawn."""

from __future__ import annotations

import zlib

import torch


def generator(seed: int, step: int, purpose: str) -> torch.Generator:
    """The generator of one purpose (order, frame, intra, inter, ...) at one step."""
    return torch.Generator().manual_seed(zlib.crc32(f"{seed}/{step}/{purpose}".encode()))
