"""Five hundred damaged or hostile files with good ones between them: no crash, no hang, no memory, nothing outside."""

import contextlib
import os
import shutil
import struct
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from equiav.data import ShardDataset, find_sources, prepare, read_skipped
from tests.media.making import sine, write_media

pytestmark = pytest.mark.process

NAMES = (
    "new\nline",
    'quote"s',
    "it's",
    "..dots..",
    "..%2f..%2fetc",
    "semi;colon,comma",
    "tab\tbed",
    "día-日本語-🎻",
    "-leading",
    "%03d",
    "file:x",
    "a" * 200,
    "$(touch x)",
    "back\\slash",
    " blank ",
    "percent%n%s",
)


def truncated(content, rng):
    return content[: int(rng.integers(1, len(content)))]


def flipped(content, rng):
    damaged = bytearray(content)
    for place in rng.integers(0, len(content), size=int(rng.integers(1, 200))):
        damaged[place] ^= 1 << int(rng.integers(8))
    return bytes(damaged)


def zeroed(content, rng):
    start = int(rng.integers(len(content)))
    stop = min(len(content), start + int(rng.integers(1, 4000)))
    return content[:start] + bytes(stop - start) + content[stop:]


def shuffled(content, rng):
    pieces = [content[i : i + 512] for i in range(0, len(content), 512)]
    return b"".join(pieces[i] for i in rng.permutation(len(pieces)))


def noise(content, rng):
    return content[:64] + rng.bytes(2000)


def absurd_duration(content, rng):
    """Durations and time scales in the headers of an MP4 file set to the largest there are."""
    damaged = bytearray(content)
    for box in (b"mvhd", b"tkhd", b"mdhd"):
        at = damaged.find(box)
        while at >= 0:
            field = at + 4 + (20 if box == b"tkhd" else 16)
            damaged[field : field + 4] = b"\x7f\xff\xff\xff"
            at = damaged.find(box, at + 4)
    return bytes(damaged) + rng.bytes(8)  # no two alike


def absurd_sample_times(content, rng):
    """Every stated duration of a sample is the largest there is."""
    damaged = bytearray(content)
    at = damaged.find(b"stts")
    while at >= 0:
        damaged[at + 16 : at + 20] = b"\x7f\xff\xff\xff"
        at = damaged.find(b"stts", at + 4)
    return bytes(damaged) + rng.bytes(8)


def absurd_size(content, rng):
    """A picture of 65535 x 65535 in the sample description."""
    damaged = bytearray(content)
    at = damaged.find(b"mp4v")
    if at >= 0:
        damaged[at + 28 : at + 32] = struct.pack(">HH", 65535, 65535)
    return bytes(damaged) + rng.bytes(8)


