"""Maps over frames at their own size, and over whole videos with their sound."""

import av
import numpy as np
import pytest

from equiav.errors import DataError
from equiav.evaluation import localise_video
from equiav.report import whole_overlay
from tests.inference.models import random_model
from tests.media.making import write_media


def test_a_frame_keeps_its_size_and_the_map_lies_on_its_middle():
    frame = np.full((60, 100, 3), 100, np.uint8)
    heat = np.zeros((8, 8), np.float32)
    heat[1, 6] = 1.0  # above, to the right
    drawn = whole_overlay(frame, heat)
    assert drawn.shape == (60, 100, 3)
    assert (drawn[:, :20] == 60).all(), "what the model does not see is dimmed"
    changed = np.abs(drawn[:, 20:80].astype(int) - 100).sum(-1)
    y, x = np.unravel_index(changed.argmax(), changed.shape)
    assert (y // 7.5, x // 7.5) == (1, 6)


@pytest.mark.parametrize("size", [(66, 49), (48, 64)])
def test_a_video_with_its_map_and_its_sound(tmp_path, size):
    source = write_media(tmp_path / "a.mp4", seconds=2.5, size=(size[0] // 2 * 2, size[1] // 2 * 2), fps=10)
    seconds = localise_video(random_model(), source, tmp_path / "out.mp4")
    assert seconds == pytest.approx(2.5, abs=0.2)
    with av.open(str(tmp_path / "out.mp4")) as container:
        video, sound = container.streams.video[0], container.streams.audio[0]
        assert (video.width, video.height) == (size[0] // 2 * 2, size[1] // 2 * 2)
        frames = [f.to_ndarray(format="rgb24") for f in container.decode(video)]
        assert len(frames) == pytest.approx(25, abs=1)
        assert float(sound.duration * sound.time_base) == pytest.approx(2.5, abs=0.2)
    with av.open(str(source)) as container:
        plain = [f.to_ndarray(format="rgb24") for f in container.decode(video=0)]
    assert np.abs(frames[12].astype(int) - plain[12]).mean() > 3, "something lies over it"


def test_what_has_no_sound_or_no_video_is_refused(tmp_path):
    silent = write_media(tmp_path / "silent.mp4", audio=False)
    heard = write_media(tmp_path / "a.wav", video=False, codecs=("mpeg4", "pcm_s16le"))
    with pytest.raises(DataError, match="has no sound to look for; give one with --audio"):
        localise_video(random_model(), silent, tmp_path / "out.mp4")
    with pytest.raises(DataError, match="has no video to look at"):
        localise_video(random_model(), heard, tmp_path / "out.mp4")
    with pytest.raises(DataError, match=r"videos are written as \.mp4"):
        localise_video(random_model(), silent, tmp_path / "out.avi")
    assert not list(tmp_path.glob("*out*"))
    localise_video(random_model(), silent, tmp_path / "out.mp4", audio=heard)
    with av.open(str(tmp_path / "out.mp4")) as container:
        assert not container.streams.audio
