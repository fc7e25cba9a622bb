"""Hostile media made by script: small files that cost their reader much, or that make it read something else."""

from __future__ import annotations

import io
import random
import re
import struct
import zlib
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
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


def long_flac(path: Path, hours: float = 8.0) -> Path:
    """Hours of silence in some hundred kilobytes."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("flac", rate=8000, layout="mono", format="s16", options={"frame_size": "65535"})
        for number in range(round(hours * 3600 * 8000 / 65535)):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 65535), np.int16), format="s16", layout="mono")
            frame.sample_rate, frame.pts = 8000, number * 65535
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def eps() -> bytes:
    """A drawing that Pillow would hand to Ghostscript."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "EPS")
    return buffer.getvalue()


SDP = b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n"


def concat_list(other: Path) -> bytes:
    """A list that FFmpeg would follow to another file."""
    return f"ffconcat version 1.0\nfile '{other}'\n".encode()


def mutated(content: bytes, rng: random.Random) -> bytes:
    """The file with bits or bytes changed, cut, repeated, swapped, or replaced altogether."""
    if not content:
        return rng.randbytes(10)
    changed = bytearray(content)
    start, stop = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    match rng.randrange(10):
        case 0:
            return content[:start]
        case 1:
            return rng.randbytes(rng.randrange(1, 20_000))
        case 2:
            return content[:start] + content[stop:]
        case 3:
            return content[:start] + content[start : start + 200] * 20 + content[start:]
        case 4:
            changed[start : start + 4] = rng.choice([b"\xff" * 4, bytes(4), b"\x7f" + b"\xff" * 3, b"\x80" + bytes(3)])
        case 5:
            changed[start : start + 8] = rng.choice([b"\xff" * 8, bytes(8), struct.pack("<d", float("nan"))])
        case 6:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        case _:
            for _ in range(rng.choice((1, 10, 100, 1000))):
                changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


ODD = (
    "\0", "\ud800", "..", "../../../../etc/passwd", "/dev/zero", "/dev/stdin", "NaN", "-1", "1e999", "9" * 400,
    "[" * 5000, "{" * 5000, "null", "true", '""', "'", '"', "\n", "\r", ",", ";", "*a", "&a [*a, *a]", "<<: *a",
    "!!python/none", "%03d", "http://127.0.0.1:9/x", "file:///etc/passwd", "concat:a|b", "-f", "é" * 300,
    "\u202e", "\ufeff",
)  # fmt: skip


def mutated_text(content: str, rng: random.Random) -> bytes:
    """A text with odd words in it, parts swapped, or in another encoding."""
    for _ in range(rng.choice((1, 1, 2, 8))):
        start, stop = sorted(rng.randrange(len(content) + 1) for _ in range(2))
        match rng.randrange(4):
            case 0:
                content = content[:start] + rng.choice(ODD) + content[start:]
            case 1:
                words = re.findall(r"[\w./-]+", content) or [""]
                content = content.replace(rng.choice(words), rng.choice(ODD), rng.choice((1, -1)))
            case 2:
                content = content[:start] + content[stop:]
            case 3:
                content = content[:start] + content[start:stop] * 3 + content[stop:]
    coding = rng.choice(("utf-8", "utf-8", "utf-8", "utf-16", "latin-1"))
    return content.encode(coding, "surrogatepass" if coding.startswith("utf") else "replace")
