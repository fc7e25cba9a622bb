"""From raw text to a tensor: words of bytes in a fixed grid, what augmentations and the encoder act on."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from equiav.errors import DataError
from equiav.types import Modality

TEXT: Modality = "text"
LONGEST = 1 << 16  # characters that are looked at: a query of any length takes a bounded time
Words = UInt8[Tensor, "words letters"]


def split_words(text: str, letters: int) -> Iterator[bytes]:
    """The words of a text as UTF-8, in lower case; each punctuation mark, symbol and emoji is a word of its own.

    Words longer than `letters` bytes, and scripts without spaces, are cut into pieces between two characters.
    Control characters separate; characters that only join or decorate others are left out at the start of a word.
    """
    word = b""
    for character in unicodedata.normalize("NFKC", text[:LONGEST]).casefold():
        kind = unicodedata.category(character)
        if kind in ("Cf", "Cs", "Co", "Cn") or (kind[0] == "M" and not word):
            continue
        content = character.encode()
        if word and (kind[0] not in "LMN" or len(word) + len(content) > letters):
            yield word
            word = b""
        if kind[0] in "LMN":
            word += content
        elif kind[0] in "PS":
            yield content
    if word:
        yield word


@dataclass(frozen=True)
class TextInput:
    """Text as the first `words` words of at most `letters` bytes each; 0 stands behind the end of a word and of a text.

    A text is (words, letters) in uint8 in a sample, (N, 1, words, letters) for augmentations and the encoder.
    """

    words: int = 32
    letters: int = 12

    def read(self, text: str) -> Words:
        """The tensor of one text; what lies behind its first words is not looked at."""
        grid = torch.zeros(self.words, self.letters, dtype=torch.uint8)
        found = 0
        for word in split_words(text, self.letters):
            if found == self.words:
                break
            grid[found, : len(word)] = torch.frombuffer(bytearray(word), dtype=torch.uint8)
            found += 1
        if not found:
            shown = repr(text[:20]) if text.strip() else "an empty text"
            raise DataError(f"{shown} has no words to embed; write what you look for")
        return grid

    def prepare(self, raw: UInt8[Tensor, "n words letters"], lengths: Tensor | None = None) -> Float[Tensor, "n 1 w l"]:
        """Bytes as floats, which hold them exactly: batches of one channel."""
        return raw[:, None].float()

    def finish(self, x: Float[Tensor, "n 1 w l"]) -> Float[Tensor, "n 1 w l"]:
        """The same."""
        return x

    def blank(self, count: int, device: torch.device) -> UInt8[Tensor, "n words letters"]:
        """Texts without words: the rows of clips that have none."""
        return torch.zeros(count, self.words, self.letters, dtype=torch.uint8, device=device)


def written(x: Float[Tensor, "1 w l"] | Words) -> str:
    """A text as the encoder sees it, for people: words with a space between."""
    rows = x.reshape(-1, x.shape[-1]).to(torch.uint8).tolist()
    words = [bytes(byte for byte in row if byte).decode("utf-8", "replace") for row in rows]
    return " ".join(word for word in words if word)
