"""What a report says of races, of dispatch over two dims, and of what variants are worth."""

from __future__ import annotations

import pytest
from pipelines import FAST, GENERIC, ONE, OPERATOR, SMALL, TWO, evidence, measured

from aot_tune.pipeline.evidence import Chosen, Evidence, serves
from aot_tune.pipeline.naming import variant_name
from aot_tune.pipeline.shipping.dispatch_maps import curves_of, maps_of, points_of
from aot_tune.pipeline.shipping.race_rows import runners_on
from aot_tune.select import select
from aot_tune.spec import problem

CLOCK = (1.0, 1.0, 2.0, 1.0, 1.0)
"""What each round did to all that ran in it."""
NOISE = {"fast": (1.05, 1.0, 0.97, 1.0, 1.02), "small": (1.0, 0.98, 1.0, 1.03, 1.0), "baseline": (1.0,) * 5}


def raced() -> Evidence:
    """`small` is best on one row, `fast` on many; a baseline races too, and `generic` was only screened."""
    found = evidence(FAST, SMALL, GENERIC)
    for where, small, fast in ((ONE, 10.0, 20.0), (TWO, 90.0, 30.0)):
        for one, ns in ((SMALL, small), (FAST, fast), ("baseline:theirs", 2 * fast)):
            noise = NOISE["baseline" if isinstance(one, str) else one.candidate.kernel]
            rounds = tuple(ns * c * n for c, n in zip(CLOCK, noise, strict=True))
            found.add(measured(one, where, (ns, ns), final=rounds))
        found.add(measured(GENERIC, where, (200.0, 220.0)))
    return found


def chosen(found: Evidence) -> Chosen:
    facts = {p.id: OPERATOR.facts(p) for p in found.workload}
    costs = found.choice_costs()
    return Chosen(found, select(costs, facts, lambda c, f: serves(found, c, f)), costs)


def test_a_race_has_all_that_ran_in_it_the_fastest_first() -> None:
    rows = runners_on(raced(), TWO.id)
    assert [(r.name, r.whose) for r in rows] == [
        (variant_name(FAST), "kernel"),
        ("theirs", "baseline"),
        (variant_name(SMALL), "kernel"),
    ]
    assert [r.ns for r in rows] == pytest.approx([30.0, 60.0, 90.0], rel=0.03)
    assert all(r.raced and r.samples == 5 and r.low <= r.ns <= r.high for r in rows)
    assert 28.0 < rows[0].low < rows[0].high < 32.0  # a round in which all took twice as long widens no spread
    beside = runners_on(raced(), TWO.id, (GENERIC.candidate.id,))
    assert [(r.name, r.raced, r.samples) for r in beside[3:]] == [(variant_name(GENERIC), False, 2)]


def test_a_map_shows_what_each_call_gets() -> None:
    (one,) = maps_of(chosen(raced()))
    assert (one.x, one.y, one.kind, one.at) == ("M", "", "", {"N": 8})
    assert one.xs[0] <= 1
    assert one.xs[-1] >= 64
    assert set(one.variants) == {variant_name(SMALL), variant_name(FAST)}
    (row,) = one.picks
    told = dict(zip(one.xs, (one.variants[p] for p in row), strict=True))
    assert told[1] == variant_name(SMALL)
    assert told[one.xs[-1]] == variant_name(FAST)


def test_surveyed_shapes_say_which_dims_a_map_is_over() -> None:
    found = raced()
    shapes = [problem(M=2, N=8), problem(M=64, N=4096)]
    for shape in (*shapes, ONE):  # which was tuned
        found.surveyed.add(shape, {FAST.candidate.id: 5.0, SMALL.candidate.id: 6.0}, found.entries)
    (one,) = maps_of(chosen(found))
    assert {one.x, one.y} == {"M", "N"}
    assert [len(row) for row in one.picks] == [len(one.xs)] * len(one.ys)
    points = points_of(chosen(found))
    assert {p.problem for p in points} == {s.id for s in shapes}
    assert {p.best for p in points} == {variant_name(FAST)}
    assert all(p.regret is not None and p.regret >= 0 for p in points)


def test_curves_tell_what_each_variant_adds() -> None:
    (curve,) = curves_of(chosen(raced()))
    assert set(curve.variants) == {variant_name(SMALL), variant_name(FAST)}
    assert curve.regret[0] > curve.regret[1] == 0.0
    assert curve.served == (1.0, 1.0)
