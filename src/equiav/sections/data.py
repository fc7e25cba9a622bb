"""Where clips come from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from equiav.sections.section import Positive, PositiveFloat, Section, Share


class WorldConfig(Section):
    """The generated world, drawn at `visual.size`: first `count` clips for training, then validation, then test.

    `used` trains on the first so many of them only: sets of different size with the same held-out scenes.
    Here and below, `balanced` draws training clips by the paper's class weights.
    """

    kind: Literal["world"] = "world"
    seed: int = 0
    max_things: Positive = 3
    max_sounding: Positive = 2
    another: Share = 0.5
    duet: Share = 0.3
    seconds: PositiveFloat = 2.0
    count: Positive = 5000
    used: Positive | None = None
    validation: Positive = 500
    test: Positive = 500
    balanced: bool = False


class ShardsConfig(Section):
    """Prepared videos: a folder written by `equiav prepare`.

    `statistics: data` takes the spectrogram's mean and std from that folder instead of the recipe; `one_per_source`
    keeps clips of one video out of each other's batch. `test` is a folder of its own where the publishers' test clips
    were prepared apart; `fold` makes one of the publishers' folds the test split, the others train.
    """

    kind: Literal["shards"] = "shards"
    path: str
    test: str | None = None
    fold: Positive | None = None
    statistics: Literal["recipe", "data"] = "recipe"
    balanced: bool = False
    one_per_source: bool = False


class PairedConfig(Section):
    """Sounds and images paired only by class: a tar or folder with manifest.csv. This uses labels."""

    kind: Literal["paired"] = "paired"
    path: str
    seconds: PositiveFloat = 5.0
    anchor: Literal["sound", "image"] = "image"
    partners: Positive = 10
    balanced: bool = False


class CavMaeConfig(Section):
    """Data files as CAV-MAE and EquiAV write them: JSON lists of wav files and extracted frames.

    `weights` is a published weight file for balanced drawing; `balanced` works the same weights out. `fallback` takes
    the nearest earlier frame where one is missing, and counts it; without it that is an error.
    """

    kind: Literal["cavmae"] = "cavmae"
    train: str
    validation: str
    test: str | None = None
    balanced: bool = False
    weights: str | None = None
    fallback: bool = False


DataConfig = Annotated[WorldConfig | ShardsConfig | PairedConfig | CavMaeConfig, Field(discriminator="kind")]
