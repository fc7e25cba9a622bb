"""Images and audio nobody vouches for, from files and from memory: formats, sizes, lengths and lists of other files."""

import io
import struct
import sys
import zlib

import av
import numpy as np
import pytest
from PIL import Image

from equiav.errors import MediaError
from equiav.media import Limits, open_media, read_audio, read_image
from tests.media.making import sine, write_media

CLIPS = sys.modules["equiav.media.clips"]


def encoded(image, kind):
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


@pytest.fixture
def photo():
    rng = np.random.default_rng(0)
    return Image.fromarray(rng.integers(0, 255, (12, 20, 3)).astype(np.uint8))


@pytest.mark.parametrize("kind", ["BMP", "PNG", "PPM", "TIFF"])
def test_images_from_files_and_memory_are_the_same(tmp_path, photo, kind):
    content = encoded(photo, kind)
    (tmp_path / "image").write_bytes(content)
    np.testing.assert_array_equal(read_image(content), np.array(photo))
    np.testing.assert_array_equal(read_image(tmp_path / "image"), np.array(photo))


def test_other_formats_of_pillow_are_not_opened(photo):
    """EPS would start Ghostscript."""
    for kind in ("EPS", "ICO", "TGA", "PDF"):
        with pytest.raises(MediaError, match=r"memory: cannot be read as an image \(unknown format\)"):
            read_image(encoded(photo, kind))


def test_the_middle_square_is_what_scaling_the_whole_gives(photo):
    whole = photo.resize((10, 6), Image.Resampling.BICUBIC)
    difference = read_image(encoded(photo, "PNG"), side=6).astype(int) - np.array(whole)[:, 2:8]
    assert np.abs(difference).max() <= 1
    np.testing.assert_array_equal(read_image(encoded(whole.crop((0, 0, 6, 6)), "PNG"), side=6), np.array(whole)[:, :6])


def test_images_are_turned_upright_unless_told_not_to(photo):
    buffer = io.BytesIO()
    exif = photo.getexif()
    exif[0x0112] = 6
    photo.save(buffer, "JPEG", exif=exif)
    assert read_image(buffer.getvalue()).shape == (20, 12, 3)
    assert read_image(buffer.getvalue(), upright=False).shape == (12, 20, 3)


def test_sixteen_bits_of_grey_are_scaled_to_eight():
    grey = np.arange(0, 65536, 1024, dtype=np.uint16).reshape(8, 8)
    expected = np.repeat((grey >> 8).astype(np.uint8)[..., None], 3, axis=2)
    np.testing.assert_array_equal(read_image(encoded(Image.fromarray(grey), "PNG")), expected)


