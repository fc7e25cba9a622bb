"""The same questions to every augmentation: on means changed, off means identity, a draw can be replayed."""

import dataclasses

import pytest
import torch

from equiav.augment import Draw, ReleasedVectors, TimeShift, audio_pipeline, visual_pipeline
from equiav.randomness import generator

PIPELINES = {"audio": audio_pipeline(), "visual": visual_pipeline()}
PARTS = [(m, name) for m, p in PIPELINES.items() for name in p.parts]
IDS = [f"{m}-{name}" for m, name in PARTS]
N = 32


def inputs(modality, rng, n=N):
    if modality == "audio":
        return torch.randn(n, 1, 64, 32, generator=rng)
    return torch.rand(n, 3, 32, 32, generator=rng)


@pytest.mark.parametrize(("modality", "name"), PARTS, ids=IDS)
class TestEach:
    def part(self, modality, name, **changes):
        return dataclasses.replace(PIPELINES[modality].parts[name], **changes)

    def test_on_means_changed(self, modality, name, rng):
        part, x = self.part(modality, name, p=1.0), inputs(modality, rng)
        before = x.clone()
        draw = part.sample(N, rng)
        assert (part.encode(draw)[:, 0] == 1).all()
        out = part.apply(x, draw)
        assert out.shape == x.shape
        assert torch.equal(x, before), "the input was changed in place"
        assert (out != x).flatten(1).any(dim=1).float().mean() > 0.9

    def test_off_means_identity_and_default(self, modality, name, rng):
        part, x = self.part(modality, name, p=0.0), inputs(modality, rng)
        draw = part.sample(N, rng)
        assert torch.equal(part.apply(x, draw), x)
        default = torch.zeros(N, len(part.slots))
        if name == "jitter":
            default[:, 1:5] = torch.arange(4) / 3
        torch.testing.assert_close(part.encode(draw), default)

    def test_replay(self, modality, name, rng):
        part, x = PIPELINES[modality].parts[name], inputs(modality, rng)
        draw = part.sample(N, rng)
        assert torch.equal(part.apply(x, draw), part.apply(x, draw))
        again = part.sample(N, torch.Generator().manual_seed(3))
        same = part.sample(N, torch.Generator().manual_seed(3))
        assert torch.equal(again.values, same.values)
        assert torch.equal(again.on, same.on)

    def test_batch_equals_one_by_one(self, modality, name, rng):
        part, x = PIPELINES[modality].parts[name], inputs(modality, rng)
        draw = part.sample(N, rng)
        alone = torch.cat([part.apply(x[i : i + 1], draw.rows(i, i + 1)) for i in range(N)])
        torch.testing.assert_close(part.apply(x, draw), alone, rtol=0, atol=1e-6)

    def test_every_parameter_moves_its_slot_and_the_output(self, modality, name, rng):
        """Swap one parameter between samples: exactly its slots follow, and so does the result."""
        part, x = self.part(modality, name, p=1.0), inputs(modality, rng)
        x = x[:1].expand_as(x).contiguous()  # one input: only the draw can make a difference
        draw = part.sample(N, rng)
        constant = {"order_2", "order_3", "saturation", "hue"} if (modality, name) == ("audio", "jitter") else set()
        code = part.encode(draw)
        for column, slot in enumerate(part.slots):
            if slot == "on":
                continue
            if slot in constant:
                assert len(code[:, column].unique()) == 1
                continue
            assert len(code[:, column].unique()) > 1, f"{slot} never changes"
            if slot.startswith("order"):
                continue  # a permutation cannot change in one place: see test_order_matters
            values = draw.values.clone()
            values[:, column - 1] = values[:, column - 1].roll(1)
            swapped = Draw(draw.on, values)
            moved = part.encode(swapped) != code
            assert moved[:, column].any()
            assert not moved[:, [c for c in range(len(part.slots)) if c != column]].any()
            assert not torch.equal(part.apply(x, swapped), part.apply(x, draw)), f"{slot} has no effect"


def test_order_matters(rng):
    part = dataclasses.replace(PIPELINES["visual"].parts["jitter"], p=1.0)
    x = inputs("visual", rng)
    draw = part.sample(N, rng)
    assert sorted(draw.values[0, :4].tolist()) == [0, 1, 2, 3]
    assert len({tuple(row) for row in draw.values[:, :4].tolist()}) > 8
    values = draw.values.clone()
    values[:, :4] = values[:, :4].flip(1)
    assert not torch.equal(part.apply(x, Draw(draw.on, values)), part.apply(x, draw))


def test_audio_order_is_of_two(rng):
    part = dataclasses.replace(PIPELINES["audio"].parts["jitter"], p=1.0)
    orders = {tuple(row) for row in part.sample(64, rng).values[:, :4].tolist()}
    assert orders == {(0, 1, 2, 3), (1, 0, 2, 3)}


