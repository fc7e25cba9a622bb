"""Batches on the device of a run, each copied there while the step before it computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from equiav.types import Batch


@dataclass(frozen=True)
class _Underway:
    """A batch whose copy has been asked for; `arrival` is the event of its end, None where copies are not deferred."""

    batch: Batch
    arrival: Any

    def arrived(self, device: torch.device) -> Batch:
        """The batch, for work on the device's current stream, which waits for this copy and no later one."""
        if self.arrival is not None:
            stream = torch.cuda.current_stream(device)
            stream.wait_event(self.arrival)
            for x in (self.batch.waveforms, self.batch.lengths, self.batch.frames):
                x.record_stream(stream)  # allocated on the copies' stream: not to be reused before the step is done
        return self.batch


def on_device(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """The batches in their order, on `device`, one ahead: on a GPU copies have a stream of their own.

    A step waits for its own result before it asks for the next batch, so that a copy begun only then would leave the
    GPU idle.
    """
    copies = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
    before: _Underway | None = None
    for batch in batches:
        begun = _copy(batch, device, copies)
        if before is not None:
            yield before.arrived(device)
        before = begun
    if before is not None:
        yield before.arrived(device)


def _copy(batch: Batch, device: torch.device, copies: Any) -> _Underway:
    if copies is None:
        return _Underway(batch.to(device), None)
    with torch.cuda.stream(copies):
        return _Underway(batch.to(device), copies.record_event())
