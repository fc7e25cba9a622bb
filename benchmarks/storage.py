"""Bytes that a clip takes, in shards and in a search index: what docs/explanation/estimates.md multiplies.

python benchmarks/storage.py PREPARED_FOLDER INDEX_FOLDER      # writes results/storage.json
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from equiav.data import read_meta
from equiav.io import provenance, write_json
from equiav.search import Index, LocalStore

RESULTS = Path(__file__).parent / "results" / "storage.json"


def shards(folder: Path) -> dict[str, Any]:
    """Bytes of sound per second, of pictures per clip, and of all else (text, tar headers, padding) per clip."""
    meta = read_meta(folder)
    kinds: Counter[str] = Counter()
    whole = 0
    for shard in sorted((folder / "shards").glob("*.tar")):
        whole += shard.stat().st_size
        with tarfile.open(shard) as tar:
            for member in tar:
                kinds[Path(member.name).suffix] += member.size
    clips, sound, pictures = meta["clips"], kinds[".flac"], kinds[".jpg"]
    return {
        "clips": clips,
        "seconds": meta["seconds"],
        "sound_per_second": sound / meta["seconds"],
        "pictures_per_clip": pictures / clips,
        "else_per_clip": (whole - sound - pictures) / clips,
        "index_per_clip": sum(file.stat().st_size for file in (folder / "index").iterdir()) / clips,
    }


def known_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("entries.*"))


def index(folder: Path) -> dict[str, Any]:
    """Bytes per entry beside the vectors: what is known of it (an empty index taken off), and its thumbnail."""
    opened = Index.open(folder)
    with tempfile.TemporaryDirectory() as empty:
        LocalStore.create(Path(empty))
        known = known_bytes(folder) - known_bytes(Path(empty))
    thumbnails = sum(file.stat().st_size for file in folder.rglob("*.jpg"))
    return {"entries": len(opened), "known_per_entry": known / len(opened), "thumbnail": thumbnails / len(opened)}


def main() -> None:
    prepared, searchable = Path(sys.argv[1]), Path(sys.argv[2])
    write_json(RESULTS, {"shards": shards(prepared), "index": index(searchable), "provenance": provenance()})
    print(f"written: {RESULTS}")


if __name__ == "__main__":
    main()
