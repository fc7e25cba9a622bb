"""The questions of every augmentation, asked of those of text: on, off, replay, rows, slots."""

import dataclasses

import pytest
import torch

from equiav.augment import Draw
from equiav.text import TextInput, text_pipeline, word_mask, written

PIPELINE, READ, N = text_pipeline(), TextInput(words=16, letters=10), 32
SENTENCE = "a small red ring and a large blue square near the open window"


def inputs(n=N):
    """Sentences of 2 to 13 different words."""
    words = SENTENCE.split()
    return READ.prepare(torch.stack([READ.read(" ".join(words[i % 3 : i % 3 + 2 + i % 10])) for i in range(n)]))


def applied(name, values, text=SENTENCE):
    x = READ.prepare(READ.read(text)[None])
    return written(PIPELINE.parts[name].apply(x, Draw(torch.tensor([True]), torch.tensor([values])))[0])


@pytest.mark.parametrize("name", PIPELINE.parts)
class TestEach:
    def part(self, name, **changes):
        return dataclasses.replace(PIPELINE.parts[name], **changes)

    def test_on_means_changed(self, name, rng):
        part, x = self.part(name, p=1.0), inputs()
        before, draw = x.clone(), part.sample(N, rng)
        assert (part.encode(draw)[:, 0] == 1).all()
        out = part.apply(x, draw)
        assert out.shape == x.shape
        assert torch.equal(x, before), "the input was changed in place"
        assert (out != x).flatten(1).any(dim=1).float().mean() > 0.9

    def test_off_means_identity_and_default(self, name, rng):
        part, x = self.part(name, p=0.0), inputs()
        draw = part.sample(N, rng)
        assert torch.equal(part.apply(x, draw), x)
        assert torch.equal(part.encode(draw), torch.zeros(N, len(part.slots)))

    def test_replay(self, name, rng):
        part, x = PIPELINE.parts[name], inputs()
        draw = part.sample(N, rng)
        assert torch.equal(part.apply(x, draw), part.apply(x, draw))
        one, two = (part.sample(N, torch.Generator().manual_seed(3)) for _ in range(2))
        assert torch.equal(one.values, two.values)
        assert torch.equal(one.on, two.on)

    def test_batch_equals_one_by_one(self, name, rng):
        part, x = PIPELINE.parts[name], inputs()
        draw = part.sample(N, rng)
        alone = torch.cat([part.apply(x[i : i + 1], draw.rows(i, i + 1)) for i in range(N)])
        assert torch.equal(part.apply(x, draw), alone)

    def test_every_parameter_moves_its_slot_and_the_output(self, name, rng):
        part, x = self.part(name, p=1.0), READ.prepare(READ.read(SENTENCE)[None]).repeat(N, 1, 1, 1)
        draw = part.sample(N, rng)
        code = part.encode(draw)
        assert (code >= 0).all()
        assert (code <= 1).all()
        for column in range(1, len(part.slots)):
            values = draw.values.clone()
            values[:, column - 1] = values[:, column - 1].roll(1)
            moved = part.encode(Draw(draw.on, values)) != code
            assert moved[:, column].any()
            assert not moved[:, [c for c in range(len(part.slots)) if c != column]].any()
            assert not torch.equal(part.apply(x, Draw(draw.on, values)), part.apply(x, draw)), part.slots[column]

    def test_what_is_left_are_words_at_the_front(self, name, rng):
        """Nothing invented, nothing lost that the part does not speak of; at least one word stays."""
        part, x = self.part(name, p=1.0), inputs()
        out = part.apply(x, part.sample(N, rng))
        there = word_mask(out)
        assert there.any(dim=1).all()
        assert (there.long().diff(dim=1) <= 0).all(), "a gap between words"
        for before, after in zip(x, out, strict=True):
            old, new = (sorted("".join(sorted(word)) for word in written(t).split()) for t in (before, after))
            assert set(new) <= set(old)
            assert name in ("crop", "drop") or new == old

    @pytest.mark.parametrize("text", ["ring", "指輪", "🐕"])
    def test_one_word_is_never_lost(self, name, text, rng):
        part, x = self.part(name, p=1.0), READ.prepare(READ.read(text)[None])
        left = written(part.apply(x, part.sample(1, rng))[0])
        assert sorted(left) == sorted(text)
        assert name == "spell" or left == text

    def test_blank_rows_stay_blank(self, name, rng):
        part, x = self.part(name, p=1.0), READ.prepare(READ.blank(4, torch.device("cpu")))
        assert torch.equal(part.apply(x, part.sample(4, rng)), x)


def test_slots_by_name(rng):
    assert PIPELINE.slots == (
        "crop.on", "crop.start", "crop.length", "drop.on", "drop.share", "drop.phase", "swap.on", "swap.first",
        "swap.second", "spell.on", "spell.share", "spell.phase", "spell.place",
    )  # fmt: skip
    t = PIPELINE.vectors(4000, 1, rng)[:, 0]
    for name, chance in {"crop": 0.5, "drop": 0.5, "swap": 0.3, "spell": 0.3}.items():
        assert abs(float(t[:, PIPELINE.slot(f"{name}.on")].mean()) - chance) < 0.03


def test_what_they_do():
    assert applied("crop", [0.25, 0.5], "one two three four five six") == "two three four"
    assert applied("swap", [0.0, 0.9], "one two three") == "three two one"
    assert applied("swap", [0.4, 0.5], "one two three") == "one three two"  # the same word: neighbours
    assert applied("drop", [0.1, 0.0], "one two three") == "two three"
    assert applied("spell", [0.1, 0.0, 0.0], "ring two") == "irng two"
    assert applied("spell", [0.1, 0.0, 0.99], "ring two") == "rign two"


def test_about_a_share_is_dropped():
    for share in (0.1, 0.2, 0.4):
        left = applied("drop", [share, 0.3], "a b c d e f g h i j")
        assert abs(len(left.split()) - (10 - 10 * share)) <= 1


def test_rows_are_the_rows_of_the_whole(rng):
    x, draws = inputs(), PIPELINE.sample(N, rng)
    whole = PIPELINE.apply(x, draws)
    assert torch.equal(PIPELINE.apply(x[8:20], draws.rows(8, 20)), whole[8:20])
    assert torch.equal(PIPELINE.encode(draws.rows(8, 20)), PIPELINE.encode(draws)[8:20])
