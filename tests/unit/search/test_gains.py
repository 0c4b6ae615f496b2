"""Under a budget: what is expected of the next try, learned from what tries brought and took."""

from __future__ import annotations

import math
import random

import pytest

from aot_tune.search import ON_GPU, Durations, Gains, Task, most_promising

SMALL, LARGE = Task("gemm", "M=1", 1 << 10), Task("gemm", "M=4096", 1 << 26)
OTHER = Task("softmax", "R=1", 1 << 10)


def known(*tasks: Task, seconds: float = 0.1) -> Durations:
    durations = Durations()
    for task in tasks:
        durations.screened(task, seconds, 0.0)
    return durations


def test_a_problem_that_was_screened_tells_its_own_time_and_others_go_by_their_size() -> None:
    durations = Durations()
    before = durations.screen(LARGE)
    assert durations.screen(SMALL) < before
    for _ in range(20):
        durations.screened(Task("gemm", "M=2048", 1 << 26), 2.0, 5.0)
    assert durations.screen(LARGE) > 1.5  # it is as large, of the same operator
    assert durations.screen(Task("softmax", "R=9", 1 << 26)) == pytest.approx(before)
    assert durations.prepare(Task("softmax", "R=9", 1 << 26)) > 2.0  # references of all operators are made alike
    durations.screened(LARGE, 0.3, 1.0)
    assert durations.screen(LARGE) == pytest.approx(0.3)
    assert durations.prepare(LARGE) == 0.0


def test_what_nobody_knows_the_time_of_is_done_all_the_same() -> None:
    durations, other = Durations(), Task("softmax", "R=9", 1 << 26)
    before = durations.prepare(other)
    durations.screened(LARGE, 0.3, None)
    assert durations.prepare(LARGE) == 0.0
    assert durations.prepare(other) == before


def test_a_fast_device_is_one_for_operators_that_were_not_tried_too() -> None:
    softmax = Task("softmax", "R=1024", 1 << 29)
    durations = Durations()
    assert durations.screen(softmax) > 2.5  # as on a CPU
    durations.screened(Task("gemm", "M=16", 1 << 26), 0.02, 0.0)
    assert durations.screen(softmax) > 2.5  # that of a few bytes says little
    durations.screened(Task("gemm", "M=2048", 1 << 28), 0.04, 0.0)
    assert durations.screen(softmax) == pytest.approx(0.02 + 0.06 * (1 << 29) / ((1 << 26) + (1 << 28)))
    durations.screened(Task("gemm", "M=4096", 1 << 28), 40.0, 0.0)
    assert durations.screen(softmax) == pytest.approx(0.02 + 5e-9 * (1 << 29))


def test_a_gpu_is_taken_for_faster_than_a_cpu_from_the_start() -> None:
    cpu, gpu = Durations(), Durations(rates=ON_GPU)
    assert gpu.screen(LARGE) < cpu.screen(LARGE) / 10
    assert gpu.prepare(LARGE) < cpu.prepare(LARGE) / 5


def test_races_take_so_many_times_as_long_as_screens_as_the_last_ones_did() -> None:
    durations = known(SMALL, LARGE, seconds=0.5)
    assert durations.race(SMALL) == pytest.approx(4.0)
    for _ in range(100):
        durations.raced(LARGE, 1.0)
    assert durations.race(SMALL) == pytest.approx(1.0, rel=0.15)


def test_a_screen_that_took_no_time_of_its_own_is_none_to_divide_by() -> None:
    durations = known(SMALL, seconds=0.0)  # its worker was killed while it was verified
    assert 0 < durations.race(SMALL) < 1
    gains = Gains(durations)
    gains.tried(SMALL, None, None)
    assert math.isfinite(gains.of_screen(SMALL))
    assert math.isfinite(gains.of_race(SMALL))


def test_compiles_take_what_they_took() -> None:
    durations = Durations()
    durations.compiled(40.0, 20.0)
    durations.compiled(10.0, 5.0)
    assert durations.compile(3.0) == 1.5


def test_an_operator_and_a_problem_that_nothing_is_known_of_come_first() -> None:
    gains = Gains(known(SMALL, OTHER, LARGE))
    assert gains.of_screen(OTHER) == gains.of_screen(SMALL)
    gains.tried(SMALL, None, 100.0)
    assert gains.of_screen(OTHER) > gains.of_screen(LARGE)  # an operator's first of all
    gains.tried(SMALL, 100.0, 99.0)
    gains.tried(OTHER, None, 100.0)
    gains.tried(LARGE, None, 100.0)
    assert gains.of_screen(Task("gemm", "M=2", SMALL.size)) > gains.of_screen(SMALL)


def test_a_problem_is_worth_the_less_the_longer_it_takes() -> None:
    durations = known(SMALL, seconds=0.1)
    durations.screened(LARGE, 10.0, 0.0)
    gains = Gains(durations)
    for task in (SMALL, LARGE):
        gains.tried(task, None, 100.0)
    assert gains.of_screen(SMALL) == pytest.approx(100 * gains.of_screen(LARGE))


def test_where_tries_still_brought_something_there_are_more() -> None:
    gains = Gains(known(SMALL, OTHER))
    for task, second in ((SMALL, 50.0), (OTHER, 100.0)):
        gains.tried(task, None, 100.0)
        for number in range(8):
            gains.tried(Task(task.operator, f"p{number}", 1), None, 100.0)
            gains.tried(Task(task.operator, f"p{number}", 1), 100.0, second)
    assert gains.of_screen(SMALL) > 4 * gains.of_screen(OTHER)


def test_a_failed_try_counts_but_leaves_the_operator_untouched() -> None:
    gains = Gains(known(SMALL))
    before = gains.of_screen(SMALL)
    gains.tried(SMALL, None, None)
    assert gains.of_screen(SMALL) == before


def test_races_that_change_nothing_are_expected_to_go_on_so() -> None:
    gains = Gains(known(SMALL))
    before = gains.of_race(SMALL)
    for _ in range(20):
        gains.raced(100.0, 100.0)
    assert gains.of_race(SMALL) < before / 5
    assert gains.of_race(SMALL, 1) == pytest.approx(gains.of_race(SMALL) / 4)


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
