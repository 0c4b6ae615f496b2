"""Conditions on problems are evaluated once, whoever asks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pipelines import OPERATOR

from aot_tune.pipeline.guards import Conditions
from aot_tune.spec import alignment, all_of, dims, problem

(N,) = dims("N")
PROBLEMS = [problem(M=1, N=n, alignment=a) for n in (1, 6, 64) for a in ({}, {"x": 4})]
CONDITIONS = (N > 1, N % 4 == 0, N != 6, alignment("x") >= 16, (N > 3) | (alignment("x") < 16))


@given(st.lists(st.tuples(st.lists(st.sampled_from(range(len(CONDITIONS)))), st.sampled_from(PROBLEMS)), max_size=30))
def test_they_hold_where_all_of_them_do(asked: list[tuple[list[int], object]]) -> None:
    conditions = Conditions(OPERATOR)
    for which, one in asked:
        some = tuple(CONDITIONS[i] for i in which)
        assert conditions.hold(tuple(which), some, one) == all_of(some, OPERATOR.facts(one))


def test_what_was_asked_is_known_to_all_who_have_the_same_conditions() -> None:
    conditions, (one, other) = Conditions(OPERATOR), [problem(M=1, N=n) for n in (8, 9)]
    assert conditions.known("a", one) is None
    assert conditions.hold("a", (N % 8 == 0,), one)
    assert not conditions.hold("b", (N % 8 == 0,), other)
    assert conditions.hold("c", (N % 9 == 0,), other)
    assert [conditions.known(owner, where) for owner in "abc" for where in (one, other)] == [True, False] * 2 + [
        None,
        True,
    ]
