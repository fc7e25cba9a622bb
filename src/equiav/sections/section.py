"""What all sections share: frozen groups of keys, and numbers with a range."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Hue = Annotated[float, Field(ge=0, le=0.5)]
Momentum = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A frozen group of keys; unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
