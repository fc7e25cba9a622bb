"""The clips that a page shows: records with ids and labels, and the images and audio files that they name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from equiav.build import build_filter_bank
from equiav.config import Config
from equiav.data import Dataset
from equiav.report import image_png, spectrogram_png, wav
from equiav.types import AUDIO, VISUAL, Modality

ASSETS = "assets"  # the folder of images and audio beside results.json
SIDE = 112  # pixels of a small image


def pixels(frame: UInt8[Tensor, "3 h w"] | Float[Tensor, "3 h w"], scale: int = 1) -> NDArray[np.uint8]:
    """A frame as an array (H, W, 3) of bytes, each pixel `scale` times as large."""
    values = frame if not frame.is_floating_point() else (frame.clamp(0, 1) * 255).round().byte()
    return values.permute(1, 2, 0).cpu().numpy().repeat(scale, 0).repeat(scale, 1)


class Examples:
    """Makes the records of the examples on a page; `assets` collects their files, each made once.

    Audio is shown as a spectrogram and can be played, visual input as its middle frame; of another modality there is
    only the clip's id.
    """

    def __init__(self, sides: Mapping[Modality, Dataset], config: Config) -> None:
        self.sides, self.config = sides, config
        self.filter_bank = build_filter_bank(config.audio)
        self.assets: dict[str, bytes] = {}

    def item(self, modality: Modality, index: int, *, play: bool = False) -> dict[str, Any]:
        """One modality of a clip: id and labels, the file `image` to look at, and with `play` the file `audio`."""
        side = self.sides[modality]
        clip = side.clip(index)
        record: dict[str, Any] = {"id": clip.id, "labels": list(clip.labels)}
        if modality not in (AUDIO, VISUAL):
            return record
        stem = f"{ASSETS}/{modality}-{index}"
        files = {"image": f"{stem}.png"} | ({"audio": f"{stem}.wav"} if play and modality == AUDIO else {})
        if not set(files.values()) <= self.assets.keys():
            raw = side.part(index, side.frames // 2, (modality,)).inputs[modality]
            if modality == VISUAL:
                small = _small(raw)
                self.assets[files["image"]] = image_png(pixels(small), scale=max(1, SIDE // small.shape[1]))
            else:
                self.assets[files["image"]] = spectrogram_png(self.filter_bank(raw[None])[0].numpy())
            if "audio" in files:
                self.assets[files["audio"]] = wav(raw.numpy(), self.config.audio.sample_rate)
        return record | files


def _small(frame: UInt8[Tensor, "3 h w"]) -> UInt8[Tensor, "3 h2 w2"]:
    """A large frame scaled down to SIDE pixels."""
    if frame.shape[1] <= SIDE:
        return frame
    return F.interpolate(frame[None].float(), scale_factor=SIDE / frame.shape[1], mode="area")[0].round().byte()
