"""What times say: spread, noise, gains in the same rounds, rounds that are kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot_tune.bench.times import is_decided, paired_gain, spread, steady_rounds


@given(st.lists(st.floats(1, 1e6), min_size=3, max_size=30), st.floats(0.2, 5))
def test_a_constant_ratio_is_a_certain_gain(old: list[float], ratio: float) -> None:
    gain, error = paired_gain(old, [o * ratio for o in old])
    assert gain == pytest.approx(1 - ratio, abs=1e-9)
    assert error == pytest.approx(0, abs=1e-9)


def test_outliers_do_not_move_spread_or_gain() -> None:
    quiet, spoiled = [100.0, 101.0, 99.0, 100.0, 100.5] * 3, [100.0, 101.0, 99.0, 100.0, 100.5] * 3
    spoiled[2] = 5000.0
    assert spread(spoiled) == pytest.approx(spread(quiet), abs=0.01)
    assert paired_gain(quiet, spoiled)[0] == pytest.approx(0, abs=0.005)
    assert paired_gain(quiet, [0.9 * s for s in spoiled])[0] == pytest.approx(0.1, abs=0.005)


def test_rounds_under_a_changed_clock_are_not_kept() -> None:
    assert steady_rounds([1980, 1980, 1500, 1975, 1985], 0.05, 3) == [0, 1, 3, 4]
    assert steady_rounds([1980, 1500, 1500, 1900], 0.05, 0) == [1, 2]
    assert steady_rounds([1980, 0, 1500, 1980], 0.05, 0) == [0, 1, 3]
    assert steady_rounds([0, 0], 0.05, 0) == [0, 1]
    assert steady_rounds([], 0.05, 3) == []


def test_a_race_is_decided_when_the_others_are_clearly_behind_or_their_distance_is_known() -> None:
    first = [100.0, 101.0, 99.0, 102.0, 98.0, 100.0]
    assert is_decided([first])
    assert is_decided([first, [1.2 * t for t in reversed(first)]])
    assert not is_decided([first, [1.01 * t for t in reversed(first)]])  # it may win yet
    assert is_decided([first, [1.01 * t for t in first]])  # it is behind by the same in each round
