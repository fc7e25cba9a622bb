"""Rank, world size, and the gather that lets gradients through."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from equiav.errors import EquiAVError, TrainingError

T = TypeVar("T")
RESUME = "the newest checkpoint is kept: run the same command again to resume"
LOST = ("gloo", "Gloo", "NCCL", "Connection closed", "Connection reset", "Timed out", "timed out")
GRACE = 10.0  # seconds in which ranks that lost another one say so


def active() -> bool:
    """Whether a process group has been set up."""
    return dist.is_available() and dist.is_initialized()


@contextmanager
def started(timeout: float = 1800.0) -> Iterator[None]:
    """Joins the process group that torchrun describes in the environment, for the time of the block.

    Ranks that wait for another one twice `timeout` seconds, or lose it, end in one line that names it. Twice: a rank
    whose own loader stands still says so first.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=2 * timeout))
    try:
        yield
    except Exception as error:
        lost = isinstance(error, RuntimeError) and any(sign in str(error) for sign in LOST)
        if lost:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it as soon as one rank has ended
        told = _tell_ranks("" if lost else str(error) or type(error).__name__, wait=lost)
        if not lost:
            raise
        raise TrainingError(_blame(told, f"for {2 * timeout:g} s" if "imed out" in str(error) else "")) from error
    finally:
        dist.destroy_process_group()


def _tell_ranks(reason: str, *, wait: bool) -> dict[int, str]:
    """Tells the others why this rank ends; with `wait`, what they say of themselves, within some seconds."""
    told: dict[int, str] = {}
    with suppress(RuntimeError):  # whoever keeps the store may be the one that is gone
        store = dist.distributed_c10d._get_default_store()
        store.set(f"equiav/end/{rank()}", reason.splitlines()[0] if reason else "")
        end = time.monotonic() + GRACE * wait
        while len(told) < world_size() and not any(told.values()):
            ranks = [r for r in range(world_size()) if r not in told and store.check([f"equiav/end/{r}"])]
            told |= {r: store.get(f"equiav/end/{r}").decode() for r in ranks}
            if time.monotonic() > end:
                break
            time.sleep(0.1)
    return told


def _blame(told: dict[int, str], how_long: str) -> str:
    if reasons := {r: reason for r, reason in told.items() if reason}:
        return "; ".join(f"rank {r} failed: {reason}" for r, reason in reasons.items())
    silent = ", ".join(str(r) for r in range(world_size()) if r not in told)
    what = f"has not answered {how_long} (twice train.timeout)" if how_long else "has ended without a word"
    return f"rank {silent} {what}; {RESUME}" if silent else f"the ranks lost each other; {RESUME}"


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


def first_rank(work: Callable[[], object], otherwise: str) -> None:
    """Does `work` on the first rank; where that fails for a known reason all end, the others saying `otherwise`."""
    failure: EquiAVError | None = None
    if rank() == 0:
        try:
            work()
        except EquiAVError as error:
            failure = error
    if broadcast_flag(failure is not None):
        raise failure or TrainingError(otherwise)


def everyone(items: list[T]) -> list[T]:
    """The items of all ranks in rank order, known to all; lists may differ in length."""
    if world_size() == 1:
        return items
    gathered: list[list[T]] = [[] for _ in range(world_size())]
    dist.all_gather_object(gathered, items)
    return [item for part in gathered for item in part]
