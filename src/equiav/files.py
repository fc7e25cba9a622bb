"""Files written whole or not at all; a place that cannot be written is one clear line."""

from __future__ import annotations

import os
from pathlib import Path

from equiav.errors import EquiAVError


def write_whole(path: Path, content: bytes | str) -> None:
    """Writes beside the place and moves there, so that a reader never sees half a file."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(content.encode() if isinstance(content, str) else content)
        draft.replace(path)
    except OSError as error:
        raise EquiAVError(f"{path}: cannot be written ({error.strerror})") from error
