"""The paper's computation-cost table, to its printed digits."""

import pytest

from equiav.config import Config
from equiav.evaluation import PAPER_BASELINE, PAPER_INCREASE, cost_of, cost_table


@pytest.mark.parametrize("modality", ["audio", "visual"])
def test_increments_to_the_printed_digit(modality):
    cost = cost_of(Config(), modality, repeats=0)
    assert {s: round(v, 2) for s, v in cost.increase_gmac.items()} == PAPER_INCREASE[modality]
    paper = PAPER_BASELINE[modality]
    assert abs(cost.baseline_gmac / paper - 1) < (0.006 if modality == "audio" else 0.003)
    assert abs(cost.baseline_three_channels_gmac / paper - 1) < (0.002 if modality == "audio" else 0.003)
    table = cost_table([cost])
    assert f"+{PAPER_INCREASE[modality][16]:.2f} | {paper + PAPER_INCREASE[modality][16]:.2f}" in table
