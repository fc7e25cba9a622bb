"""Small recipes of every method, for tests."""

from equiav.config import Config
from tests.training.small import small_config

DECODER = "decoder: {width: 16, depth: 1, heads: 2}"
METHODS = {
    "equiav": "objective={}",
    "masked": f"objective={{kind: masked, masked: {{{DECODER}, crop_area: [0.3, 1.0], flip: 0.5}}}}",
    "cavmae": f"objective={{kind: cavmae, masked: {{{DECODER}}}}}",
}


def small_method(kind: str, *overrides: str) -> Config:
    return small_config(METHODS[kind], *overrides)
