"""The portfolio: every config at most once and only those of the space, whatever is told; and it learns."""

import itertools
import math
import random
import statistics

from hypothesis import given, settings
from hypothesis import strategies as st

from aot_tune.search.strategy import Strategy, make_strategy

Configs = list[dict[str, object]]

VALUES = st.one_of(
    st.integers(-4, 512), st.booleans(), st.none(), st.sampled_from(["row", "col", "swizzled"]), st.floats(0.5, 8.0)
)
COSTS = st.one_of(st.floats(1e-6, 1e6), st.just(math.inf), st.just(math.nan), st.just(0.0))


@st.composite
def spaces(draw: st.DrawFn) -> Configs:
    """Some configs of one to four parameters, of which some may have one value."""
    axes = draw(st.lists(st.lists(VALUES, min_size=1, max_size=4, unique_by=repr), min_size=1, max_size=4))
    every = [dict(zip("ABCD", values, strict=False)) for values in itertools.product(*axes)]
    return draw(st.lists(st.sampled_from(every), min_size=1, max_size=40, unique_by=repr))


def run(strategy: Strategy, costs: list[float], step: int) -> Configs:
    """All that a strategy proposes, in order; the nth config costs the nth of `costs`, over and over."""
    told = itertools.cycle(costs)
    found: Configs = []
    while asked := strategy.ask(step):
        found += asked
        for config in asked:
            strategy.tell(config, next(told))
    return found


@settings(max_examples=20, deadline=None)
@given(
    space=spaces(), costs=st.lists(COSTS, min_size=1, max_size=12), step=st.integers(1, 20), seed=st.integers(0, 2**31)
)
def test_all_configs_are_proposed_once_in_an_order_that_the_seed_decides(
    space: Configs, costs: list[float], step: int, seed: int
) -> None:
    found = run(make_strategy(space, (), None, seed=seed), costs, step)
    assert sorted(map(repr, found)) == sorted(map(repr, space))
    assert run(make_strategy(space[::-1], (), None, seed=seed), costs, step) == found


@settings(max_examples=15, deadline=None)
@given(space=spaces(), costs=st.lists(COSTS, min_size=1, max_size=9), limit=st.integers(0, 30), step=st.integers(1, 9))
def test_a_limit_is_kept(space: Configs, costs: list[float], limit: int, step: int) -> None:
    found = list(map(repr, run(make_strategy(space, (), limit), costs, step)))
    assert len(found) == len(set(found)) == min(limit, len(space))
    assert set(found) <= set(map(repr, space))


GRID = [
    {"X": x, "Y": y, "T": t, "V": v, "L": layout}
    for x, y, t, v, layout in itertools.product(
        (16, 32, 48, 64, 128), (1, 2, 4, 8, 16), (1, 2, 3), (1, 2, 4), ("row", "col", "swizzled")
    )
]


def cost(config: dict[str, object]) -> float:
    """A slope with a cliff, a rough surface and a corner that fails; lowest at 64, 4, 3, 2, swizzled."""
    x, y, t, v = (int(str(config[n])) for n in "XYTV")
    if x * y > 1024:
        return math.inf
    wanted = {"row": 0.3, "col": 0.5, "swizzled": 0.0}[str(config["L"])]
    away = abs(math.log2(x * y / 256)) + 0.7 * abs(t - 3) + 0.4 * abs(math.log2(v / 2)) + 0.3 * abs(math.log2(x / 64))
    rough = random.Random(repr(sorted(config.items()))).uniform(0.0, 0.02)
    return 1.0 + 0.2 * away + wanted + (0.3 if x % 32 else 0.0) + rough


def best_after(strategy: Strategy, count: int, step: int) -> float:
    best = math.inf
    for _ in range(0, count, step):
        for config in strategy.ask(step):
            best = min(best, cost(config))
            strategy.tell(config, cost(config))
    return best


def test_it_finds_what_random_search_does_not() -> None:
    best = min(map(cost, GRID))
    ours = [best_after(make_strategy(GRID, (), 64, seed=seed), 64, 8) for seed in range(3)]
    theirs = [min(map(cost, random.Random(seed).sample(GRID, 64))) for seed in range(3)]
    assert statistics.median(ours) < 1.03 * best
    assert statistics.median(ours) < statistics.median(theirs)


def test_guesses_go_first_then_what_won_elsewhere() -> None:
    guesses = ({"X": 128, "Y": 8, "T": 1, "V": 1, "L": "row"},)
    transfer = ({"X": 64, "Y": 4, "T": 3, "V": 2, "L": "swizzled"}, {"X": 7}, {"X": 128, "L": "col"})
    asked = make_strategy(GRID, guesses, 50, transfer=transfer).ask(50)
    assert asked[:2] == [guesses[0], transfer[0]]
    assert (asked[2]["X"], asked[2]["L"]) == (128, "col")
    listed = make_strategy(GRID, guesses, None, transfer=transfer).ask(len(GRID))
    assert listed[:3] == asked[:3]
    assert len(listed) == len(GRID)
