"""The bytes that `prepare` and `merge` write for generated media, pinned by SHA-256.

What is said about clips (names, times, splits, labels, reasons) must be the same anywhere. Sounds and pictures inside
the shards come out of FFmpeg, libjpeg and FLAC: they are compared where the versions of these are the frozen ones. With
other versions that part is skipped; look at a few clips (`equiav inspect`), then EQUIAV_REFREEZE=1 writes prepare.json
again.
"""

import hashlib
import json

import av
import numpy as np
import PIL
import pytest

from tests.frozen.api import REFREEZE, cli, frozen, prepare_small, stored
from tests.frozen.media import write_all, write_lists

pytestmark = pytest.mark.process

SCENARIOS = {
    "a folder": lambda out: cli("prepare", "media", out, "--seconds", 2, "--workers", 2),
    "sound only": lambda out: cli("prepare", "media", out, "--need", "audio", "--seconds", 3, "--workers", 1),
    "pictures only": lambda out: cli("prepare", "media", out, "--need", "video", "--workers", 1),
    "a table": lambda out: cli("prepare", "list.csv", out, "--seconds", 2, "--overlap", 0.5, "--workers", 1),
    "lines of JSON": lambda out: cli("prepare", "list.jsonl", out, "--seconds", 2, "--overlap", 0.5, "--workers", 1),
    "a list": lambda out: cli("prepare", "list.txt", out, "--workers", 1),
    "parts merged": lambda out: parts(out),
    "small shards": lambda out: prepare_small(
        "media", out, clip_seconds=1.5, overlap=0.25, short_side=48, frames=4, shard_bytes=90_000
    ),
}
# What the decoders and encoders decide: everything else must be the same with any of their versions.
DECODED = ("shards/", "index/members.npy", "index/statistics.npy", "SHA256SUMS")


def parts(out):
    for number in (1, 2, 3):
        cli("prepare", "media", f"{out}-{number}", "--part", f"{number}/3", "--seconds", 2, "--workers", 1)
    cli("merge", *(f"{out}-{number}" for number in (1, 2, 3)), "--out", out)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The folder in which the commands run: paths are stored as they are written, so they are written relative."""
    root = tmp_path_factory.mktemp("frozen")
    write_all(root / "media")
    write_lists(root, "media")
    return root


@pytest.fixture(params=SCENARIOS)
def prepared(request, place, monkeypatch):
    monkeypatch.chdir(place)
    out = place / request.param
    if not out.exists():
        SCENARIOS[request.param](request.param)
    return request.param, out


def digests(root, *, skip=()):
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.name.startswith(".lock"))
    names = {path.relative_to(root).as_posix(): path for path in files}
    return {name: sha256(path.read_bytes()) for name, path in names.items() if not name.startswith(skip)}


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def test_what_is_said_about_clips(prepared):
    name, out = prepared
    found = digests(out, skip=(*DECODED, "meta.json"))
    meta = json.loads((out / "meta.json").read_text(encoding="utf-8"))
    meta = {key: value for key, value in meta.items() if key not in ("equiav", "spectrogram", "seconds")}
    lines = {file: (out / file).read_text(encoding="utf-8").splitlines() for file in ("manifest.csv", "skipped.csv")}
    frozen("prepare", f"{name}: said", {"files": found, "meta": meta, **lines})


def test_what_was_decoded(prepared):
    """The raw bytes of the shards; sums of the spectrograms within rounding, which depends on the processor."""
    check_versions()
    name, out = prepared
    meta = json.loads((out / "meta.json").read_text(encoding="utf-8"))
    found = {
        "files": {file: digest for file, digest in digests(out).items() if file.startswith(DECODED[:2])},
        "statistics": np.load(out / "index/statistics.npy").tolist(),
        "spectrogram": meta["spectrogram"],
        "seconds": meta["seconds"],
    }
    frozen("prepare", f"{name}: decoded", found, 1e-6)


def test_the_media_are_the_frozen_ones(place):
    """If this fails, it is not `prepare` that changed."""
    check_versions()
    frozen("prepare", "media", digests(place / "media"))


def check_versions():
    versions = {"pillow": PIL.__version__, **{name: list(version) for name, version in av.library_versions.items()}}
    if REFREEZE:
        frozen("prepare", "versions", versions)
    elif stored("prepare", "versions") != versions:
        pytest.skip(f"frozen with other decoders: {stored('prepare', 'versions')}")
