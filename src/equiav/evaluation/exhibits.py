"""How the sounds and pictures of a set are shown on a page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from equiav.build import build_filter_bank
from equiav.config import Config
from equiav.data import ClipDataset, PairedDataset
from equiav.media import FilterBank
from equiav.report import image, new_figure, picture_png, png, spectrogram_row

EXAMPLES = 8
SIDE = 112  # pixels of a picture on the page


@dataclass(frozen=True)
class Exhibits:
    """How the sounds and pictures of a set are shown, and which picture is right for which sound."""

    sound: Callable[[int], Tensor]  # (samples,)
    picture: Callable[[int], Tensor]  # (3, H, W), uint8
    right: Callable[[int, int], bool]  # sound, picture
    sound_title: Callable[[int], str]
    picture_title: Callable[[int], str]
    filter_bank: FilterBank
    sample_rate: int
    one_to_one: bool

    def spectrogram(self, index: int) -> bytes:
        """The spectrogram of a sound, small, as PNG."""
        return small_spectrogram(self.sound(index), self.filter_bank)


def small_spectrogram(waveform: Tensor, filter_bank: FilterBank) -> bytes:
    """The spectrogram of a sound, small, as PNG."""
    energies = filter_bank(waveform[None])[0].numpy()
    figure = new_figure(1.9, 1.1)
    spectrogram_row([figure.add_subplot()], [energies], (float(energies.min()), float(energies.max())))
    return png(figure, 70)


def small_picture(picture: Tensor, text: str, *, hit: bool = False) -> str:
    """A picture (3, H, W) with a caption, of about the same size on every page; framed if it is the right one."""
    height = picture.shape[1]
    if height > SIDE:
        picture = F.interpolate(picture[None].float(), scale_factor=SIDE / height, mode="area")[0].round().byte()
    content = picture_png(picture.permute(1, 2, 0).contiguous().numpy(), scale=max(1, SIDE // height))
    return image(content, text, hit=hit, pixel=height < SIDE)


def exhibits(clips: ClipDataset, config: Config) -> Exhibits:
    """The exhibits of any set: the middle frame stands for a clip, and a clip's own picture is the right one."""
    bank, rate = build_filter_bank(config.audio), config.audio.sample_rate
    if isinstance(clips, PairedDataset):
        sounds, images = clips.sounds, clips.images
        return Exhibits(
            sounds.waveform,
            lambda j: images.pictures[j],
            lambda i, j: bool(sounds.labels[i] == images.labels[j]),
            lambda i: clips.classes[int(sounds.labels[i])],
            lambda j: clips.classes[int(images.labels[j])],
            bank,
            rate,
            one_to_one=False,
        )
    middle = clips.frames // 2
    return Exhibits(
        lambda i: clips.sample(i, middle).waveform,
        lambda j: clips.sample(j, middle).frame,
        lambda i, j: i == j,
        clips.name,
        clips.name,
        bank,
        rate,
        one_to_one=True,
    )
