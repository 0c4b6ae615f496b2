"""The time left is the mean of what was done so far, times what is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot_tune.support.time_left import seconds_left


def test_no_more_is_told_of_than_a_budget_has() -> None:
    assert seconds_left(30, 90, 20.0, most=12.0) == 12.0


@pytest.mark.parametrize(
    ("done", "total", "spent"), [(0, 9, 60.0), (9, 9, 60.0), (6, 9, 4.9), (4, 9, 60.0), (49, 1000, 60.0)]
)
def test_nothing_is_told_where_nothing_is_known_or_left(done: int, total: int, spent: float) -> None:
    assert seconds_left(done, total, spent) is None


@given(st.integers(100, 1000), st.integers(1, 1000), st.floats(0.05, 1e6))
def test_it_falls_as_more_is_done_at_one_pace(done: int, more: int, pace: float) -> None:
    total = done + more
    left = [seconds_left(n, total, n * pace) for n in range(done, total)]
    assert left == [pytest.approx((total - n) * pace) for n in range(done, total)]