@pytest.mark.parametrize(("modality", "width"), [("audio", 24), ("visual", 18)])
def test_layout(modality, width, rng):
    p = PIPELINES[modality]
    assert len(p.slots) == width == p.vectors(3, 5, rng).shape[2]
    t = p.vectors(4000, 1, rng)[:, 0]
    assert t.min() >= -0.51
    assert t.max() <= 1.0
    coins = {"specaugment": 0.8, "shift": 0.8, "crop": 1.0, "jitter": 0.8, "blur": 0.5, "flip": 0.5, "grey": 0.2}
    flags = {name: t[:, p.slot(f"{name}.on")] for name in p.parts}
    for name, flag in flags.items():
        assert abs(float(flag.mean()) - coins[name]) < 0.03, name
    if modality == "audio":  # each has its own coin
        both = float((flags["shift"] * flags["specaugment"]).mean())
        assert abs(both - 0.64) < 0.03


@pytest.mark.parametrize(("modality", "name"), PARTS, ids=IDS)
def test_parts_left_out_touch_neither_input_nor_vector(modality, name, rng):
    make = {"audio": audio_pipeline, "visual": visual_pipeline}[modality]
    pipeline, x = make(off=(name,)), inputs(modality, rng)
    assert pipeline.slots == PIPELINES[modality].slots
    draws = pipeline.sample(N, rng)
    assert torch.equal(pipeline.parts[name].apply(x, draws[name]), x)
    columns = [i for i, slot in enumerate(pipeline.slots) if slot.startswith(f"{name}.")]
    vectors = pipeline.encode(draws)
    assert (vectors[:, columns] == vectors[0, columns]).all()
    assert (vectors[:, columns[0]] == 0).all()
    others = make(off=[other for other in pipeline.parts if other != name])
    assert (others.encode(others.sample(N, rng))[:, columns] != vectors[0, columns]).any()


def test_audio_slots_are_where_the_layout_says():
    p = PIPELINES["audio"]
    order = ["specaugment.on", "specaugment.time_start", "specaugment.time_end", "specaugment.frequency_start",
             "specaugment.frequency_end", "shift.on", "shift.shift", "crop.on", "crop.x", "crop.y", "crop.w", "crop.h",
             "jitter.on", "jitter.order_0", "jitter.order_1", "jitter.order_2", "jitter.order_3", "jitter.brightness",
             "jitter.contrast", "jitter.saturation", "jitter.hue", "blur.on", "blur.sigma", "flip.on"]  # fmt: skip
    assert list(p.slots) == order
    assert list(p.parts) == ["shift", "specaugment", "crop", "jitter", "blur", "flip"]


def test_axes_of_sound(rng):
    """Flip and shift act along time, crop's x and w too."""
    p = PIPELINES["audio"]
    x = torch.arange(64.0)[None, None, :, None].expand(1, 1, 64, 32).contiguous()  # value = time
    on = torch.ones(1, dtype=torch.bool)
    assert torch.equal(p.parts["flip"].apply(x, Draw(on, torch.empty(1, 0)))[0, 0, :, 0], x[0, 0, :, 0].flip(0))
    later = p.parts["shift"].apply(x, Draw(on, torch.tensor([[0.25]])))
    assert torch.equal(later[0, 0, :, 0], x[0, 0, :, 0].roll(16))
    half = p.parts["crop"].apply(x, Draw(on, torch.tensor([[0.5, 0.0, 0.5, 1.0]])))
    assert half.min() >= 32
    masked = p.parts["specaugment"].apply(x + 1, Draw(on, torch.tensor([[0.25, 0.5, 0.0, 0.125]])))
    assert (masked[0, 0, 16:32] == 0).all()
    assert (masked[0, 0, :, :4] == 0).all()
    assert (masked[0, 0, :16, 4:] != 0).all()


def test_crops_of_spectrograms_have_the_released_shapes(rng):
    """The released code draws frequency over time; ours is time over frequency, each a fraction of its axis."""
    released = ReleasedVectors("audio")
    t = released.vectors(4000, 1, rng)[:, 0]
    # Height is time and width is frequency; their divisors are swapped in the released vector.
    time = t[:, released.slots.index("crop.height")] * released.bins / released.frames
    frequency = t[:, released.slots.index("crop.width")] * released.frames / released.bins
    ours = PIPELINES["audio"].vectors(4000, 1, rng)[:, 0]
    w, h = (ours[:, PIPELINES["audio"].slot(f"crop.{s}")] for s in "wh")
    large = (time * frequency) > 0.2  # whole bins blur the ratio of small crops
    expected = (time / frequency)[large].quantile(torch.tensor([0.02, 0.5, 0.98]))
    torch.testing.assert_close((w / h).quantile(torch.tensor([0.02, 0.5, 0.98])), expected, rtol=0.03, atol=0)


