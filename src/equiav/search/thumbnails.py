"""Small pictures of the entries, as JPEG files in the index's folder."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from PIL import Image

from equiav.io import write_whole
from equiav.search.records import Entry

SIDE = 256
QUALITY = 80


@dataclass(frozen=True)
class Thumbnails:
    """One file per entry, named by the digest of its id: ids may hold anything."""

    folder: Path

    def place(self, id: str) -> Path:
        """Where the picture of an entry goes."""
        name = hashlib.sha256(id.encode("utf-8", "backslashreplace")).hexdigest()[:24]
        return self.folder / name[:2] / f"{name}.jpg"

    def path(self, id: str) -> Path | None:
        """Where the picture of an entry is, if it has one."""
        place = self.place(id)
        return place if place.is_file() else None

    def write(self, entry: Entry) -> None:
        """Keeps the picture of an entry, if it has one."""
        if entry.picture is None:
            return
        image = Image.fromarray(entry.picture)
        image.thumbnail((2 * SIDE, SIDE))
        buffer = BytesIO()
        image.save(buffer, "JPEG", quality=QUALITY)
        write_whole(self.place(entry.id), buffer.getvalue(), sync=False)  # too many to wait for each

    def remove(self, id: str) -> None:
        """Forgets the picture of an entry."""
        self.place(id).unlink(missing_ok=True)
