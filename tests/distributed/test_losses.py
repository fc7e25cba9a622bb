"""Two gloo processes with half the batch each give the losses and gradients of one process with all of it."""

import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

pytestmark = pytest.mark.process
N, D, TAU = 8, 16, 0.07


def network():
    net = nn.Linear(D, 12).double()
    with torch.no_grad():
        net.weight.copy_(torch.randn(12, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
        net.bias.zero_()
    return net


def batches():
    rng = torch.Generator().manual_seed(2)
    a = torch.randn(N, D, generator=rng, dtype=torch.float64)
    return a, 0.5 * a + torch.randn(N, D, generator=rng, dtype=torch.float64)


def worker(rank, world, store, loss_name, queue):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    from equiav import losses

    net = nn.parallel.DistributedDataParallel(network())
    rows = slice(rank * N // world, (rank + 1) * N // world)
    a, b = (net(x[rows]) for x in batches())
    loss = getattr(losses, loss_name)(a, b, TAU)
    loss.backward()
    queue.put((rank, loss.item(), [p.grad.tolist() for p in net.parameters()]))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # threads of the group may outlive it and abort an interpreter that is being torn down


@pytest.mark.parametrize("loss_name", ["nt_xent", "equimod", "info_nce"])
def test_two_ranks_equal_one(loss_name, tmp_path):
    from equiav import losses

    net = network()
    loss = getattr(losses, loss_name)(*(net(x) for x in batches()), TAU)
    loss.backward()
    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    mp.spawn(worker, (2, tmp_path / "store", loss_name, queue), nprocs=2)
    results = [queue.get() for _ in range(2)]
    for _, value, grads in results:
        assert abs(value - loss.item()) < 1e-9
        for ours, whole in zip(grads, net.parameters(), strict=True):
            torch.testing.assert_close(torch.tensor(ours, dtype=torch.float64), whole.grad, rtol=0, atol=1e-9)
