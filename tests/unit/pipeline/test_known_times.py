"""Times from an immutable table of measurements."""

from typing import Any

from aot_tune.bench.protocol.measurement_records import BASELINE, Measurement
from aot_tune.pipeline.known_times import SurveyedTimes, adding, choice_costs_of, costs_of, times_of
from aot_tune.spec import problem

TEN = problem(N=10)


def measured(name: str, ns: float, *, raced: bool = False, **fields: Any) -> Measurement:
    samples: dict[str, Any] = {"status": "ok", "screen": (ns,) * 5, **fields}
    samples |= {"final": (ns,) * 5, "race": "r"} if raced else {}
    return Measurement(candidate=name, code="", problem=TEN, device="d", policy="p", **samples)


def test_a_table_stays_as_it_is_when_something_is_added() -> None:
    before = adding({}, [measured("a", 100)])
    after = adding(before, [measured("a", 90, raced=True), measured("b", 80)])
    assert before[TEN.id]["a"].ns == 100
    assert {c: m.ns for c, m in after[TEN.id].items()} == {"a": 90, "b": 80}
    left_out = adding(after, [measured("b", 0, screen=(), status="skipped")])
    assert left_out[TEN.id]["b"].ns == 80, "what a race left out keeps its screen"


def test_what_a_race_left_out_counts_as_slower() -> None:
    table = adding(
        {}, [measured("a", 100, raced=True), measured("b", 80), measured(f"{BASELINE}numpy", 50, raced=True)]
    )
    times = times_of(table, ())[TEN.id]
    assert times["a"] == 100
    assert times["b"] > 103
    assert "b" not in times_of(table, {"b"})[TEN.id]


def test_a_vendors_variant_costs_least_unless_it_is_beaten() -> None:
    for ours, first in ((99.5, "vendor"), (80, "own")):
        table = adding({}, [measured("vendor", 100, raced=True), measured("own", ours, raced=True)])
        times = times_of(table, ())
        costs = choice_costs_of(table, times, {"vendor"})[TEN.id]
        assert min(costs, key=lambda c: costs[c]) == first
    assert costs_of(table, times)[TEN.id] == {"vendor": 100, "own": 80}


def test_surveyed_times_are_added_and_dropped_in_a_copy() -> None:
    first = SurveyedTimes().adding([(TEN, {"a": 1.0, "b": 2.0})])
    both = first.adding([(TEN, {"c": 3.0})])
    assert first.times == {TEN.id: {"a": 1.0, "b": 2.0}}
    assert both.keeping([TEN.id], {"c"}).times == {TEN.id: {"c": 3.0}}
    assert both.costs(lambda c: c == "a") == {TEN.id: {"b": 2.0, "c": 3.0}}
    assert both.adding([(TEN, {"d": 201.0, "e": 199.0})]).costs(lambda c: c == "a")[TEN.id].keys() == {"b", "c", "e"}
