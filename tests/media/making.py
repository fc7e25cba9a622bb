"""Small media files made for the tests: pictures that say which frame they are, sounds that are known exactly."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np

BITS = 8


def numbered(number: int, width: int = 64, height: int = 48) -> np.ndarray:
    """A picture whose upper half spells `number` in eight black or white bars; left to right, lowest bit first."""
    picture = np.full((height, width, 3), 128, np.uint8)
    for bit in range(BITS):
        left, right = bit * width // BITS, (bit + 1) * width // BITS
        picture[: height // 2, left:right] = 255 * (number >> bit & 1)
    return picture


def number_of(picture: np.ndarray) -> int:
    """Which frame it is; `picture` is (H, W, 3)."""
    height, width = picture.shape[:2]
    centres = [(2 * bit + 1) * width // (2 * BITS) for bit in range(BITS)]
    return sum(int(picture[height // 4, x].mean() > 128) << bit for bit, x in enumerate(centres))


def sine(seconds: float, rate: int, hertz: float = 440.0, amplitude: float = 0.4) -> np.ndarray:
    """A tone in [-1, 1]."""
    return (amplitude * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def write_media(
    path: Path,
    *,
    times: list[float] | None = None,
    fps: float = 25.0,
    seconds: float = 2.0,
    sound: np.ndarray | None = None,
    rate: int = 16000,
    layout: str = "mono",
    video: bool = True,
    audio: bool = True,
    size: tuple[int, int] = (64, 48),
    codecs: tuple[str, str] = ("mpeg4", "aac"),
    pixels: str = "yuv420p",
    rotation: int | None = None,
    sound_at: float = 0.0,
    options: dict[str, str] | None = None,
    format: str | None = None,
) -> Path:
    """A film of numbered pictures at `times`, or `seconds` at `fps`; `sound` is (channels, n) or (n,), else a tone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", options=options or {}, format=format) as container:
        film = track = None
        if video:
            film = container.add_stream(codecs[0], rate=Fraction(fps).limit_denominator(1001))
            film.width, film.height = size
            film.pix_fmt = pixels
            if codecs[0] != "mpeg2video":  # which knows only the rates of television
                film.codec_context.time_base = Fraction(1, 12800)
            film.codec_context.gop_size = 12
            film.codec_context.thread_count = 1  # the same bytes on any number of cores
            if codecs[0] == "mpeg4":
                film.codec_context.bit_rate = 2_000_000
            if rotation is not None:
                film.set_display_rotation(rotation)
        if audio:
            track = container.add_stream(codecs[1], rate=rate, layout=layout)
        if film is not None:
            _film(container, film, times or [k / fps for k in range(round(seconds * fps))], size)
        if track is not None:
            _track(container, track, sine(seconds, rate) if sound is None else sound, rate, layout, sound_at)
    return path


def _film(container, stream, times, size):
    for number, at in enumerate(times):
        frame = av.VideoFrame.from_ndarray(numbered(number % 256, *size), format="rgb24")
        frame.pts, frame.time_base = round(at * 12800), Fraction(1, 12800)
        container.mux(stream.encode(frame))
    container.mux(stream.encode(None))


def _track(container, stream, sound, rate, layout, at):
    channels = np.atleast_2d(sound)
    wanted = av.AudioLayout(layout).nb_channels
    if len(channels) != wanted:
        channels = np.repeat(channels[:1], wanted, axis=0)
    step = stream.codec_context.frame_size or 1024
    for start in range(0, channels.shape[1], step):
        piece = np.ascontiguousarray(channels[:, start : start + step].T.reshape(1, -1), np.float32)
        frame = av.AudioFrame.from_ndarray(piece, format="flt", layout=layout)
        frame.sample_rate, frame.time_base = rate, Fraction(1, rate)
        frame.pts = start + round(at * rate)
        container.mux(stream.encode(frame))
    container.mux(stream.encode(None))
