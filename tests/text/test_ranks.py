"""With text that some clips lack, two processes follow the loss curve of one."""

import pytest

from tests.distributed.test_training import STEPS, losses
from tests.text.small import TEXT_OPTIONS

pytestmark = pytest.mark.process


@pytest.mark.parametrize("more", [(), ("train.micro_batch=3",)], ids=["whole", "gradient cache"])
def test_two_processes_equal_one(tmp_path, more):
    overrides = (TEXT_OPTIONS % 0.3, *more)  # with batches of which a process has no text at all
    one, first = losses(tmp_path / "one", 1, overrides)
    two, _ = losses(tmp_path / "two", 2, overrides)
    assert len(one) == len(two) == STEPS
    assert {"inter_audio_text", "intra_text"} <= first[0].keys()
    worst = max(abs(a - b) / max(1.0, abs(a)) for x, y in zip(one, two, strict=True) for a, b in zip(x, y, strict=True))
    assert worst < 1e-4, worst
