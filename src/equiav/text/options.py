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
LARGEST, MOST = 65_536, {"vocab_size": 1 << 21, "tokenizer_bytes": 1 << 26}  # in an architecture


class TextOptions(Section):
    """How text is read, where it comes from, and its encoder.

    The first `words` words of at most `letters` bytes count. Without `width`, `depth` and `heads` the encoder has the
    size of `model.encoder`. `crop`, `drop`, `swap` and `spell` are the chances of the augmentations.

    Clips take their text from the first of `origins` that has one: `manifest`, the column `text` of the `table`
    (.csv or .jsonl, as given to `equiav prepare`); `sidecar`, a .txt, .vtt or .srt file beside the media; `labels`,
    their class names in `templates`. The generated world describes its scenes, a collection paired by class has its
    labels. `share` is that of the training clips that keep their text, by lot.

    `name` takes a text encoder of the transformers library instead, a repository on the Hub (where wanted at a
    `revision`) or a local folder: BERT, DistilBERT, RoBERTa, XLM-RoBERTa, MPNet, CLIP's text tower. `frozen` leaves its
    weights as they are. `letters` is then 32 by default. `architecture` is filled in.
    """

    words: Annotated[int, Field(gt=0, le=1024)] = 32
    letters: Annotated[int, Field(ge=4, le=64)] = 12
    byte_width: Annotated[int, Field(gt=0, le=256)] = 16
    width: Annotated[int, Field(gt=0, le=8192)] | None = None
    depth: Annotated[int, Field(gt=0, le=256)] | None = None
    heads: Annotated[int, Field(gt=0, le=1024)] | None = None
    name: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    revision: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    architecture: dict[str, bool | Annotated[int, Field(ge=0)] | Annotated[float, Field(ge=0)] | str] | None = None
    frozen: bool = False
    crop: Chance = 0.5
    drop: Chance = 0.5
    swap: Chance = 0.3
    spell: Chance = 0.3
    origins: tuple[Origin, ...] = ("manifest", "sidecar")
    table: str | None = None
    templates: tuple[str, ...] = TEMPLATES
    share: Chance = 1.0

    @model_validator(mode="before")
    @classmethod
    def _whole_words(cls, values: Any) -> Any:
        """A tokenizer should see words whole: few are cut at 32 bytes."""
        named = isinstance(values, dict) and values.get("name") is not None
        return {"letters": 32, **values} if named else values

    @model_validator(mode="after")
    def _possible(self) -> TextOptions:
        size = (self.width, self.depth, self.heads)
        if None in size and any(value is not None for value in size):
            raise ValueError("give all of width, depth and heads, or none of them")
        if self.width is not None and self.heads is not None and (self.width % self.heads or self.width % 4):
            raise ValueError(f"width {self.width} must be a multiple of 4 and of heads {self.heads}")
        if self.name is None and (self.revision or self.architecture is not None or self.frozen):
            raise ValueError("revision, architecture and frozen are for a text encoder by name")
        if self.name is not None and {"width", "byte_width"} & self.model_fields_set:
            raise ValueError(f"{self.name} brings its own size; leave out width, depth, heads and byte_width")
        for key, value in (self.architecture or {}).items():
            if not isinstance(value, str) and value > MOST.get(key, LARGEST):
                raise ValueError(f"architecture.{key}: {value} is too much")
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
