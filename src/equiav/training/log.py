"""What a run writes as it goes: JSON lines, TensorBoard, a live line with the time left."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from equiav.errors import TrainingError
from equiav.io import duration, write_whole

LOG = "log.jsonl"
TENSORBOARD = "tensorboard"


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
    """JSON lines and TensorBoard side by side, continued from `step`."""

    def __init__(self, folder: Path, step: int) -> None:
        # Imported here: TensorBoard takes a second and only the first process writes it.
        from torch.utils.tensorboard import SummaryWriter

        try:
            cut_log(folder / LOG, step)
            self._lines = (folder / LOG).open("a", encoding="utf-8")
            self._board = SummaryWriter(str(folder / TENSORBOARD), purge_step=step + 1)
        except OSError as error:
            raise TrainingError(f"{folder}: cannot be written ({error.strerror})") from error

    def write(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """One record: a line of JSON, and every number as a TensorBoard scalar."""
        try:
            self._lines.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
            self._lines.flush()
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(f"{kind}/{name}", value, step)
        except OSError as error:
            raise TrainingError(f"{self._lines.name}: cannot be written ({error.strerror})") from error

    def close(self) -> None:
        """Closes both; what a full disk did not take was reported when it was written."""
        for part in (self._lines, self._board):
            with suppress(OSError):
                part.close()


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
