"""Reconstruction and CAV-MAE's contrast: two gloo processes give the losses and gradients of one."""

import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

pytestmark = pytest.mark.process
N, TOKENS, D = 8, 5, 16


def network():
    net = nn.Linear(D, 12).double()
    with torch.no_grad():
        net.weight.copy_(torch.randn(12, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
        net.bias.zero_()
    return net


def total(net, rows):
    from equiav.losses import cavmae, cavmae_contrast, masked_mean_square

    rng = torch.Generator().manual_seed(2)
    x = torch.randn(N, TOKENS, D, generator=rng, dtype=torch.float64)
    target = torch.randn(N, TOKENS, 12, generator=rng, dtype=torch.float64)
    # As many removed patches as the draw says: the ranks do not hold equally many.
    mask = (torch.rand(N, TOKENS, generator=rng) < 0.6).double()
    predicted = net(x[rows])
    losses = {
        norm: masked_mean_square(target[rows], predicted, mask[rows], norm == "norm_pix") for norm in ("", "norm_pix")
    }
    contrast = cavmae_contrast(predicted.mean(dim=1), predicted[:, 0] + target[rows, 0])
    return cavmae(losses, contrast)


def worker(rank, world, store, queue):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    net = nn.parallel.DistributedDataParallel(network())
    loss = total(net, slice(rank * N // world, (rank + 1) * N // world))
    loss.backward()
    queue.put((loss.item(), [p.grad.tolist() for p in net.parameters()]))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # threads of the group may outlive it and abort an interpreter that is being torn down


def test_two_ranks_equal_one(tmp_path):
    net = network()
    loss = total(net, slice(0, N))
    loss.backward()
    queue = mp.get_context("spawn").SimpleQueue()
    mp.spawn(worker, (2, tmp_path / "store", queue), nprocs=2)
    for value, grads in (queue.get() for _ in range(2)):
        assert abs(value - loss.item()) < 1e-9
        for ours, whole in zip(grads, net.parameters(), strict=True):
            torch.testing.assert_close(torch.tensor(ours, dtype=torch.float64), whole.grad, rtol=0, atol=1e-9)
