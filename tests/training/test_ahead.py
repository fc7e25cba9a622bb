"""Copies run one batch ahead of the steps; stand-ins for a GPU's streams write down what they are told."""

from contextlib import contextmanager

import pytest
import torch

from equiav.training import on_device
from equiav.types import Batch

CPU = torch.device("cpu")
LOG = []


def batch(number):
    return Batch((str(number),), torch.full((1, 8), float(number)), torch.tensor([8]), torch.zeros(1, 3, 4, 4).byte())


def test_all_batches_in_order_one_ahead():
    asked = []

    def source():
        for number in range(4):
            asked.append(number)
            yield batch(number)

    seen = []
    for one in on_device(source(), CPU):
        seen.append((one.names[0], asked[-1]))
    assert seen == [("0", 1), ("1", 2), ("2", 3), ("3", 3)]
    assert list(on_device([], CPU)) == []


class Told(Batch):
    """A batch that writes down when it is copied."""

    def to(self, device):
        LOG.append(("copy", self.names[0], device.type))
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
    for one in on_device([Told(b.names, b.waveforms, b.lengths, b.frames) for b in given], torch.device("cuda")):
        log.append(("step", one.names[0]))
    copied = ["on the copies' stream", ("copy", "0", "cuda"), "back"]
    held = [
        ("held by", torch.cuda.current_stream(None), x.shape)
        for x in (given[0].waveforms, given[0].lengths, given[0].frames)
    ]
    assert log == [
        *copied, copied[0], ("copy", "1", "cuda"), copied[2],
        ("wait for copy", "0"), *held, ("step", "0"),
        ("wait for copy", "1"), *held, ("step", "1"),
    ]  # fmt: skip
