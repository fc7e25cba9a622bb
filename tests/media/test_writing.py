"""Videos that are written hold what was given, whatever the kind of the samples."""

from fractions import Fraction

import numpy as np
import pytest

from equiav.media import open_media, read_audio, write_video
from tests.media.making import numbered, sine

RATE = 16000


@pytest.mark.parametrize("scale", [None, 32767])
def test_sound_of_either_kind_and_odd_sizes(tmp_path, scale):
    tone = sine(1.0, RATE)
    waveform = tone if scale is None else (tone * scale).astype(np.int16)
    path = tmp_path / "video.mp4"
    write_video(path, (numbered(i, 65, 49) for i in range(8)), waveform, rate=RATE, fps=Fraction(8))
    info = open_media(path)
    assert info.video is not None
    assert info.video[1] - info.video[0] == pytest.approx(1.0, abs=0.15)
    heard = read_audio(path, sample_rate=RATE).astype(np.float32) / 32768
    assert np.sqrt(np.mean(heard**2)) == pytest.approx(np.sqrt(np.mean(tone**2)), rel=0.1)


def test_a_video_without_sound(tmp_path):
    path = tmp_path / "draft.tmp"  # what it is does not depend on its name
    write_video(path, [numbered(1)] * 4, np.zeros(0, np.int16), rate=RATE, fps=Fraction(4))
    info = open_media(path)
    assert info.video is not None
    assert info.audio is None
