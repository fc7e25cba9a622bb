"""`equiav world`: scenes of the generated world to look at and listen to."""

from __future__ import annotations

from pathlib import Path

from equiav.data import World
from equiav.io import write_whole
from equiav.media import FilterBank
from equiav.report import image_png, outlined, render, spectrogram_png, wav

SCALE = 3


def write_gallery(world: World, out: Path, *, count: int, start: int = 0) -> None:
    """One row per scene: first, middle and last frame with boxes round what sounds, spectrogram, player, truth."""
    bank = FilterBank(world.sample_rate, frames=16 * max(1, int(world.seconds * 100) // 16), bins=64)
    scenes = []
    for index in range(start, start + count):
        waveform, frames, boxes = world.waveform(index), world.video(index), world.boxes(index)
        shown = {}
        for k in (0, world.frames // 2, world.frames - 1):
            frame = frames[k].permute(1, 2, 0).numpy().repeat(SCALE, 0).repeat(SCALE, 1)
            shown[k] = image_png(outlined(frame, boxes[k].numpy() * SCALE))
        scenes.append(
            {
                "audio": wav(waveform.numpy(), world.sample_rate),
                "spectrogram": spectrogram_png(bank(waveform[None])[0].numpy(), 2.4, 1.3, dpi=80),
                "sounding": world.scene(index).sounding,
                "frames": shown,
            }
        )
    write_whole(out, render("world.html", scenes=scenes))
