"""Rank, world size, and the gather that lets gradients through."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


def active() -> bool:
    """Whether a process group has been set up."""
    return dist.is_available() and dist.is_initialized()


@contextmanager
def started() -> Iterator[None]:
    """Joins the process group that torchrun describes in the environment, for the time of the block."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def rank() -> int:
    """Number of this process, 0 when alone."""
    return dist.get_rank() if active() else 0


def world_size() -> int:
    """How many processes train together, 1 when alone."""
    return dist.get_world_size() if active() else 1


def own_share(count: int) -> tuple[int, int]:
    """First and last (exclusive) of the items that this process does of `count`: in rank order they make the whole."""
    share = -(-count // world_size())
    return min(rank() * share, count), min((rank() + 1) * share, count)


class _Gather(torch.autograd.Function):
    """Concatenates the rows of all ranks; backward adds what every rank's loss says about this rank's rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        ctx.rows = len(x)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        total = grad.contiguous().clone()
        dist.all_reduce(total)  # gloo has no reduce-scatter
        start = dist.get_rank() * ctx.rows
        return total[start : start + ctx.rows]


def gather(x: Tensor) -> Tensor:
    """All ranks' rows in rank order, with gradient; x itself when there is one process.

    Every rank then computes the same loss, so the gradient of its own rows arrives once per rank; the mean that
    DDP takes over ranks removes exactly that factor. Losses and gradients equal those of one large batch.
    """
    return cast(Tensor, _Gather.apply(x)) if world_size() > 1 else x  # type: ignore[no-untyped-call]


def broadcast_flag(value: bool) -> bool:
    """Whether any rank says yes: all ranks agree on the answer."""
    if world_size() == 1:
        return value
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    flag = torch.tensor(int(value), device=device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())


def everyone(items: list[T]) -> list[T]:
    """The items of all ranks in rank order, known to all; lists may differ in length."""
    if world_size() == 1:
        return items
    gathered: list[list[T]] = [[] for _ in range(world_size())]
    dist.all_gather_object(gathered, items)
    return [item for part in gathered for item in part]
