"""The state of a local store: how much of its files counts. Replacing this one file is what makes a change happen."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from equiav.errors import DataError, EquiAVError

STATE = "state.json"


@dataclass(frozen=True)
class Compressed:
    """A compressed index: its file, how many vectors it covers, and how many there were when it was trained."""

    file: str
    rows: int
    trained: int


@dataclass(frozen=True)
class State:
    """Numbers of rows that count in every file, and the names of the files that are replaced rather than grown."""

    generation: int = 0
    entries: int = 0
    text: int = 0  # bytes of descriptions
    tags: int = 0
    audio: int = 0
    visual: int = 0
    removed: str | None = None
    removed_count: int = 0
    compressed: dict[str, Compressed] = field(default_factory=dict)  # by side

    def rows(self, side: str) -> int:
        """Vectors on a side, removed ones counted."""
        return self.audio if side == "audio" else self.visual

    def files(self) -> set[str]:
        """Files that are replaced rather than grown."""
        return {c.file for c in self.compressed.values()} | ({self.removed} if self.removed else set())


def read_state(folder: Path) -> State:
    """The state last switched to."""
    try:
        tree: dict[str, Any] = json.loads((folder / STATE).read_text(encoding="utf-8"))
        compressed = {side: Compressed(**c) for side, c in tree.pop("compressed").items()}
        return State(**tree, compressed=compressed)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{folder / STATE} cannot be read ({error}); make the index again") from error


def switch_state(folder: Path, state: State) -> None:
    """Makes the change happen: all that the new state speaks of must be on the disk already."""
    draft = folder / f".{STATE}.{os.getpid()}.tmp"
    try:
        with draft.open("w", encoding="utf-8") as file:
            json.dump(asdict(state), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(folder / STATE)
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise EquiAVError(f"{folder}: cannot be written ({error.strerror})") from error
