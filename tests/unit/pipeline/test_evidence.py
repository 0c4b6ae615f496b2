"""Evidence and budget rules of the pipeline, on made-up measurements."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
from pipelines import FAST, GENERIC, OPERATOR, SMALL, entry, evidence, measured

from aot_tune.bench.protocol.measurement_records import Status
from aot_tune.pipeline.evidence import serves, share_among_targets
from aot_tune.pipeline.shipping.finish import choose
from aot_tune.pipeline.shipping.story import failures_of
from aot_tune.plan.options import resolve
from aot_tune.select import select
from aot_tune.spec import Kernel, problem


def test_candidates_are_tried_where_they_serve_and_are_meant_for() -> None:
    found = evidence(FAST, SMALL, GENERIC)
    assert [e.candidate.kernel for e in found.tried(problem(M=1, N=8))] == ["fast", "small", "generic"]
    assert [e.candidate.kernel for e in found.tried(problem(M=64, N=8))] == ["fast", "generic"]
    assert [e.candidate.kernel for e in found.tried(problem(M=1, N=7))] == ["small", "generic"]


@pytest.mark.parametrize("status", ["wrong-result", "failed", "oom", "crashed", "suspicious"])
def test_a_failure_anywhere_keeps_a_candidate_out_everywhere(status: Status) -> None:
    found = evidence(FAST, GENERIC)
    for where in OPERATOR.workload:
        found.add(measured(GENERIC, where, (200.0,)))
    found.add(measured(FAST, OPERATOR.workload[0], (100.0,)))
    found.add(measured(FAST, OPERATOR.workload[1], (), status=status, reason="out[0, 0]: got 1, want 2"))
    costs = found.costs()
    assert set(costs) == {p.id for p in OPERATOR.workload}
    assert all(set(row) == {GENERIC.candidate.id} for row in costs.values())
    (failure,) = failures_of(found)
    assert (failure.candidate, failure.status, failure.count) == ("fast", status, 1)
    name = f"fast_{FAST.candidate.id[:8]}"
    assert failure.again == f"aot-tune try scale {name} --target cpu-x86-64-v3 --problem 'M=64 N=8'"


@pytest.mark.parametrize(
    ("vendor", "fast", "small", "order"),
    [
        (100.0, 99.5, 99.6, "vendor fast small"),  # it is not beaten
        (100.0, 98.0, 99.6, "fast vendor small"),  # nor by what ties with the one that beats it
        (100.0, 98.0, 98.5, "fast small vendor"),
        (100.0, 104.0, 150.0, "vendor fast small"),
        (None, 99.5, 99.6, "fast small vendor"),  # it did not race
    ],
)
def test_a_vendors_variant_wins_unless_it_is_beaten_by_more_than_the_noise(
    vendor: float | None, fast: float, small: float, order: str
) -> None:
    kernel = Kernel("vendor", "v.j2", algorithms=lambda _: None)
    operator = dataclasses.replace(OPERATOR, kernels=(*OPERATOR.kernels, kernel))
    own = entry("vendor", "v")
    found = dataclasses.replace(evidence(own, FAST, SMALL, GENERIC), operator=operator)
    where = OPERATOR.workload[0]
    for one, ns in ((FAST, fast), (SMALL, small)):
        found.add(measured(one, where, (), final=(ns,) * 7))
    found.add(measured(own, where, (100.0,), final=None if vendor is None else (vendor,) * 7))
    costs, plain = found.choice_costs()[where.id], found.costs()[where.id]
    named = {e.candidate.kernel: costs[e.candidate.id] for e in (FAST, SMALL, own)}
    assert sorted(named, key=lambda name: named[name]) == order.split()
    assert all(plain[c] <= cost for c, cost in costs.items())
    assert min(costs.values()) == min(plain.values())
    assert costs[own.candidate.id] == plain[own.candidate.id]
    ranked = choose(SimpleNamespace(options=resolve({}, {})), found).selection.nodes[0].ranked  # type: ignore[arg-type]
    assert order.startswith(found.entries[ranked[0]].candidate.kernel)


@pytest.mark.parametrize("bad", [0, 1])
def test_a_generic_variant_that_failed_on_one_target_has_failed_on_all(bad: int) -> None:
    both, where = [evidence(FAST, GENERIC), evidence(SMALL, GENERIC)], OPERATOR.workload[0]
    for i, found in enumerate(both):
        found.add(measured(GENERIC, where, (7.0,), status="wrong-result" if i == bad else "ok"))
    share_among_targets(both)
    assert all(found.failed(GENERIC.candidate.id) for found in both)


def test_what_a_race_left_out_does_not_take_the_place_of_its_winner() -> None:
    """A variant that is kept for another problem serves all where it is near enough: that is not known of this one."""
    found = evidence(FAST, SMALL, GENERIC)
    where, other = OPERATOR.workload
    found.add(measured(FAST, where, (), final=(100.0, 100.1, 99.9, 100.0)))
    found.add(measured(SMALL, where, (100.0,)))
    found.add(measured(SMALL, other, (), final=(50.0, 50.0, 50.0, 50.0)))
    found.add(measured(FAST, other, (), final=(60.0, 60.0, 60.0, 60.0)))
    facts = {p.id: OPERATOR.facts(p) for p in (where, other)}
    chosen = select(found.costs(), facts, lambda c, f: serves(found, c, f), times=found.times())
    assert {FAST.candidate.id, SMALL.candidate.id} <= set(chosen.kept)
    assert chosen.regret == {where.id: 0.0, other.id: 0.0}
    # as near in a race, it does
    found.add(measured(SMALL, where, (), final=(101.0, 101.1, 100.9, 101.0)))
    chosen = select(found.costs(), facts, lambda c, f: serves(found, c, f), times=found.times())
    assert FAST.candidate.id not in chosen.kept


def test_a_race_under_a_clock_that_drifts_is_decided_round_by_round() -> None:
    """Medians of such rounds say when each happened to be fast; 8 % of drift would hide 5 % of difference."""
    found, where = evidence(FAST, SMALL, GENERIC), OPERATOR.workload[0]
    paces = [1.0 + 0.02 * i for i in range(11)]
    for one, ns in ((FAST, 100.0), (SMALL, 105.0), (GENERIC, 130.0)):
        found.add(measured(one, where, (), final=tuple(ns * p for p in paces)))
    late = measured(GENERIC, where, (), final=(1.0, 2.0, 3.0))
    assert found.row(where.id)[FAST.candidate.id].final == pytest.approx((110.0,) * 11)
    assert found.times()[where.id][SMALL.candidate.id] == pytest.approx(115.5)
    assert found.costs()[where.id][SMALL.candidate.id] == pytest.approx(115.5)
    assert found.measurements[where.id][FAST.candidate.id].final == pytest.approx([100.0 * p for p in paces])
    found.add(late)  # not of the same rounds
    assert found.row(where.id)[GENERIC.candidate.id].final == (1.0, 2.0, 3.0)
