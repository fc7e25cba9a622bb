"""Which clips a step sees: a function of (seed, step), shared by ranks, whatever the workers."""

import pytest
import torch

from equiav.data import Dataset, Schedule, apart, balanced_weights, evaluation_batches, training_batches
from equiav.errors import DataError
from equiav.types import Clip, Sample


class Numbered(Dataset):
    frames = 10

    def __len__(self):
        return 23

    def clip(self, index):
        return Clip(f"clip-{index}")

    def sample(self, index, frame):
        audio, visual = torch.full((400 + index,), float(frame)), torch.zeros(3, 4, 4, dtype=torch.uint8)
        return Sample(f"clip-{index}", {"audio": audio, "visual": visual})


def names(start, stop, rank=0, world_size=1, workers=0):
    schedule = Schedule(23, 10, 4, seed=1)
    batches = training_batches(
        Numbered(), schedule, start=start, stop=stop, rank=rank, world_size=world_size, workers=workers
    )
    return [(b.ids, tuple(b.inputs["audio"][:, 0].tolist())) for b in batches]


def test_starting_late_gives_the_same_steps():
    assert names(7, 12) == names(0, 12)[7:]


def test_ranks_share_the_global_batch():
    whole, parts = names(0, 6), [names(0, 6, rank=r, world_size=2) for r in range(2)]
    assert [a[0] + b[0] for a, b in zip(*parts, strict=True)] == [w[0] for w in whole]
    assert [a[1] + b[1] for a, b in zip(*parts, strict=True)] == [w[1] for w in whole]


@pytest.mark.process
def test_workers_do_not_matter():
    assert names(0, 6, workers=2) == names(0, 6)


def test_an_epoch_visits_every_clip_at_most_once():
    schedule = Schedule(23, 10, 4, seed=1)
    assert schedule.steps_per_epoch == 5
    seen = [index for batch in schedule.requests(0, 5) for index, _ in batch]
    assert len(seen) == len(set(seen)) == 20
    again = [index for batch in schedule.requests(5, 10) for index, _ in batch]
    assert seen != again


def test_evaluation_drops_and_pads_nothing():
    batches = list(evaluation_batches(Numbered(), batch=5))
    assert [n for b in batches for n in b.ids] == [f"clip-{i}" for i in range(23)]
    assert {x for b in batches for x in b.inputs["audio"][:, 0].tolist()} == {5.0}  # the middle frame
    assert batches[0].lengths["audio"].tolist() == [400, 401, 402, 403, 404]


def test_balanced_weights_are_the_papers():
    weights = balanced_weights([("a",), ("a", "b"), ("a",), ()])
    expected = [1000 / 3.01, 1000 / 3.01 + 1000 / 1.01, 1000 / 3.01, 0.0]
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float64))
    schedule = Schedule(4, 1, 4, seed=0, weights=torch.tensor([0.0, 1.0, 0.0, 0.0]))
    assert schedule.order(0) == [1, 1, 1, 1]
    rare = Schedule(1000, 1, 4, seed=0, weights=torch.tensor([9.0] * 100 + [1.0] * 900))
    assert abs(sum(i < 100 for i in rare.order(3)) / 1000 - 0.5) < 0.06


def test_clips_of_one_source_stay_apart():
    groups = tuple(f"video-{i // 3}" for i in range(24))
    schedule = Schedule(24, 1, 4, seed=0, groups=groups)
    for epoch in range(5):
        order = schedule.order(epoch)
        assert sorted(order) == list(range(24))
        for start in range(0, 20, 4):
            batch = [groups[i] for i in order[start : start + 4]]
            assert len(set(batch)) == 4
    assert sorted(apart([0, 1, 2], ["same"] * 3, 2)) == [0, 1, 2]


def test_refusals():
    with pytest.raises(DataError, match="3 clips do not fill one batch of 4"):
        Schedule(3, 10, 4, seed=0)
    with pytest.raises(DataError, match="cannot be shared by 3 processes"):
        names(0, 1, world_size=3)