def test_time_shift_is_circular_and_reaches_every_rotation_once(rng):
    """Half a turn either way: nothing is lost, and two shifts never give the same spectrogram."""
    x = torch.arange(64.0)[None, None, :, None].expand(64, 1, 64, 2).contiguous()
    shifts = torch.arange(-32, 32)[:, None] / 64
    turned = TimeShift().apply(x, Draw(torch.ones(64, dtype=torch.bool), shifts))[:, 0, :, 0]
    assert len({tuple(row.tolist()) for row in turned}) == 64
    for row, steps in zip(turned, range(-32, 32), strict=True):
        assert torch.equal(row, x[0, 0, :, 0].roll(steps))


def test_jitter_of_pictures_stays_in_range(rng):
    p = PIPELINES["visual"]
    x = torch.rand(64, 3, 16, 16, generator=rng)
    out = p.apply(x, p.sample(64, rng))
    assert out.min() >= -1e-6
    assert out.max() <= 1 + 1e-6


@pytest.mark.parametrize("modality", ["audio", "visual"])
def test_rows_are_the_rows_of_the_whole(modality, rng):
    """What a rank or micro-batch takes of the global draw is what the whole batch would have got."""
    p, x = PIPELINES[modality], inputs(modality, rng)
    draws = p.sample(N, rng)
    whole = p.apply(x, draws)
    torch.testing.assert_close(p.apply(x[8:20], draws.rows(8, 20)), whole[8:20], rtol=0, atol=1e-6)
    assert torch.equal(p.encode(draws.rows(8, 20)), p.encode(draws)[8:20])


def test_ranges_are_the_stated_ones(rng):
    """Each parameter fills its range and stays inside."""
    a, v = (PIPELINES[m].vectors(4000, 1, rng)[:, 0] for m in ("audio", "visual"))

    def column(t, modality, slot, on):
        p = PIPELINES[modality]
        return t[t[:, p.slot(on)] == 1, p.slot(slot)]

    time = column(a, "audio", "specaugment.time_end", "specaugment.on")
    time = time - column(a, "audio", "specaugment.time_start", "specaugment.on")
    assert 0.18 < time.max() <= 192 / 1024
    band = column(a, "audio", "specaugment.frequency_end", "specaugment.on")
    band = band - column(a, "audio", "specaugment.frequency_start", "specaugment.on")
    assert 0.36 < band.max() <= 48 / 128
    shift = column(a, "audio", "shift.shift", "shift.on")
    assert -0.5 <= shift.min() < -0.49
    assert 0.49 < shift.max() < 0.5
    for t, modality, low, high in ((a, "audio", 0.667, 1.25), (v, "visual", 3 / 4, 4 / 3)):
        w, h = (column(t, modality, f"crop.{s}", "crop.on") for s in "wh")
        assert (w * h).min() > 0.079
        assert low - 1e-4 < (w / h).min() < low + 0.01
        assert high - 0.01 < (w / h).max() < high + 1e-4
        for at, size in (("x", w), ("y", h)):
            assert (column(t, modality, f"crop.{at}", "crop.on") + size).max() <= 1 + 1e-6
        sigma = 2 * column(t, modality, "blur.sigma", "blur.on")
        assert 0.1 <= sigma.min() < 0.15 < 1.95 < sigma.max() <= 2.0
        for slot, strength in (("brightness", 0.4), ("contrast", 0.4)):
            change = column(t, modality, f"jitter.{slot}", "jitter.on")
            assert 0.38 < change.abs().max() <= strength
    assert 0.09 < column(v, "visual", "jitter.hue", "jitter.on").abs().max() <= 0.1


@pytest.mark.parametrize("modality", ["audio", "visual"])
def test_crop_is_cutting_and_stretching(modality, rng):
    """x, y, w, h each where they belong: compared with slicing and interpolation."""
    x = inputs(modality, rng, 1)
    draw = Draw(torch.ones(1, dtype=torch.bool), torch.tensor([[0.25, 0.5, 0.5, 0.125]]))
    along_x, along_y = (2, 3) if modality == "audio" else (3, 2)
    cut = x.narrow(along_x, x.shape[along_x] // 4, x.shape[along_x] // 2)
    cut = cut.narrow(along_y, x.shape[along_y] // 2, x.shape[along_y] // 8)
    expected = torch.nn.functional.interpolate(cut, size=x.shape[2:], mode="bilinear")
    torch.testing.assert_close(PIPELINES[modality].parts["crop"].apply(x, draw), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("pipeline", "shape"), [(audio_pipeline(), (1, 144, 64)), (visual_pipeline(), (3, 48, 48))])
def test_a_part_of_a_batch_is_augmented_as_in_the_whole(pipeline, shape):
    """Bit for bit: ranks and micro-batches take parts."""
    x = torch.rand(8, *shape, generator=generator(0, 0, "x"))
    for step in range(20):
        draws = pipeline.sample(8, generator(0, step, "t"))
        parts = [pipeline.apply(x[i : i + 3], draws.rows(i, min(i + 3, 8))) for i in range(0, 8, 3)]
        assert torch.equal(torch.cat(parts), pipeline.apply(x, draws))
