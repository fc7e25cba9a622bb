"""Differences are paired over seeds and significant only if their interval excludes zero."""

import pytest
from scipy import stats

from equiav.reproduction import paired_difference, summary, verdict


def test_interval_is_that_of_the_paired_test():
    a, b = {0: 3.0, 1: 5.5, 2: 4.0, 7: 9.0}, {0: 2.5, 1: 4.0, 2: 4.2, 5: 1.0}
    found = paired_difference(a, b)
    test = stats.ttest_rel([3.0, 5.5, 4.0], [2.5, 4.0, 4.2])
    low, high = test.confidence_interval(0.95)
    assert found.seeds == 3  # seeds that only one row has do not count
    assert found.interval == pytest.approx((low, high))
    assert found.significant == (test.pvalue < 0.05)


def test_pairing_finds_what_seeds_hide():
    a = {s: 10.0 * s + 1 + 0.1 * (s % 2) for s in range(5)}
    b = {s: 10.0 * s for s in range(5)}
    assert paired_difference(a, b).significant


def test_equal_differences_have_no_interval():
    a = {seed: value + 0.05 for seed, value in enumerate([0.1, 0.7, 0.3])}
    assert not paired_difference(a, {0: 0.1, 1: 0.7, 2: 0.3}).significant


def test_one_seed_has_no_interval():
    assert paired_difference({0: 2.0}, {0: 1.0}).half_width is None
    assert not paired_difference({0: 2.0}, {0: 1.0}).significant
    assert paired_difference({0: 2.0}, {1: 1.0}) is None
    assert summary([4.0]).std is None
    assert summary([]) is None
    assert summary([1.0, 3.0]).std == pytest.approx(stats.tstd([1.0, 3.0]))


@pytest.mark.parametrize(
    ("ours", "papers", "expected"),
    [
        ({0: 1.0, 1: 1.1, 2: 0.9}, 3.0, "holds"),
        ({0: 1.0, 1: 1.1, 2: 0.9}, -3.0, "reversed"),
        ({0: 1.0, 1: -1.1, 2: 0.9}, 3.0, "not significant"),
        ({0: 1.0}, 3.0, "one seed"),
    ],
)
def test_verdict(ours, papers, expected):
    assert verdict(paired_difference(ours, dict.fromkeys(ours, 0.0)), papers) == expected
