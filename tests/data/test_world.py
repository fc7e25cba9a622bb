"""The generated world: determined by (seed, index), and true to the laws that tie sound to picture."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from equiav.data.synthetic import (
    HUES,
    KINDS,
    PITCHES,
    RADII,
    TEMPI,
    Difficulty,
    Scene,
    SceneObject,
    World,
    drawing,
    sounds,
)
from equiav.errors import DataError

WORLD = World(seed=3)
EXTREMES = [(RADII[0], HUES[0]), (0.16, 0.4), (RADII[1], HUES[1])]


def alone(kind, radius=0.18, hue=0.3, **how) -> Scene:
    """A scene of the world with its objects replaced by one that sounds, on a plain ground, in silence otherwise."""
    scene = WORLD.scene(0)
    item = SceneObject(kind, radius, hue, x=0.5, y=0.5, sounding=True, **how)
    plain = {"colour": (0.3, 0.3, 0.3), "slope": (0.0, 0.0), "texture": 0.0, "grain": 0.0}
    return replace(scene, objects=(item,), noise=0.0, **plain)


def with_silent_object() -> Scene:
    return next(s for s in map(WORLD.scene, range(100)) if len(s.sounding) < len(s.objects))


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
    forwards = [(WORLD.waveform(i), WORLD.video(i)) for i in range(5)]
    again = World(seed=3)
    backwards = [(again.waveform(i), again.video(i)) for i in reversed(range(5))][::-1]
    for one, two in zip(forwards, backwards, strict=True):
        assert torch.equal(one[0], two[0])
        assert torch.equal(one[1], two[1])
    assert WORLD.scene(4) == again.scene(4)
    for waveform, video in (forwards[1], (World(seed=4).waveform(0), World(seed=4).video(0))):
        assert not torch.equal(waveform, forwards[0][0])
        assert not torch.equal(video, forwards[0][1])


def test_attributes_do_not_depend_on_resolution():
    large = World(seed=3, size=96, seconds=4.0, frames=4)
    assert large.scene(7) == WORLD.scene(7)
    assert large.video(7).shape == (4, 3, 96, 96)
    assert large.waveform(7).shape == (64000,)


def test_shapes_and_ranges():
    for index in range(40):
        waveform, video, scene, boxes = (f(index) for f in (WORLD.waveform, WORLD.video, WORLD.scene, WORLD.boxes))
        assert waveform.shape == (32000,)
        assert waveform.dtype == torch.float32
        assert 0.01 < waveform.abs().max() <= 1
        assert video.shape == (10, 3, 48, 48)
        assert video.dtype == torch.uint8
        assert boxes.shape == (10, len(scene.sounding), 4)
        assert boxes.min() >= 0
        assert boxes.max() <= 48
        assert (boxes[..., 2:] - boxes[..., :2]).min() > 2
        assert 1 <= len(scene.sounding) <= 2
        assert len(scene.sounding) <= len(scene.objects) <= 3
        assert scene.labels == tuple(sorted({t.kind for t in scene.objects if t.sounding}))


def test_the_frames_move():
    frames = WORLD.video(alone("cross", velocity=(0.08, 0.0), spin=0.3)).float()
    assert (frames[0] - frames[-1]).abs().max() > 50


@pytest.mark.parametrize("kind", KINDS)
def test_boxes_hold_the_thing_and_are_tight(kind):
    scene = alone(kind, angle=0.3, spin=0.3, velocity=(0.06, -0.05))
    bare = WORLD.video(replace(scene, objects=()))
    changed = (WORLD.video(scene).int() - bare.int()).abs().sum(dim=1) > 60
    for mask, (box,) in zip(changed, WORLD.boxes(scene), strict=True):
        rows, columns = mask.any(dim=1).nonzero(), mask.any(dim=0).nonzero()
        found = torch.tensor([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
        torch.testing.assert_close(box, found.float(), atol=1.3, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_no_shape_leaves_the_window_it_is_drawn_in(kind):
    assert np.linalg.norm(drawing.outline(kind), axis=1).max() < drawing.REACH


@pytest.mark.parametrize("kind", KINDS)
def test_size_is_pitch_and_hue_is_rhythm(kind):
    for radius, hue in EXTREMES:
        scene = alone(kind, radius, hue, phase=0.2, beat=0.6)
        sound = WORLD.waveform(scene)
        assert fundamental(sound) == pytest.approx(scene.objects[0].pitch, rel=0.04)
        assert beat_rate(sound) == pytest.approx(scene.objects[0].tempo, rel=0.08)


def test_the_laws_reach_from_end_to_end():
    first, _, last = (alone("disc", *pair).objects[0] for pair in EXTREMES)
    assert (first.pitch, last.pitch) == pytest.approx(PITCHES)
    assert (first.tempo, last.tempo) == pytest.approx(TEMPI)


@pytest.mark.parametrize("kind", KINDS)
def test_no_partial_is_folded_back(kind):
    """The smallest item of a kind has nothing below its pitch that a partial beyond Nyquist would leave."""
    item = alone(kind, RADII[0]).objects[0]
    spectrum = np.abs(np.fft.rfft(sounds.voice(item, samples=32000, sample_rate=16000) * np.hanning(32000)))
    below = np.fft.rfftfreq(32000, 1 / 16000) < 0.6 * item.pitch
    assert spectrum[below].max() < 0.02 * spectrum.max()


def test_timbres_differ():
    tables = {kind: sounds.wavetable(kind, 8) for kind in KINDS}
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
            tone = sounds.voice(alone(kind, radius, hue).objects[0], samples=32000, sample_rate=16000)
            assert np.sqrt(np.mean(tone**2)) == pytest.approx(1, rel=0.2)


def test_two_voices_add_up():
    scene = next(s for s in map(WORLD.scene, range(100)) if len(s.sounding) == 2)
    quiet = replace(scene, noise=0.0)
    parts = [WORLD.waveform(replace(quiet, objects=(item,))) for item in scene.sounding]
    torch.testing.assert_close(WORLD.waveform(quiet), parts[0] + parts[1])
    loud = [part.square().mean().sqrt() for part in parts]
    assert 0.5 < loud[0] / loud[1] < 2


def test_silent_things_are_seen_and_not_heard():
    scene = with_silent_object()
    only = replace(scene, objects=scene.sounding)
    assert torch.equal(WORLD.waveform(scene), WORLD.waveform(only))
    assert not torch.equal(WORLD.video(scene), WORLD.video(only))
    assert torch.equal(WORLD.boxes(scene), WORLD.boxes(only))


def test_sounding_leaves_no_trace_in_the_picture():
    scene = with_silent_object()
    swapped = replace(scene, objects=tuple(replace(item, sounding=not item.sounding) for item in scene.objects))
    assert torch.equal(WORLD.video(scene), WORLD.video(swapped))
    assert not torch.equal(WORLD.waveform(scene), WORLD.waveform(swapped))


def test_silent_and_sounding_come_from_one_distribution():
    """Among scenes of three objects, where one or two are silent: means of all attributes, to four errors."""
    crowded = [scene for scene in map(WORLD.scene, range(2000)) if len(scene.objects) == 3]
    groups = [[t for scene in crowded for t in scene.objects if t.sounding is sounds] for sounds in (True, False)]

    def attributes(objects):
        return np.array(
            [
                [t.relative_size, t.relative_hue, t.x, t.y, t.saturation, t.value, t.angle, t.spin, *t.velocity]
                + [t.kind == kind for kind in KINDS]
                for t in objects
            ],
            dtype=float,
        )

    one, two = map(attributes, groups)
    error = np.sqrt(one.var(axis=0) / len(one) + two.var(axis=0) / len(two))
    assert (np.abs(one.mean(axis=0) - two.mean(axis=0)) < 4 * error).all()


def test_things_stay_in_sight_and_rarely_overlap():
    scenes = [WORLD.scene(index) for index in range(1000)]
    inside = [item for scene in scenes for item in scene.objects]
    assert all(0.85 * t.radius < c < 1 - 0.85 * t.radius for t in inside for c in (t.x, t.y))
    pairs = [(a, b) for scene in scenes for i, a in enumerate(scene.objects) for b in scene.objects[:i]]
    close = [np.hypot(a.x - b.x, a.y - b.y) < 0.9 * (a.radius + b.radius) for a, b in pairs]
    assert np.mean(close) < 0.02


def attribute_similarity(scenes):
    """How well what is heard in scene i fits the objects seen in scene j, silent or not.

    Every voice looks for the visible object nearest to it in kind, size and hue (each from 0 to 1); minus the squared
    distance, averaged over the voices.
    """
    rows = [(j, KINDS.index(t.kind), t.relative_size, t.relative_hue) for j, s in enumerate(scenes) for t in s.objects]
    owner, seen = (part.T for part in np.split(np.array(rows).T, [1]))
    out = np.zeros((len(scenes), len(scenes)))
    for i, scene in enumerate(scenes):
        for voice in scene.sounding:
            apart = (seen[:, 1] - voice.relative_size) ** 2 + (seen[:, 2] - voice.relative_hue) ** 2
            apart += seen[:, 0] != KINDS.index(voice.kind)
            nearest = np.full(len(scenes), np.inf)
            np.minimum.at(nearest, owner[:, 0].astype(int), apart)
            out[i] -= nearest / len(scene.sounding)
    return torch.from_numpy(out)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_oracle_retrieves_both_ways(seed):
    world = World(seed=seed)
    scenes = [world.scene(index) for index in range(500)]
    similarity = attribute_similarity(scenes)
    for direction in (similarity, similarity.T):
        assert (ranks(direction) == 1).float().mean() >= 0.95


def test_difficulty_is_obeyed():
    simple = World(difficulty=Difficulty(kinds=2, max_objects=1, max_sounding=1))
    scenes = [simple.scene(index) for index in range(50)]
    assert {len(scene.objects) for scene in scenes} == {1}
    assert {kind for scene in scenes for kind in scene.labels} == {"disc", "square"}
    always = Difficulty(another=1.0, duet=1.0)
    assert all(len(World(difficulty=always).scene(i).sounding) == 2 for i in range(20))


def test_refusals():
    with pytest.raises(DataError, match="numbered from 0, got -1"):
        WORLD.scene(-1)
    with pytest.raises(DataError, match="1 to 8 kinds of objects, not 9"):
        Difficulty(kinds=9)
    with pytest.raises(DataError, match="4 of at most 3 objects cannot sound"):
        Difficulty(max_sounding=4)
    with pytest.raises(DataError, match="must be probabilities"):
        Difficulty(duet=1.5)
    with pytest.raises(DataError, match="positive sizes"):
        World(size=0)


def test_mismatched_clips_have_the_audio_of_another_scene():
    """A share of the training clips only, decided by the seed; the same clips whatever else changes."""
    from equiav.build import build_dataset
    from equiav.config import parse_config

    def split(name, share, **more):
        data = {"kind": "world", "count": 400, "validation": 20, "test": 20, "mismatched": share, **more}
        return build_dataset(parse_config({"data": data, "visual": {"size": 16}}, "test"), name)

    clean, noisy = split("train", 0.0), split("train", 0.3)
    other = [i for i in range(400) if noisy.clip(i).metadata.get("mismatched")]
    assert 0.22 < len(other) / 400 < 0.38
    for i in (*other[:3], *(i for i in range(6) if i not in other)):
        (a, frames), (b, same) = clean.media(i), noisy.media(i)
        assert torch.equal(frames, same)
        assert torch.equal(a, b) == (i not in other)
        assert clean.clip(i).labels == noisy.clip(i).labels
        assert (len(noisy.boxes(i, 0)) == 0) == (i in other)
    heard = [noisy.heard(i) for i in other]
    assert len(set(heard)) == len(other)
    assert min(heard) >= 440, "of no scene of any split"
    again = split("train", 0.3, used=100)
    assert [i for i in range(100) if again.clip(i).metadata.get("mismatched")] == [i for i in other if i < 100]
    fewer = split("train", 0.1)
    assert {i for i in range(400) if fewer.clip(i).metadata.get("mismatched")} < set(other)
    assert {i for i in range(400) if split("train", 0.3, seed=1).clip(i).metadata.get("mismatched")} != set(other)
    for name in ("validation", "test"):
        held = split(name, 0.3)
        assert not any(held.clip(i).metadata.get("mismatched") for i in range(20))
        assert torch.equal(held.media(0)[0], split(name, 0.0).media(0)[0])