def bomb(width, height):
    """A PNG of a few kilobytes whose header states this size."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def test_the_size_is_checked_before_anything_is_decoded(monkeypatch):
    monkeypatch.setattr(Image.Image, "convert", lambda *_, **__: pytest.fail("it was decoded"))
    with pytest.raises(MediaError, match="8000x8000 are larger than allowed"):
        read_image(bomb(8000, 8000))
    with pytest.raises(MediaError, match="20x12 are larger than allowed"):
        read_image(bomb(20, 12), limits=Limits(pixels=100))


@pytest.mark.parametrize("suffix", [".wav", ".flac", ".ogg", ".mp3", ".m4a"])
def test_audio_from_files_and_memory_is_the_same(tmp_path, suffix):
    codecs = {".wav": "pcm_s16le", ".flac": "flac", ".ogg": "libopus", ".mp3": "libmp3lame", ".m4a": "aac"}
    path = write_media(
        tmp_path / f"a{suffix}", seconds=2, video=False, rate=48000, codecs=("", codecs[suffix]), layout="stereo"
    )
    waveform = read_audio(path)
    np.testing.assert_array_equal(read_audio(path.read_bytes()), waveform)
    resampler = av.AudioResampler(format="s16", layout="mono", rate=16000)
    with av.open(str(path)) as container:
        frames = [f for frame in container.decode(audio=0) for f in resampler.resample(frame)]
    plain = np.concatenate([f.to_ndarray().reshape(-1) for f in [*frames, *resampler.resample(None)]])
    np.testing.assert_array_equal(waveform, plain)
    assert len(waveform) == pytest.approx(32000, abs=2500)


@pytest.mark.parametrize(
    "content",
    [
        b"ffconcat version 1.0\nfile %s\n",
        b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n%s\n#EXT-X-ENDLIST\n",
        b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n",
        b'<?xml version="1.0"?>\n<MPD><Period><AdaptationSet/></Period></MPD>',
    ],
)
@pytest.mark.parametrize("padding", [b"", b"\n" * 3000])
def test_lists_of_other_files_in_memory_are_refused(tmp_path, content, padding):
    """Also where what gives them away lies behind what is searched for it: from memory no protocol may be followed."""
    other = write_media(tmp_path / "other.wav", seconds=1, video=False, codecs=("", "pcm_s16le"))
    reason = "cannot be opened as media" if padding else "is a list of other files, not media"
    with pytest.raises(MediaError, match=reason):
        read_audio(padding + content.replace(b"%s", str(other).encode()))


@pytest.mark.parametrize(
    "content",
    [
        b"# VobSub index file, v7\nid: en, index: 0\ntimestamp: 00:00:00:000, filepos: 000000000\n",  # opens a.sub
        b";FFMETADATA1\ntitle=a\n",
        b'<svg xmlns="http://www.w3.org/2000/svg"><image href="other.png"/></svg>',
        b"\n" * 3000 + b"c=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n",
    ],
)
def test_formats_that_nobody_needs_are_not_opened(tmp_path, content):
    write_media(tmp_path / "a.mpg", seconds=1, codecs=("mpeg2video", "mp2"), rate=32000).rename(tmp_path / "a.sub")
    (tmp_path / "a.mp4").write_bytes(content)
    with pytest.raises(MediaError, match="cannot be opened as media"):
        open_media(tmp_path / "a.mp4")


def test_hours_of_silence_are_refused_before_they_are_decoded(tmp_path, monkeypatch):
    path = tmp_path / "long.flac"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("flac", rate=8000, layout="mono", format="s16", options={"frame_size": "65535"})
        for k in range(500):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 65535), np.int16), format="s16", layout="mono")
            frame.sample_rate, frame.pts = 8000, k * 65535
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    assert path.stat().st_size < 100_000
    monkeypatch.setattr(CLIPS, "AudioReader", lambda *_, **__: pytest.fail("it was decoded"))
    with pytest.raises(MediaError, match=r"a\.flac: lasts 1\.14 h; at most 1 h"):
        read_audio(path.read_bytes(), name=tmp_path / "a.flac", limits=Limits(seconds=3600.0))


def test_audio_that_goes_on_behind_its_stated_end_is_refused(tmp_path, monkeypatch):
    path = write_media(tmp_path / "a.wav", sound=sine(3, 16000), video=False, codecs=("", "pcm_s16le"))
    monkeypatch.setattr(CLIPS, "_spans", lambda *_: {0: (0.0, 1.0)})
    with pytest.raises(MediaError, match="lasts more than"):
        read_audio(path, limits=Limits(seconds=2.0))


def test_what_is_missing_is_said(tmp_path):
    with pytest.raises(MediaError, match="no such file"):
        read_image(tmp_path / "none.png")
    with pytest.raises(MediaError, match="no such file"):
        read_audio(tmp_path / "none.wav")
    with pytest.raises(MediaError, match="no sound"):
        read_audio(write_media(tmp_path / "mute.mp4", seconds=1, audio=False))
    with pytest.raises(MediaError, match="memory: cannot be opened as media"):
        read_audio(b"nothing")
