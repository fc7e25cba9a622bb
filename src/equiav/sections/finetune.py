"""How a classifier is fine-tuned."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from equiav.sections.augment import Area, Range
from equiav.sections.section import Positive, PositiveFloat, Section, Share


class FinetuneAudioConfig(Section):
    """Fine-tuning on sound: chance of a circular shift, chance and greatest sizes of SpecAugment's masks."""

    shift: Share = 0.0
    mask: Share = 1.0
    mask_time: Share = 192 / 1024
    mask_frequency: Share = 48 / 128


class FinetuneVisualConfig(Section):
    """Fine-tuning on pictures: a random resized crop (none without an area) and the chance of a flip."""

    crop_area: Area | None = (0.5, 1.0)
    crop_aspect: Range = (3 / 4, 4 / 3)
    flip: Share = 0.5


class FinetuneConfig(Section):
    """How a classifier is trained, and on what it is chosen.

    `mixup` is the chance of a clip to be mixed with another of its batch, by a share drawn from Beta(b, b), b =
    `mixup_beta`. `layer_decay` multiplies the rate once per layer below the classifier, `head_rate` the classifier's
    own. `metric`, on validation, chooses the weights that are kept; where the data have no validation split,
    `validation_share` of the training part is held out for it, by source. `test_split: validation` judges on the
    publishers' validation split, where the labels of their test split are not public. `all_frames` averages the test
    scores over every frame of a clip. `classes_file` fixes the classes.
    """

    loss: Literal["ce", "bce"]
    metric: Literal["mAP", "accuracy"]
    mixup: Share = 0.0
    mixup_beta: Positive = 10
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    drop_path: Annotated[float, Field(ge=0, lt=1)] = 0.0
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    head_rate: PositiveFloat = 1.0
    validation_share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    test_split: Literal["test", "validation"] = "test"
    all_frames: bool = False
    classes_file: str | None = None
    audio: FinetuneAudioConfig = FinetuneAudioConfig()
    visual: FinetuneVisualConfig = FinetuneVisualConfig()
