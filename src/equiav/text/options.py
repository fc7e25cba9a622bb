"""The options of the text modality in a recipe: `modalities: {text: {kind: text, options: {...}}}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from equiav.config import Section, refusal
from equiav.text.captions import TEMPLATES

Chance = Annotated[float, Field(ge=0, le=1)]
Origin = Literal["manifest", "sidecar", "labels"]
MOST_BYTES = 65_536  # of one text as a tensor


class TextOptions(Section):
    """How text is read, where it comes from, and its encoder.

    The first `words` words of at most `letters` bytes count. Without `width`, `depth` and `heads` the encoder has the
    size of `model.encoder`. `crop`, `drop`, `swap` and `spell` are the chances of the augmentations.

    Clips take their text from the first of `origins` that has one: `manifest`, the column `text` of the `table`
    (.csv or .jsonl, as given to `equiav prepare`); `sidecar`, a .txt, .vtt or .srt file beside the media; `labels`,
    their class names in `templates`. The generated world describes its scenes, a collection paired by class has its
    labels. `share` is that of the training clips that keep their text, by lot.
    """

    words: Annotated[int, Field(gt=0, le=1024)] = 32
    letters: Annotated[int, Field(ge=4, le=64)] = 12
    byte_width: Annotated[int, Field(gt=0, le=256)] = 16
    width: Annotated[int, Field(gt=0, le=8192)] | None = None
    depth: Annotated[int, Field(gt=0, le=256)] | None = None
    heads: Annotated[int, Field(gt=0, le=1024)] | None = None
    crop: Chance = 0.5
    drop: Chance = 0.5
    swap: Chance = 0.3
    spell: Chance = 0.3
    origins: tuple[Origin, ...] = ("manifest", "sidecar")
    table: str | None = None
    templates: tuple[str, ...] = TEMPLATES
    share: Chance = 1.0

    @model_validator(mode="after")
    def _possible(self) -> TextOptions:
        size = (self.width, self.depth, self.heads)
        if None in size and any(value is not None for value in size):
            raise ValueError("give all of width, depth and heads, or none of them")
        if self.width is not None and self.heads is not None and (self.width % self.heads or self.width % 4):
            raise ValueError(f"width {self.width} must be a multiple of 4 and of heads {self.heads}")
        if self.words * self.letters > MOST_BYTES:
            raise ValueError(f"{self.words} words of {self.letters} bytes are too many")
        if not self.templates or not all("{}" in template for template in self.templates):
            raise ValueError("templates: each is a sentence with {} in place of the class")
        return self


def text_options(options: Mapping[str, Any]) -> TextOptions:
    """The options of a recipe, checked."""
    try:
        return TextOptions.model_validate(options)
    except ValidationError as error:
        raise refusal(error, "modalities.text.options") from error
