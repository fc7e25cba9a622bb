"""`equiav world`: scenes of the generated world to look at and listen to."""

from __future__ import annotations

from pathlib import Path

from equiav.data import Scene, World
from equiav.media import FilterBank
from equiav.report import Page, image, new_figure, outlined, picture_png, player, png, row, spectrogram_row

SCALE = 3


def write_gallery(world: World, out: Path, *, count: int, start: int = 0) -> None:
    """One row per scene: first, middle and last frame with boxes round what sounds, spectrogram, player, truth."""
    page = Page("The generated world")
    page.text(
        "Kind gives timbre, size gives pitch (larger is lower), colour gives rhythm. Boxes mark what sounds; things "
        "without one are silent and drawn from the same lot."
    )
    bank = FilterBank(world.sample_rate, frames=16 * max(1, int(world.seconds * 100) // 16), bins=64)
    for index in range(start, start + count):
        sound = world.waveform(index)
        energies = bank(sound[None])[0].numpy()
        figure = new_figure(2.4, 1.3)
        spectrogram_row([figure.add_subplot()], [energies], (float(energies.min()), float(energies.max())))
        cells = [player(sound.numpy(), world.sample_rate), image(png(figure, 80), describe_scene(world.scene(index)))]
        pictures, boxes = world.pictures(index), world.boxes(index)
        for frame in (0, world.frames // 2, world.frames - 1):
            picture = pictures[frame].permute(1, 2, 0).numpy().repeat(SCALE, 0).repeat(SCALE, 1)
            cells.append(image(picture_png(outlined(picture, boxes[frame].numpy() * SCALE)), f"frame {frame}"))
        page.add(row(cells))
    page.write(out)


def describe_scene(scene: Scene) -> str:
    """What sounds, in words."""
    return ", ".join(f"{t.kind} {t.pitch:.0f} Hz, {t.tempo:.1f} beats/s" for t in scene.sounding)
