"""Search: every config once, the author's guesses first, and a budget that ends."""

from __future__ import annotations

import itertools

from aot_tune.search import Budget, Listed

SPACE = [{"A": a, "B": b} for a, b in itertools.product((1, 2, 3), (10, 20))]


def drain(strategy: Listed) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    while asked := strategy.ask(2):
        found += asked
    return found


def test_each_config_is_listed_once_and_first_guesses_come_first() -> None:
    assert sorted(map(str, drain(Listed(SPACE)))) == sorted(map(str, SPACE))
    found = drain(Listed(SPACE, first=[{"A": 3, "B": 20}, {"A": 2}]))
    assert found[0] == {"A": 3, "B": 20}
    assert found[1]["A"] == 2  # one that leaves parameters open
    assert drain(Listed(SPACE, first=[{"A": 3, "B": 20}, {"A": 2}], limit=3)) == found[:3]


def test_budget_counts_down_and_stops() -> None:
    now = 100.0
    budget = Budget(10, clock=lambda: now)
    assert budget.allows(10)
    now = 107.0
    assert (budget.spent, budget.left) == (7.0, 3.0)
    assert not budget.allows(3.5)
    now = 200.0
    assert budget.left == 0.0
    assert Budget(None).allows(1e9)


def test_parts_of_a_budget_share_what_is_left() -> None:
    now = 0.0
    budget = Budget(90, clock=lambda: now)
    first = budget.part(3)
    assert first.left == 30
    now = 40.0  # the first part overran
    assert not first.allows(1)
    assert budget.part(2).left == 25
    assert Budget(None).part(2).left == float("inf")
