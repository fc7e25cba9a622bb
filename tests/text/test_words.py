"""Raw text as a tensor: words of bytes, bounded, in any script."""

import pytest
import torch

from equiav.errors import DataError
from equiav.text import TextInput, split_words, written

READ = TextInput(words=8, letters=6)


def seen(text, read=READ):
    return written(read.read(text))


def test_words_are_lower_case_and_marks_are_words():
    assert seen("A Dog,\tbarking!\n") == "a dog , barkin g !"
    assert seen("ﬁre Straße") == "fire strass e"  # one spelling of what is written in several ways


def test_what_is_long_is_cut_between_characters():
    pieces = list(split_words("東京都で犬が吠える", 6))
    assert [piece.decode() for piece in pieces] == ["東京", "都で", "犬が", "吠え", "る"]
    assert max(map(len, split_words("х" * 100, 7))) == 6


@pytest.mark.parametrize(
    "text", ["Привет мир", "कुत्ता", "كلب ينبح", "개가 짖는다", "สุนัขเห่า", "🐕‍🦺 👍🏽", "e\u0301t\u00e9"]
)
def test_other_scripts_have_words(text):
    assert (READ.read(text) != 0).any()
    assert "\ufffd" not in seen(text)


def test_a_hundred_thousand_characters_are_their_first_words():
    assert torch.equal(READ.read("ring " * 20_000), READ.read("ring " * 8))
    assert READ.read("x" * 100_000).shape == (8, 6)


@pytest.mark.parametrize("text", ["", "  \n", "\0\0", "\u200d", "\ud800", "\u0301"])
def test_nothing_to_embed_is_one_line(text):
    with pytest.raises(DataError, match="no words to embed") as error:
        READ.read(text)
    assert "\n" not in str(error.value)


def test_prepared_for_the_encoder():
    raw = torch.stack([READ.read("a dog"), READ.read("rain")])
    x = READ.finish(READ.prepare(raw))
    assert x.shape == (2, 1, 8, 6)
    assert torch.equal(x[:, 0].to(torch.uint8), raw)
    assert not READ.blank(3, raw.device).any()
