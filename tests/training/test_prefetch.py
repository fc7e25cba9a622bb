"""Copies run one batch ahead of the steps; stand-ins for a GPU's streams write down what they are told."""

from contextlib import contextmanager

import pytest
import torch

from equiav.training import prefetch
from equiav.types import Batch

CPU = torch.device("cpu")
LOG = []


def batch(number):
    return Batch((str(number),), {"audio": torch.full((1, 8), float(number))}, {"audio": torch.tensor([8])})


def test_all_batches_in_order():
    asked = []

    def source():
        for number in range(4):
            asked.append(number)
            yield batch(number)

    seen = []
    for one in prefetch(source(), CPU):
        seen.append((one.ids[0], asked[-1]))
    assert seen == [("0", 0), ("1", 1), ("2", 2), ("3", 3)]  # nothing to overlap with on a CPU
    assert list(prefetch([], CPU)) == []


class Told(Batch):
    """A batch that writes down when it is copied."""

    def to(self, device):
        LOG.append(("copy", self.ids[0], device.type))
        return self


@pytest.fixture
def log(monkeypatch):
    """What streams and events of a GPU are told, in order."""
    log = LOG
    log.clear()

    class Stream:
        def __init__(self, device=None):
            self.events = 0

        def record_event(self):
            self.events += 1
            return self.events - 1

    class Main:
        def wait_event(self, event):
            log.append(("wait for copy", str(event)))

        def __repr__(self):
            return "main"

    @contextmanager
    def stream(chosen):
        assert isinstance(chosen, Stream)
        log.append("on the copies' stream")
        yield
        log.append("back")

    main = Main()
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda x, stream: log.append(("held by", stream, x.shape)))
    return log


def test_on_a_gpu_the_next_copy_begins_before_the_step_and_only_its_own_is_waited_for(log):
    given = [batch(number) for number in range(2)]
    for one in prefetch([Told(b.ids, b.inputs, b.lengths) for b in given], torch.device("cuda")):
        log.append(("step", one.ids[0]))
    copied = ["on the copies' stream", ("copy", "0", "cuda"), "back"]
    held = [("held by", torch.cuda.current_stream(None), x.shape) for x in given[0].tensors()]
    assert log == [
        *copied, copied[0], ("copy", "1", "cuda"), copied[2],
        ("wait for copy", "0"), *held, ("step", "0"),
        ("wait for copy", "1"), *held, ("step", "1"),
    ]  # fmt: skip
