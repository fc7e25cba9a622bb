"""A dozen and a half small media, and lists of them; the same bytes wherever the same FFmpeg encodes them."""

import csv
import json
import os
import shutil
from functools import partial

import numpy as np
from PIL import Image

from tests.media.making import numbered, sine, write_media

# Without it Matroska files carry a random number each.
write = partial(write_media, options={"fflags": "+bitexact"})
BOXES = [[0.1, 0.2, 0.5, 0.75], [0.0, 0.0, 1.0, 1.0]]


def write_all(root):
    """Videos of several codecs and rates, one that is long, and what `prepare` must leave out."""
    short = {"seconds": 1.2, "fps": 10}
    write(root / "mpeg4.mp4", sound=sine(1.2, 16000, 220), **short)
    write(root / "lossless.mkv", codecs=("ffv1", "flac"), rate=48000, layout="stereo", **short)
    write(root / "motion-jpeg.avi", codecs=("mjpeg", "pcm_s16le"), pixels="yuvj420p", rate=44100, **short)
    write(root / "sub/vp8.webm", codecs=("libvpx", "libopus"), rate=48000, seconds=1.2, fps=12.5)
    write(root / "sub/mpeg2.ts", codecs=("mpeg2video", "mp2"), rate=32000, seconds=1.2, fps=25)
    write(root / "sub/h264.mov", codecs=("libx264", "aac"), rate=22050, seconds=1.2, fps=29.97)
    write(root / "long.mp4", seconds=7, fps=5, sound=sweep(7, 16000))
    write(root / "late sound.mkv", codecs=("ffv1", "flac"), sound_at=0.5, seconds=2, fps=8)
    write(root / "turned.mov", rotation=90, size=(96, 64), **short)
    write(root / "uneven.mkv", times=[0, 0.1, 0.45, 0.5, 1.3, 1.5], seconds=1.6, codecs=("ffv1", "flac"))
    write(root / "surround é.mkv", codecs=("ffv1", "flac"), layout="5.1", rate=48000, **short)
    write(root / "large.mkv", codecs=("ffv1", "flac"), size=(360, 300), seconds=0.8, fps=5)
    write(root / "no sound.mp4", audio=False, **short)
    write(root / "silence.mp4", sound=np.zeros(19200, np.float32), **short)
    write(root / "sound only.wav", video=False, codecs=("", "pcm_s16le"), seconds=1)
    write(root / "brief.mp4", seconds=0.3, fps=10)
    shutil.copy(root / "mpeg4.mp4", root / "sub/copy.mp4")
    (root / "text.mp4").write_bytes(b"once upon a time\n" * 50)
    for name in ("long.mp4", "motion-jpeg.avi"):  # of no use without its end; readable up to where it ends
        content = (root / name).read_bytes()
        (root / f"half of {name}").write_bytes(content[: len(content) // 2])
    os.mkfifo(root / "pipe.mp4")


def sweep(seconds, rate):
    """A tone that rises, so that no two stretches are alike."""
    at = np.arange(round(seconds * rate)) / rate
    return (0.3 * np.sin(2 * np.pi * (150 + 60 * at) * at)).astype(np.float32)


def write_lists(root, media):
    """The media as a table with everything a table can say, and as lines of JSON."""
    rows = [
        {"path": "long.mp4", "start": 1.5, "seconds": 2, "label": "bell", "split": "train", "fold": 1},
        {"path": "long.mp4", "start": 4, "labels": "bell; whistle", "group": "tower", "split": "test", "fold": 2},
        {"path": "mpeg4.mp4", "name": "first", "labels": "whistle", "boxes": json.dumps(BOXES), "split": "validation"},
        {"path": "sub/vp8.webm", "group": "tower", "labels": "dog;bell"},
        {"path": "lossless.mkv", "group": "pond"},
        {"path": "uneven.mkv", "fold": 3, "city": "Bonn"},
        {"path": "absent.mp4"},
        {"path": "no sound.mp4", "label": "dog"},
    ]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with (root / "list.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows({**row, "path": f"{media}/{row['path']}"} for row in rows)
    lines = [json.dumps({**row, "path": f"{media}/{row['path']}"}) for row in rows]
    (root / "list.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (root / "list.txt").write_text(f"{media}/mpeg4.mp4\n{media}/motion-jpeg.avi\n", encoding="utf-8")


def write_lossless(root):
    """Sounds, pictures and videos that every decoder gives back exactly, for embedding."""
    lossless = {"codecs": ("ffv1", "flac"), "pixels": "bgr0"}
    write(root / "tone.wav", video=False, codecs=("", "pcm_s16le"), seconds=1.5, sound=sine(1.5, 16000, 330))
    write(root / "stereo.flac", video=False, codecs=("", "flac"), rate=48000, layout="stereo", seconds=2)
    write(root / "film.mkv", seconds=3, fps=5, sound=sine(3, 16000, 500), **lossless)
    write(root / "wide.mkv", seconds=1.5, fps=8, size=(160, 90), sound=sweep(1.5, 16000), **lossless)
    write(root / "mute.mkv", seconds=1.5, fps=8, audio=False, size=(48, 64), **lossless)
    write(root / "long.mkv", seconds=7, fps=4, sound=sweep(7, 16000), **lossless)
    Image.fromarray(numbered(77, 80, 60)).save(root / "bars.png")
    Image.fromarray(noise((50, 40, 4))).save(root / "clear.png")
    Image.fromarray(noise((64, 64))).save(root / "grey.png")


def noise(shape, seed=0):
    """Numbers from 0 to 255 at random."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
