"""Text as a modality: words of bytes, augmentations, encoder, where the text of clips comes from, partial batches."""

from equiav.text.augment import SpanCrop, SpellingNoise, WordDropout, WordSwap, text_pipeline, word_mask
from equiav.text.captions import PARAPHRASES, TEMPLATES, caption, fill
from equiav.text.encoder import TextEncoder
from equiav.text.foreign import TransformersTextEncoder, describe_text
from equiav.text.objective import PartialObjective, intra_among
from equiav.text.options import TextOptions, text_options
from equiav.text.sources import CaptionedWorld, ClassTexts, TextDataset, has_words, read_sidecar, read_table, with_text
from equiav.text.words import TEXT, TextInput, split_words, written

__all__ = [
    "PARAPHRASES",
    "TEMPLATES",
    "TEXT",
    "CaptionedWorld",
    "ClassTexts",
    "PartialObjective",
    "SpanCrop",
    "SpellingNoise",
    "TextDataset",
    "TextEncoder",
    "TextInput",
    "TextOptions",
    "TransformersTextEncoder",
    "WordDropout",
    "WordSwap",
    "caption",
    "describe_text",
    "fill",
    "has_words",
    "intra_among",
    "read_sidecar",
    "read_table",
    "split_words",
    "text_options",
    "text_pipeline",
    "with_text",
    "word_mask",
    "written",
]