DAMAGES = (
    truncated,
    flipped,
    zeroed,
    shuffled,
    noise,
    absurd_duration,
    absurd_sample_times,
    absurd_size,
    truncated,
    flipped,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of media, and the names of the good ones."""
    root = tmp_path_factory.mktemp("hostile") / "media"
    kinds = {
        ".mp4": {"codecs": ("mpeg4", "aac")},
        ".mkv": {"codecs": ("ffv1", "flac")},
        ".avi": {"codecs": ("mjpeg", "pcm_s16le"), "pixels": "yuvj420p"},
        ".webm": {"codecs": ("libvpx", "libopus"), "rate": 48000},
        ".ts": {"codecs": ("mpeg2video", "mp2"), "rate": 32000},
        ".mov": {"codecs": ("libx264", "aac")},
    }
    good = []
    rng = np.random.default_rng(5)
    for number, (suffix, options) in enumerate(kinds.items()):
        path = write_media(root / f"good{number}{suffix}", seconds=1, fps=25, sound=tone(number, options), **options)
        good.append(path)
    contents = {path: path.read_bytes() for path in good}
    names = {path.name for path in good}
    for number, name in enumerate(NAMES):
        path = root / "names" / f"{name}.mp4"
        write_media(root / "one.mp4", seconds=1, fps=5, sound=sine(1, 16000, 300 + 20 * number))
        path.parent.mkdir(exist_ok=True)
        shutil.move(root / "one.mp4", path)
        names.add(f"names/{name}.mp4")
    bad = special(root)
    count = 500 - len(bad)
    for number in range(count):
        source = good[number % len(good)]
        damage = DAMAGES[number // len(good) % len(DAMAGES)]
        damaged = damage(contents[source], rng)
        if damaged.startswith(contents[source]):  # nothing there for this kind of damage
            damaged = flipped(damaged, rng)
        (root / f"bad{number:03d}{source.suffix}").write_bytes(damaged)
    return root, names


def tone(number, options):
    rate = options.get("rate", 16000)
    return sine(1, rate, 200 + 50 * number)


def special(root):
    """Files that are whole and yet of no use, or not media at all."""
    lossless = {"codecs": ("ffv1", "flac")}
    made = [
        write_media(root / "s-no-sound.mp4", seconds=1, audio=False),
        write_media(root / "s-no-picture.wav", seconds=1, video=False, codecs=("", "pcm_s16le")),
        write_media(root / "s-silent.mp4", seconds=1, sound=np.zeros(16000, np.float32)),
        write_media(root / "s-one-frame.mp4", times=[0.0], seconds=1),
        write_media(root / "s-stripe.mkv", seconds=1, size=(800, 2), **lossless),
        write_media(root / "s-short.mp4", seconds=0.2, sound=sine(0.2, 16000)),
    ]
    contents = {
        "s-empty.mp4": b"",
        "s-text.mp4": b"once upon a time\n" * 50,
        "s-playlist.mp4": b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\ngood0.mp4\n#EXT-X-ENDLIST\n",
        "s-concat.mp4": b"ffconcat version 1.0\nfile good0.mp4\n",
        "s-zeros.mkv": bytes(20000),
        "s-html.avi": b"<html><body>404</body></html>",
        "s-zip.mov": b"PK\x03\x04" + bytes(200),
        "s-loop.mp4": b"ffconcat version 1.0\n" + b"file s-loop.mp4\n" * 50,
    }
    for name, content in contents.items():
        (root / name).write_bytes(content)
        made.append(root / name)
    made.append(root / "s-copy.mp4")
    shutil.copy(root / "good0.mp4", made[-1])
    os.mkfifo(root / "s-pipe.mp4")  # reading it would wait for ever
    made.append(root / "s-pipe.mp4")
    (root / "folder.mp4").mkdir()
    # Unusual but good: these are kept.
    write_media(root / "u-eight.mkv", seconds=1, layout="7.1", rate=48000, codecs=("ffv1", "flac"))
    write_media(root / "u-fast.mkv", seconds=1, rate=192000, **lossless)
    write_media(root / "u-dot.mkv", seconds=1, size=(1, 1), pixels="bgr0", **lossless)
    return made


class Memory(threading.Thread):
    """The most any descendant of this process had resident, in bytes."""

    def __init__(self):
        super().__init__(daemon=True)
        self.most, self.over = 0, threading.Event()

    def run(self):
        while not self.over.wait(0.05):
            parents = {}
            for stat in Path("/proc").glob("[0-9]*/stat"):
                with contextlib.suppress(OSError, ValueError, IndexError):
                    fields = stat.read_text().rsplit(")", 1)[1].split()
                    parents[int(stat.parent.name)] = (int(fields[1]), int(fields[21]) * 4096)
            family = {os.getpid()}
            for _ in range(3):
                family |= {child for child, (parent, _) in parents.items() if parent in family}
            self.most = max([self.most, *(parents[c][1] for c in family - {os.getpid()} if c in parents)])


def test_hostile_files_cost_only_themselves(folder, tmp_path):
    root, good = folder
    out = tmp_path / "deep" / "out"
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    sources = find_sources(root)
    assert len(sources) == 500 + len(good) + 3
    memory = Memory()
    memory.start()
    began = time.monotonic()
    summary = prepare(sources, out, workers=2, wall=20.0, short_side=64)
    memory.over.set()
    print(f"{len(sources)} files in {time.monotonic() - began:.1f} s, at most {memory.most >> 20} MB in a worker")
    assert memory.most < 1 << 30
    assert summary.used + summary.skipped == len(sources)
    reasons = {source: reason for source, start, reason in read_skipped(out) if not start}
    assert all(reasons.values())
    kept = {source.id for source in sources} - set(reasons)
    assert good | {"u-eight.mkv", "u-fast.mkv", "u-dot.mkv"} <= kept
    assert not {name for name in kept if name.startswith("s-")}
    assert reasons["s-copy.mp4"] == "same content as good0.mp4"
    assert reasons["s-pipe.mp4"] == "not a regular file"
    assert reasons["s-silent.mp4"] == "silent"
    assert reasons["s-no-sound.mp4"] == "no sound"
    assert reasons["s-no-picture.wav"] == "no picture"
    assert "crashed" not in " ".join(reasons.values())
    # Nothing written among the media, nor beside OUT.
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
    assert {path.name for path in tmp_path.iterdir()} == {"deep"}
    assert {path.name for path in out.parent.iterdir()} == {"out"}
    for split in summary.splits:
        data = ShardDataset(out, split, size=32)
        for index in range(len(data)):
            sample = data.sample(index, 9)
            assert sample.inputs["visual"].shape == (3, 32, 32)
            assert "." not in sample.id
            assert "/" not in sample.id
