"""Under a budget: what is expected of the next try, learned from what tries brought and took."""

from __future__ import annotations

import math
import random

from aot_tune.search import Durations, Gains, Task, most_promising

SMALL, LARGE = Task("gemm", "M=1", 1 << 10), Task("gemm", "M=4096", 1 << 26)
OTHER = Task("softmax", "R=1", 1 << 10)


def known(*tasks: Task, seconds: float = 0.1) -> Durations:
    durations = Durations()
    for task in tasks:
        durations.screened(task, seconds, 0.0)
    return durations


def test_an_operator_and_a_problem_that_nothing_is_known_of_come_first() -> None:
    gains = Gains(known(SMALL, OTHER, LARGE))
    assert gains.of_screen(OTHER) == gains.of_screen(SMALL)
    gains.tried(SMALL, None, 100.0)
    assert gains.of_screen(OTHER) > gains.of_screen(LARGE)  # an operator's first of all
    gains.tried(SMALL, 100.0, 99.0)
    gains.tried(OTHER, None, 100.0)
    gains.tried(LARGE, None, 100.0)
    assert gains.of_screen(Task("gemm", "M=2", SMALL.size)) > gains.of_screen(SMALL)


def test_a_failed_try_counts_but_leaves_the_operator_untouched() -> None:
    gains = Gains(known(SMALL))
    before = gains.of_screen(SMALL)
    gains.tried(SMALL, None, None)
    assert gains.of_screen(SMALL) == before


def test_what_was_best_elsewhere_is_tried_before_what_is_new_and_that_before_what_was_slow() -> None:
    costs = {"slow": math.log(1.5), "near": math.log(1.04), "best": 0.0}
    waiting = ["slow", "new", "newer", "near", "best"]
    order = []
    while waiting:
        order.append(most_promising(costs, waiting))
        waiting.remove(order[-1])
    assert order == ["best", "near", "new", "newer", "slow"]


def test_in_a_model_world_the_greedy_order_beats_one_problem_after_the_other() -> None:
    """Problems whose candidates' times are known: the mean of log(time / best) after the same seconds."""
    source = random.Random(7)
    tasks = [Task(f"op{i % 3}", f"p{i}", 10 ** source.randint(3, 8)) for i in range(18)]
    seconds = {t: 0.02 + 1e-8 * t.size for t in tasks}
    quality = {(t.operator, c): source.uniform(0, 1) for t in tasks for c in range(10)}
    times = {(t, c): math.exp(quality[t.operator, c] + source.uniform(0, 0.2)) for t in tasks for c in range(10)}
    budget = 0.3 * sum(10 * s for s in seconds.values())

    def regret(found: dict[Task, list[int]]) -> float:
        best = {t: min(times[t, c] for c in range(10)) for t in tasks}
        rows = [min((times[t, c] for c in found[t]), default=5 * best[t]) / best[t] for t in tasks]
        return sum(map(math.log, rows)) / len(rows)

    def greedy() -> dict[Task, list[int]]:
        durations = Durations()
        gains, found, left = Gains(durations), {t: [] for t in tasks}, budget
        while True:
            fitting = [t for t in tasks if len(found[t]) < 10 and seconds[t] <= left]
            if not fitting:
                return found
            task = max(fitting, key=gains.of_screen)
            before = min((times[task, c] for c in found[task]), default=None)
            found[task].append(len(found[task]))
            left -= seconds[task]
            durations.screened(task, seconds[task], 0.0)
            gains.tried(task, before, min(times[task, c] for c in found[task]))

    def in_rows() -> dict[Task, list[int]]:
        found, left = {t: [] for t in tasks}, budget
        for task in tasks:
            for c in range(10):
                if seconds[task] <= left:
                    left -= seconds[task]
                    found[task].append(c)
        return found

    assert regret(greedy()) < 0.5 * regret(in_rows())
