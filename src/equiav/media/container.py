"""Media and images as FFmpeg and Pillow open them, from a file or from memory: what they may cost, what is refused."""

from __future__ import annotations

import contextlib
import io
import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.error import FFmpegError
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError

from equiav.errors import MediaError

# What FFmpeg may open. It knows 370 formats, among them lists of other files or addresses: they read what nobody named.
CONTAINERS = (
    "3g2,3gp,aac,ac3,aiff,amr,amrnb,amrwb,ape,apng,asf,au,av1,avi,bmp_pipe,caf,dsf,dts,dv,eac3,flac,flv,gif,gif_pipe,"
    "gsm,h261,h263,h264,hevc,iff,image2,ivf,jpeg_pipe,loas,m4a,m4v,matroska,mj2,mjpeg,mov,mp3,mp4,mpc,mpc8,mpeg,mpegts,"
    "mpegvideo,mxf,nistsphere,nut,obu,ogg,pgm_pipe,png_pipe,ppm_pipe,rm,sox,swf,tak,tiff_pipe,truehd,tta,vc1,voc,vvc,"
    "w64,wav,webm,webp_pipe,wtv,wv,yuv4mpegpipe"
)
# Known by their text before FFmpeg sees them: a list that names itself would open files without end.
PLAYLIST_TEXT = re.compile(rb"\A\s*(#EXTM3U|ffconcat)|<MPD|<CompositionPlaylist|^c=IN IP", re.MULTILINE)
HEADER_BYTES = 2048  # of a file, searched for such text
SAMPLE_RATES = (1000, 768_000)
# What Pillow may open: it knows many more formats, and hands some of them (EPS) to other programs.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
PICTURES = frozenset({".bmp", ".jfif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})  # known by their names
# What FFmpeg and PyAV raise on bad media; IndexError and the like come from streams whose parameters make no sense.
BROKEN = (FFmpegError, OSError, ValueError, ArithmeticError, LookupError, UnicodeError)


@dataclass(frozen=True)
class Limits:
    """What media may cost: `seconds` of audio or video, the longer `side`, `pixels` and `aspect` of a frame or image.

    `idle_packets` may follow one another without output, and `wall` seconds may pass between two clips.
    """

    seconds: float = 6 * 3600.0
    side: int = 8192
    pixels: int = 40_000_000
    aspect: int = 16
    idle_packets: int = 5000
    wall: float = 120.0


class Watch:
    """The time spent since the last sign of progress."""

    def __init__(self, path: Path, wall: float) -> None:
        self.path, self.wall = path, wall
        self.progress()

    def progress(self) -> None:
        """Starts counting again."""
        self.until = time.monotonic() + self.wall

    def check(self) -> None:
        """Refuses the file once it took too long."""
        if time.monotonic() > self.until:
            raise MediaError(self.path, f"took too long (more than {self.wall:g} s without a clip)")


@contextlib.contextmanager
def refusing(path: Path, what: str, act: str = "decoded") -> Iterator[None]:
    """What FFmpeg raises inside becomes a MediaError: `what`, with the first line of what it says put in."""
    try:
        yield
    except MemoryError as error:
        raise MediaError(path, f"cannot be {act} within the memory allowed") from error
    except BROKEN as error:
        lines = str(getattr(error, "strerror", None) or error).splitlines()
        raise MediaError(path, what.format(lines[0] if lines else type(error).__name__)) from error


def check_regular(path: Path, name: Path | None = None) -> None:
    """Refuses what is no regular file: reading a pipe or a device may never end."""
    # Of os.path, for which a name that no file can have is none, not an error.
    if not os.path.isfile(path):  # noqa: PTH113
        raise MediaError(name or path, "not a regular file" if os.path.exists(path) else "no such file")  # noqa: PTH110


def open_container(path: Path, limits: Limits, content: bytes | None = None) -> Any:
    """The file, or `content` under the name `path`; never a network address, a list of other files, or a device."""
    # What a file in memory names lies outside of it: no protocol may be followed from there.
    protocols = "file" if content is None else "none"
    # A picture's name may hold a pattern (%03d) that would read its neighbours instead.
    options = {
        "format_whitelist": CONTAINERS,
        "protocol_whitelist": protocols,
        "pattern_type": "none",
        "max_pixels": str(limits.pixels),
    }
    with refusing(path, "cannot be opened as media ({})", "opened"):
        beginning = (content or b"")[:HEADER_BYTES]
        if content is None:
            check_regular(path)
            with path.open("rb") as file:
                beginning = file.read(HEADER_BYTES)
        if PLAYLIST_TEXT.search(beginning):
            raise MediaError(path, "is a list of other files, not media")
        return av.open(
            # An absolute name cannot be taken for a protocol or an option of one.
            str(path.absolute()) if content is None else io.BytesIO(content),
            mode="r", options=options, metadata_errors="replace", timeout=(limits.wall, limits.wall),
        )  # fmt: skip


def packets(container: Any, chosen: Iterable[Any], watch: Watch) -> Iterator[Any]:
    """The packets of some streams up to the end, or up to where the file is damaged."""
    wanted = list(chosen)
    for stream in container.streams:
        if all(stream.index != other.index for other in wanted):
            with contextlib.suppress(AttributeError):  # older PyAV reads them in vain
                stream.discard = av.stream.Discard.all
    source = container.demux(wanted)
    while True:
        watch.check()
        try:
            packet = next(source)
        except (StopIteration, *BROKEN):
            return
        yield packet


def decoded(container: Any, stream: Any, limits: Limits, watch: Watch) -> Iterator[Any]:
    """Frames in the order of showing; damaged packets are passed over as long as something comes out now and then."""
    idle = 0
    stream.codec_context.thread_count = 1  # files are shared out to processes; threads make damage undeterministic
    stream.codec_context.options = {"max_pixels": str(limits.pixels)}
    for packet in packets(container, [stream], watch):
        idle += 1
        if idle > limits.idle_packets:
            raise MediaError(watch.path, f"{limits.idle_packets} packets of {stream.type} gave nothing")
        try:
            frames = packet.decode()
        except MemoryError as error:
            raise MediaError(watch.path, "cannot be decoded within the memory allowed") from error
        except BROKEN:
            continue
        for frame in frames:
            idle = 0
            yield frame


def check_size(path: Path, width: int, height: int, limits: Limits) -> None:
    """Refuses frames and images no camera takes."""
    if min(width, height) < 1:
        raise MediaError(path, "its pictures have no size")
    if max(width, height) > limits.side or width * height > limits.pixels:
        raise MediaError(path, f"its pictures of {width}x{height} are larger than allowed")
    if max(width, height) > limits.aspect * min(width, height):
        raise MediaError(path, f"its pictures of {width}x{height} are more than {limits.aspect} times as long as wide")


def read_image(
    source: Path | bytes,
    *,
    side: int | None = None,
    upright: bool = True,
    formats: tuple[str, ...] = FORMATS,
    name: Path | None = None,
    limits: Limits | None = None,
) -> UInt8[np.ndarray, "h w 3"]:
    """An image file, or one held in memory, as RGB; with `side`, the middle square scaled to that many pixels.

    `upright` turns it as its EXIF data say. Its size is checked before it is decoded. `name` is what errors speak of.
    """
    path = name or (source if isinstance(source, Path) else Path("image in memory"))
    if isinstance(source, Path):
        check_regular(source, path)
    try:
        with Image.open(source if isinstance(source, Path) else io.BytesIO(source), formats=formats) as opened:
            check_size(path, opened.width, opened.height, limits or Limits())
            image = _eight_bits(ImageOps.exif_transpose(opened) if upright else opened).convert("RGB")
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, ValueError, SyntaxError) as error:
        reason = "unknown format" if isinstance(error, UnidentifiedImageError) else str(error)
        raise MediaError(path, f"cannot be read as an image ({reason})") from error
    except MemoryError as error:
        raise MediaError(path, "cannot be decoded within the memory allowed") from error
    return np.array(image if side is None else middle_square(image, side))


def middle_square(image: Image.Image, side: int) -> Image.Image:
    """The middle square of an image, scaled to `side` pixels."""
    if image.size == (side, side):
        return image
    short = min(image.size)
    left, top = (image.width - short) / 2, (image.height - short) / 2
    # Scaling only the middle is scaling the whole and taking the middle, for less.
    return image.resize((side, side), Image.Resampling.BICUBIC, box=(left, top, left + short, top + short))


def _eight_bits(image: Image.Image) -> Image.Image:
    """Pictures with 16 bits of grey scaled to 8: converting them to RGB as they are would make most of them white."""
    if not image.mode.startswith("I"):
        return image
    grey = np.asarray(image).astype(np.int64)
    return Image.fromarray((grey >> 8 if grey.max(initial=0) > 255 else grey).clip(0, 255).astype(np.uint8))
