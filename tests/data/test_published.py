"""Of a published dataset nothing is left out that can be decoded; its audio is the first channel, as in its recipe."""

import sys
import wave
from dataclasses import replace

import numpy as np
import pytest

from equiav.cli import main
from equiav.data import ShardDataset, find_sources, merge, prepare, read_meta, read_skipped
from equiav.errors import DataError
from tests.media.making import sine, write_media

pytestmark = pytest.mark.process

SOUNDS = {
    "plain": sine(1, 16000, 300),
    "short": sine(0.2, 16000, 400),
    "silent": np.zeros(16000),
    "copy": sine(1, 16000, 300),
    "tiny": sine(0.01, 16000, 500),  # shorter than a window of the filter bank
}


def write_wav(path, *channels, rate=16000):
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = (np.stack(channels, axis=1) * 32767).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setparams((len(channels), 2, rate, 0, "NONE", ""))
        file.writeframes(samples.tobytes())


def speech_commands(root):
    """Training clips are those that no list names."""
    for name, sound in SOUNDS.items():
        write_wav(root / f"yes/{name}_nohash_0.wav", sound)
    (root / "validation_list.txt").write_text("")
    lines = (f"yes/{name}_nohash_0.wav\n" for name in SOUNDS if name != "plain")
    (root / "testing_list.txt").write_text("".join(lines))


def fsd50k(root):
    truth = root / "FSD50K.ground_truth"
    truth.mkdir(parents=True)
    (truth / "vocabulary.csv").write_text("0,Guitar,/m/0342h\n")
    (truth / "dev.csv").write_text("fname,labels,mids,split\nplain,Guitar,/m/0342h,train\n")
    lines = (f"{name},Guitar,/m/0342h\n" for name in SOUNDS if name != "plain")
    (truth / "eval.csv").write_text("fname,labels,mids\n" + "".join(lines))
    for name, sound in SOUNDS.items():
        write_wav(root / f"FSD50K.{'dev' if name == 'plain' else 'eval'}_audio" / f"{name}.wav", sound)


def esc50(root):
    lines = (f"{name}.wav,{2 if name == 'plain' else 1},0,dog,{name}\n" for name in SOUNDS)
    (root / "meta").mkdir(parents=True)
    (root / "meta/esc50.csv").write_text("filename,fold,target,category,src_file\n" + "".join(lines))
    for name, sound in SOUNDS.items():
        write_wav(root / f"audio/{name}.wav", sound)


@pytest.mark.parametrize(
    ("name", "layout"), [("speech-commands-35", speech_commands), ("fsd50k", fsd50k), ("esc50", esc50)]
)
def test_a_published_set_is_never_thinned(tmp_path, monkeypatch, capsys, name, layout):
    """Short, silent and repeated sounds of a test split stay, even where the original is in train."""
    root, out = tmp_path / "set", tmp_path / "out"
    layout(root)
    monkeypatch.setattr(sys, "argv", ["equiav", "prepare", name, str(root), str(out), "--workers", "1"])
    with pytest.raises(SystemExit, match="0"):
        main()
    said = capsys.readouterr().out
    assert said.startswith("5 clips of 5 files; 0 files left out; kept as published: short 2, silent 1, copies 1: ")
    assert read_meta(out)["splits"] == {"test": 4, "train": 1}
    assert read_meta(out)["kept"] == {"short": 2, "silent": 1, "copies": 1}
    assert list(read_skipped(out)) == []
    data = ShardDataset(out, "test")
    sounds = {data.source(i): data.waveform(i).numpy() for i in range(len(data))}
    short = next(sound for source, sound in sounds.items() if "short" in source)
    assert len(short) == 8000  # padded to half a second
    assert np.abs(short[:3200]).max() > 0.3
    assert not short[3200:].any()
    assert not next(sound for source, sound in sounds.items() if "silent" in source).any()


def test_own_sounds_are_still_thinned(tmp_path):
    esc50(tmp_path)
    sources = [replace(s, split="train") for s in find_sources(tmp_path / "audio")]
    summary = prepare(sources, tmp_path / "out", workers=1, need=("audio",))
    assert (summary.clips, summary.kept) == (1, {})
    assert {source: reason for source, _, reason in read_skipped(tmp_path / "out")} == {
        "plain.wav": "same content as copy.wav",
        "short.wav": "lasts only 0.20 s",
        "silent.wav": "silent",
        "tiny.wav": "lasts only 0.01 s",
    }


def loudness(folder, source="a.wav"):
    data = ShardDataset(folder, None)
    (sound,) = (data.waveform(i).numpy() for i in range(len(data)) if data.source(i) == source)
    return np.abs(np.fft.rfft(sound[:16000]))


@pytest.mark.parametrize(("name", "rate"), [("a.wav", 16000), ("a.mp4", 44100)])
def test_stereo_is_the_mean_or_the_first_channel(tmp_path, name, rate):
    """The first channel alone holds no trace of the second, at its full height; the mean holds half of each."""
    left, right = (sine(1, rate, hertz, 0.5) for hertz in (400, 1000))
    if name == "a.wav":
        write_wav(tmp_path / "in" / name, left, right, rate=rate)
    else:
        write_media(tmp_path / "in" / name, seconds=1, rate=rate, layout="stereo", sound=np.stack([left, right]))
    heard = {}
    for channels in ("mean", "first"):
        out = tmp_path / channels
        prepare(find_sources(tmp_path / "in"), out, workers=1, need=("audio",), channels=channels)
        assert read_meta(out)["channels"] == channels
        heard[channels] = loudness(out, name)
    assert heard["mean"][400] == pytest.approx(heard["mean"][1000], rel=0.1)
    assert heard["first"][400] == pytest.approx(2 * heard["mean"][400], rel=0.1)
    assert heard["first"][1000] < heard["first"][400] / 100


def test_channels_are_mean_or_first(tmp_path, monkeypatch, capsys):
    command = ["equiav", "prepare", str(tmp_path), str(tmp_path / "out"), "--channels", "left"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err.strip().endswith("--channels left: choose mean or first")


def test_channels_belong_to_what_is_prepared(tmp_path):
    """A folder carried on, and parts that are merged, have one way of mixing; by default the layout's own."""
    for name, hertz in (("a.wav", 300), ("b.wav", 500)):
        write_wav(tmp_path / "in" / name, sine(1, 16000, hertz), sine(1, 16000, 2 * hertz))
    sources = find_sources(tmp_path / "in")
    options = {"workers": 1, "need": ("audio",)}
    one, two = tmp_path / "one", tmp_path / "two"
    prepare(sources, one, part=(1, 2), published=True, **options)
    assert read_meta(one)["channels"] == "first"
    with pytest.raises(DataError, match="other settings"):
        prepare(sources, one, part=(1, 2), channels="mean", published=True, **options)
    prepare(sources, two, part=(2, 2), **options)
    assert read_meta(two)["channels"] == "mean"
    with pytest.raises(DataError, match="cannot be merged"):
        merge([one, two], tmp_path / "merged")
    prepare(sources, tmp_path / "three", part=(2, 2), channels="first", published=True, **options)
    merge([one, tmp_path / "three"], tmp_path / "merged")
    assert {k: read_meta(tmp_path / "merged")[k] for k in ("channels", "published", "kept")} == {
        "channels": "first", "published": True, "kept": {"short": 0, "silent": 0, "copies": 0}
    }  # fmt: skip
