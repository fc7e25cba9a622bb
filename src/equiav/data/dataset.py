"""Clips by number: what a loader reads, wherever the clips come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from equiav.data.synthetic import Scene, World
from equiav.types import Batch, Sample


@runtime_checkable
class ClipDataset(Protocol):
    """Clips 0 up to len(self), each with the same number of frames to choose from."""

    @property
    def frames(self) -> int:
        """How many frames a clip has."""
        ...

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """The clip's name, without reading it."""
        ...

    def sample(self, index: int, frame: int) -> Sample:
        """One clip with one of its frames."""
        ...


@dataclass(frozen=True)
class WorldDataset:
    """Clips `start` up to `start + count` of the generated world; splits are disjoint ranges of one world.

    Clips are kept once made, as 16-bit sound and 8-bit pictures (about 130 kB each at the default size): a run
    visits them many times. `remember=False` makes them anew each time.
    """

    world: World
    start: int
    count: int
    remember: bool = True
    _made: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def frames(self) -> int:
        """Frames per clip."""
        return self.world.frames

    def __len__(self) -> int:
        return self.count

    def name(self, index: int) -> str:
        """As in the truth files: the world's seed and the clip's number in it."""
        return f"world-{self.world.seed}-{self.start + index:07d}"

    def scene(self, index: int) -> Scene:
        """The truth about a clip."""
        return self.world.scene(self.start + index)

    def clip(self, index: int) -> tuple[Tensor, Tensor]:
        """Sound as 16-bit numbers, as a recorder would store it, and all pictures."""
        if index in self._made:
            return self._made[index]
        waveform = self.world.waveform(self.start + index)
        made = ((waveform * 32767).round().to(torch.int16), self.world.video(self.start + index))
        if self.remember:
            self._made[index] = made
        return made

    def sample(self, index: int, frame: int) -> Sample:
        """The clip's sound and its frame number `frame`."""
        sound, pictures = self.clip(index)
        return Sample(self.name(index), sound.float() / 32768, pictures[frame])


@dataclass(frozen=True)
class Chosen:
    """Some clips of a set, in a stated order: a retrieval list, for instance."""

    clips: ClipDataset
    rows: tuple[int, ...]

    @property
    def frames(self) -> int:
        """Frames per clip."""
        return self.clips.frames

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, index: int) -> str:
        """As in the whole set."""
        return self.clips.name(self.rows[index])

    def sample(self, index: int, frame: int) -> Sample:
        """As in the whole set."""
        return self.clips.sample(self.rows[index], frame)


def evenly_spaced(count: int, wanted: int) -> list[int]:
    """At most `wanted` numbers below `count`, evenly spaced, so that nobody can have picked them."""
    wanted = min(wanted, count)
    return [i * count // wanted for i in range(wanted)]


def collate(samples: Sequence[Sample]) -> Batch:
    """A batch: waveforms padded with zeros to the longest."""
    waveforms = torch.nn.utils.rnn.pad_sequence([s.waveform for s in samples], batch_first=True)
    lengths = torch.tensor([len(s.waveform) for s in samples])
    return Batch(tuple(s.name for s in samples), waveforms, lengths, torch.stack([s.frame for s in samples]))
