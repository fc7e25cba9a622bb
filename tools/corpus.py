"""Hostile media made by script: small files that cost their reader much, or that make it read something else."""

from __future__ import annotations

import io
import struct
import zlib
from fractions import Fraction
from pathlib import Path

import av
from PIL import Image


def slow_jpeg(scans: int = 2500, size: tuple[int, int] = (8000, 4800)) -> bytes:
    """A progressive JPEG (300 KB) whose last scan is repeated: each time all blocks of the picture are visited."""
    buffer = io.BytesIO()
    Image.new("L", size, 128).save(buffer, "JPEG", progressive=True, optimize=True)
    content = buffer.getvalue()
    last = content.rindex(b"\xff\xda")
    return content[:last] + content[last:-2] * scans + content[-2:]


def png(size: tuple[int, int], *, rows: int | None = None, kind: tuple[int, int, int] = (8, 2, 3)) -> bytes:
    """A black PNG that states `size` and holds `rows` of it; `kind` is bit depth, colour type and bytes a pixel."""
    depth, colour, each = kind
    pack = zlib.compressobj(1)
    row = bytes(1 + each * size[0])
    data = b"".join(pack.compress(row) for _ in range(size[1] if rows is None else rows)) + pack.flush()

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", *size, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def film_of(path: Path, picture: bytes, size: tuple[int, int], *, codec: str = "png", frames: int = 10) -> Path:
    """A film of one second that shows `picture`, already encoded, again and again."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=frames)
        stream.width, stream.height = size
        stream.pix_fmt = "rgb24" if codec == "png" else "yuvj420p"
        for number in range(frames):
            packet = av.Packet(picture)
            packet.stream, packet.time_base, packet.is_keyframe = stream, Fraction(1, frames), True
            packet.pts = packet.dts = number
            packet.duration = 1
            container.mux(packet)
    return path


def huge_film(path: Path, size: tuple[int, int] = (8192, 4872), rows: int = 1) -> Path:
    """A .mov of some kilobytes whose frames, 16-bit RGBA, are as large as is allowed."""
    return film_of(path, png(size, rows=rows, kind=(16, 6, 8)), size)
