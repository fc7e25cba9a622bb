"""The generated world: determined by (seed, index), and true to the laws that tie sound to picture."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from equiav.data import (
    HUES,
    KINDS,
    PITCHES,
    RADII,
    TEMPI,
    Difficulty,
    Scene,
    Thing,
    World,
    attribute_similarity,
    scenery,
    voices,
)
from equiav.errors import DataError

WORLD = World(seed=3)
EXTREMES = [(RADII[0], HUES[0]), (0.16, 0.4), (RADII[1], HUES[1])]


def alone(kind, radius=0.18, hue=0.3, **how) -> Scene:
    """A scene of the world with its things replaced by one that sounds, on a plain ground, in silence otherwise."""
    scene = WORLD.scene(0)
    thing = Thing(kind, radius, hue, x=0.5, y=0.5, sounding=True, **how)
    plain = replace(scene.background, colour=(0.3, 0.3, 0.3), slope=(0.0, 0.0), texture=0.0, grain=0.0)
    return replace(scene, things=(thing,), background=plain, noise=0.0)


def with_silent_thing() -> Scene:
    return next(s for s in map(WORLD.scene, range(100)) if len(s.sounding) < len(s.things))


def fundamental(waveform, rate=16000) -> float:
    """Centre of the lowest strong partial, in hertz."""
    spectrum = np.abs(np.fft.rfft(waveform.numpy() * np.hanning(len(waveform))))
    hertz = np.fft.rfftfreq(len(waveform), 1 / rate)
    lowest = hertz[spectrum > 0.4 * spectrum.max()][0]
    near = (hertz > 0.8 * lowest) & (hertz < 1.75 * lowest)
    return float((hertz[near] * spectrum[near] ** 2).sum() / (spectrum[near] ** 2).sum())


def beat_rate(waveform, rate=16000) -> float:
    """Strongest period of the loudness between 1 and 10 hertz."""
    step = rate // 200
    loudness = waveform.unfold(0, step, step).square().mean(dim=1).sqrt().numpy()
    spectrum = np.abs(np.fft.rfft((loudness - loudness.mean()) * np.hanning(len(loudness)), n=16384))
    hertz = np.fft.rfftfreq(16384, step / rate)
    slow = (hertz > 1) & (hertz < 10)
    return float(hertz[slow][spectrum[slow].argmax()])


def ranks(similarity):
    """1 + the number strictly greater than the pair, per row."""
    return 1 + (similarity > similarity.diagonal()[:, None]).sum(dim=1)


def test_a_clip_is_a_function_of_seed_and_index():
    forwards = [WORLD.clip(i) for i in range(5)]
    backwards = [World(seed=3).clip(i) for i in reversed(range(5))][::-1]
    for one, two in zip(forwards, backwards, strict=True):
        assert one.name == two.name
        assert torch.equal(one.waveform, two.waveform)
        assert torch.equal(one.frames, two.frames)
    assert WORLD.scene(4) == World(seed=3).scene(4)
    for other in (forwards[1], World(seed=4).clip(0)):
        assert other.name != forwards[0].name
        assert not torch.equal(other.waveform, forwards[0].waveform)
        assert not torch.equal(other.frames, forwards[0].frames)


def test_attributes_do_not_depend_on_resolution():
    large = World(seed=3, size=96, seconds=4.0, frames=4)
    assert large.scene(7) == WORLD.scene(7)
    assert large.pictures(7).shape == (4, 3, 96, 96)
    assert large.waveform(7).shape == (64000,)


def test_shapes_and_ranges():
    for index in range(40):
        clip, scene, boxes = WORLD.clip(index), WORLD.scene(index), WORLD.boxes(index)
        assert clip.waveform.shape == (32000,)
        assert clip.waveform.dtype == torch.float32
        assert 0.01 < clip.waveform.abs().max() <= 1
        assert clip.frames.shape == (10, 3, 48, 48)
        assert clip.frames.dtype == torch.uint8
        assert len(clip.times) == 10
        assert 0 < clip.times[0] < clip.times[-1] < 2
        assert boxes.shape == (10, len(scene.sounding), 4)
        assert boxes.min() >= 0
        assert boxes.max() <= 48
        assert (boxes[..., 2:] - boxes[..., :2]).min() > 2
        assert 1 <= len(scene.sounding) <= 2
        assert len(scene.sounding) <= len(scene.things) <= 3
        assert scene.labels == tuple(sorted({t.kind for t in scene.things if t.sounding}))


def test_the_frames_move():
    frames = WORLD.pictures_of(alone("cross", velocity=(0.08, 0.0), spin=0.3)).float()
    assert (frames[0] - frames[-1]).abs().max() > 50


@pytest.mark.parametrize("kind", KINDS)
def test_boxes_hold_the_thing_and_are_tight(kind):
    scene = alone(kind, angle=0.3, spin=0.3, velocity=(0.06, -0.05))
    bare = WORLD.pictures_of(replace(scene, things=()))
    changed = (WORLD.pictures_of(scene).int() - bare.int()).abs().sum(dim=1) > 60
    for mask, (box,) in zip(changed, WORLD.boxes_of(scene), strict=True):
        rows, columns = mask.any(dim=1).nonzero(), mask.any(dim=0).nonzero()
        found = torch.tensor([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
        torch.testing.assert_close(box, found.float(), atol=1.3, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_no_shape_leaves_the_window_it_is_drawn_in(kind):
    assert np.linalg.norm(scenery.outline(kind), axis=1).max() < scenery.REACH


@pytest.mark.parametrize("kind", KINDS)
def test_size_is_pitch_and_hue_is_rhythm(kind):
    for radius, hue in EXTREMES:
        scene = alone(kind, radius, hue, phase=0.2, beat=0.6)
        sound = WORLD.sound_of(scene)
        assert fundamental(sound) == pytest.approx(scene.things[0].pitch, rel=0.04)
        assert beat_rate(sound) == pytest.approx(scene.things[0].tempo, rel=0.08)


def test_the_laws_reach_from_end_to_end():
    first, _, last = (alone("disc", *pair).things[0] for pair in EXTREMES)
    assert (first.pitch, last.pitch) == pytest.approx(PITCHES)
    assert (first.tempo, last.tempo) == pytest.approx(TEMPI)


@pytest.mark.parametrize("kind", KINDS)
def test_no_partial_is_folded_back(kind):
    """The smallest thing of a kind has nothing below its pitch that a partial beyond Nyquist would leave."""
    thing = alone(kind, RADII[0]).things[0]
    spectrum = np.abs(np.fft.rfft(voices.voice(thing, samples=32000, sample_rate=16000) * np.hanning(32000)))
    below = np.fft.rfftfreq(32000, 1 / 16000) < 0.6 * thing.pitch
    assert spectrum[below].max() < 0.02 * spectrum.max()


def test_timbres_differ():
    tables = {kind: voices.wavetable(kind, 8) for kind in KINDS}
    spectra = np.stack([np.abs(np.fft.rfft(table)) for table in tables.values()])
    spectra /= np.linalg.norm(spectra, axis=1, keepdims=True)
    alike = spectra @ spectra.T
    # The flower trembles besides, which a table does not show.
    pair = KINDS.index("flower"), KINDS.index("triangle")
    alike[pair] = alike[pair[::-1]] = 0
    assert (alike - np.eye(len(KINDS))).max() < 0.95


def test_voices_are_equally_loud():
    for kind in KINDS:
        for radius, hue in EXTREMES:
            tone = voices.voice(alone(kind, radius, hue).things[0], samples=32000, sample_rate=16000)
            assert np.sqrt(np.mean(tone**2)) == pytest.approx(1, rel=0.2)


def test_two_voices_add_up():
    scene = next(s for s in map(WORLD.scene, range(100)) if len(s.sounding) == 2)
    quiet = replace(scene, noise=0.0)
    parts = [WORLD.sound_of(replace(quiet, things=(thing,))) for thing in scene.sounding]
    torch.testing.assert_close(WORLD.sound_of(quiet), parts[0] + parts[1])
    loud = [part.square().mean().sqrt() for part in parts]
    assert 0.5 < loud[0] / loud[1] < 2


def test_silent_things_are_seen_and_not_heard():
    scene = with_silent_thing()
    only = replace(scene, things=scene.sounding)
    assert torch.equal(WORLD.sound_of(scene), WORLD.sound_of(only))
    assert not torch.equal(WORLD.pictures_of(scene), WORLD.pictures_of(only))
    assert torch.equal(WORLD.boxes_of(scene), WORLD.boxes_of(only))


def test_sounding_leaves_no_trace_in_the_picture():
    scene = with_silent_thing()
    swapped = replace(scene, things=tuple(replace(thing, sounding=not thing.sounding) for thing in scene.things))
    assert torch.equal(WORLD.pictures_of(scene), WORLD.pictures_of(swapped))
    assert not torch.equal(WORLD.sound_of(scene), WORLD.sound_of(swapped))


def test_silent_and_sounding_come_from_one_distribution():
    """Among scenes of three things, where one or two are silent: means of all attributes, to four errors."""
    crowded = [scene for scene in map(WORLD.scene, range(2000)) if len(scene.things) == 3]
    groups = [[t for scene in crowded for t in scene.things if t.sounding is sounds] for sounds in (True, False)]

    def attributes(things):
        return np.array(
            [
                [t.relative_size, t.relative_hue, t.x, t.y, t.saturation, t.value, t.angle, t.spin, *t.velocity]
                + [t.kind == kind for kind in KINDS]
                for t in things
            ],
            dtype=float,
        )

    one, two = map(attributes, groups)
    error = np.sqrt(one.var(axis=0) / len(one) + two.var(axis=0) / len(two))
    assert (np.abs(one.mean(axis=0) - two.mean(axis=0)) < 4 * error).all()


def test_things_stay_in_sight_and_rarely_overlap():
    scenes = [WORLD.scene(index) for index in range(1000)]
    inside = [thing for scene in scenes for thing in scene.things]
    assert all(0.85 * t.radius < c < 1 - 0.85 * t.radius for t in inside for c in (t.x, t.y))
    pairs = [(a, b) for scene in scenes for i, a in enumerate(scene.things) for b in scene.things[:i]]
    close = [np.hypot(a.x - b.x, a.y - b.y) < 0.9 * (a.radius + b.radius) for a, b in pairs]
    assert np.mean(close) < 0.02


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_oracle_retrieves_both_ways(seed):
    world = World(seed=seed)
    scenes = [world.scene(index) for index in range(500)]
    similarity = attribute_similarity(scenes, scenes)
    for direction in (similarity, similarity.T):
        assert (ranks(direction) == 1).float().mean() >= 0.95


def test_the_oracle_is_its_definition():
    scenes = [WORLD.scene(index) for index in range(12)]

    def apart(a, b):
        same = (a.relative_size - b.relative_size) ** 2 + (a.relative_hue - b.relative_hue) ** 2
        return same + (a.kind != b.kind)

    slow = [[-np.mean([min(apart(v, t) for t in seen.things) for v in heard.sounding]) for seen in scenes[5:]]
            for heard in scenes]  # fmt: skip
    torch.testing.assert_close(attribute_similarity(scenes, scenes[5:]), torch.tensor(slow, dtype=torch.float32))


def test_difficulty_is_obeyed():
    simple = World(difficulty=Difficulty(kinds=2, max_things=1, max_sounding=1))
    scenes = [simple.scene(index) for index in range(50)]
    assert {len(scene.things) for scene in scenes} == {1}
    assert {kind for scene in scenes for kind in scene.labels} == {"disc", "square"}
    always = Difficulty(another=1.0, duet=1.0)
    assert all(len(World(difficulty=always).scene(i).sounding) == 2 for i in range(20))


def test_refusals():
    with pytest.raises(DataError, match="numbered from 0, got -1"):
        WORLD.scene(-1)
    with pytest.raises(DataError, match="1 to 8 kinds of things, not 9"):
        Difficulty(kinds=9)
    with pytest.raises(DataError, match="4 of at most 3 things cannot sound"):
        Difficulty(max_sounding=4)
    with pytest.raises(DataError, match="must be probabilities"):
        Difficulty(duet=1.5)
    with pytest.raises(DataError, match="positive sizes"):
        World(size=0)
    mute = replace(WORLD.scene(0), things=())
    with pytest.raises(DataError, match="something that sounds"):
        attribute_similarity([mute], [WORLD.scene(0)])
