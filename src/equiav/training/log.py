"""What a run writes as it goes: JSON lines, trackers, a live line with the time left."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from equiav.errors import TrainingError
from equiav.io import duration, write_whole
from equiav.training.trackers import Trackers

LOG = "log.jsonl"


def cut_log(path: Path, step: int) -> None:
    """Keeps the lines up to `step`: a resumed run writes the later ones again."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # the line a kill cut short
        if isinstance(record, dict) and record.get("step", 0) <= step:
            kept.append(line)
    write_whole(path, "".join(f"{line}\n" for line in kept))


class RunLog:
    """JSON lines, and the trackers of the recipe beside them, continued from `step`."""

    def __init__(
        self, folder: Path, step: int, trackers: Sequence[str] = (), config: Mapping[str, Any] | None = None
    ) -> None:
        try:
            cut_log(folder / LOG, step)
            self._lines = (folder / LOG).open("a", encoding="utf-8")
        except OSError as error:
            raise TrainingError(f"{folder}: cannot be written ({error.strerror})") from error
        self._trackers = Trackers(trackers, folder, step, config or {})

    def write(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """One record: a line of JSON, and every number to the trackers."""
        try:
            self._lines.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
            self._lines.flush()
        except OSError as error:
            raise TrainingError(f"{self._lines.name}: cannot be written ({error.strerror})") from error
        self._trackers.write({f"{kind}/{k}": v for k, v in values.items() if isinstance(v, int | float)}, step)

    def close(self) -> None:
        """Closes all of them; what a full disk did not take was reported when it was written."""
        with suppress(OSError):
            self._lines.close()
        self._trackers.close()


class Progress:
    """A line that says where a run is and how long it will take; `say` gets a line every few seconds."""

    def __init__(self, total: int, start: int, say: Callable[[str], None], every: float = 2.0) -> None:
        self.total, self.start, self.say, self.every = total, start, say, every
        self.began = self.said = time.monotonic()

    def update(self, step: int, detail: str) -> None:
        """Called every step; speaks when it is time, and at the end."""
        now = time.monotonic()
        if now - self.said < self.every and step < self.total:
            return
        self.said = now
        rate = (step - self.start) / max(now - self.began, 1e-9)
        left = duration((self.total - step) / rate) if rate else "unknown"
        self.say(f"step {step}/{self.total}  {detail}  {rate:.2f} steps/s  {left} left")
