"""Winners that are carried over: few that win every problem, and when races here disagree with them."""

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_operators import make_operator

from aot_tune.bench.protocol.measurement_records import BASELINE, Measurement
from aot_tune.compile import Variant, target_by_name
from aot_tune.pipeline.evidence import Evidence, Proposal
from aot_tune.pipeline.scheduling.like_device import Opening, disagreement, winners
from aot_tune.pipeline.session import Session
from aot_tune.pipeline.shipping.filling_in import keep_unreached
from aot_tune.render import Candidate, Rendered
from aot_tune.spec import Kernel, Parameter, problem

ROWS = Kernel("rows", "r.j2", parameters=(Parameter("UNROLL", (1, 2, 4, 8)),))
SCALE = make_operator(ROWS, extents="N", workload=(problem(N=10),))
(TEN,) = SCALE.workload
CANDIDATES = {
    unroll: Candidate(operator="scale", kernel="rows", backend="cxx", target="cpu-x86-64-v3", config={"UNROLL": unroll})
    for unroll in (1, 2, 4, 8)
}


def disagrees(times: Mapping[int, float], baseline: float = 1e9, *, outrun: bool = False, status: str = "ok") -> str:
    """Why races here with these ns by UNROLL disagree with a record in which UNROLL=1 won."""
    evidence = Evidence(SCALE, target_by_name("cpu-x86-64-v3"), {})

    def add(name: str, ns: float, status: str) -> None:
        measured = {"screen": (ns,), "final": (ns,) * 5, "race": "r"} if status == "ok" else {"reason": "it is off"}
        evidence.add(_measured(name, status, **measured))

    for unroll, ns in times.items():
        one = CANDIDATES[unroll]
        rendered = Rendered(candidate=one, source="", digest="", symbol="s", lines=[])
        evidence.try_too([Proposal(Variant(rendered=rendered), frozenset([TEN.id]), named=True)])
        add(one.id, ns, status if unroll == 1 else "ok")
    add(f"{BASELINE}numpy", baseline, "ok")
    first = {TEN.id: CANDIDATES[1].id}
    opening = Opening("a record", (), first, frozenset([TEN.id] if outrun else []), {})
    return disagreement(evidence, opening, TEN, evidence.times())


@pytest.mark.parametrize(
    ("times", "more", "why"),
    [
        ({1: 100, 2: 85}, {}, ""),
        ({1: 100, 2: 75}, {}, "its winner is 33% behind another that it names"),
        ({1: 100}, {"baseline": 90}, "its winner is slower than baseline:numpy, which it beats there"),
        ({1: 100}, {"baseline": 90, "outrun": True}, ""),
        ({1: 100, 2: 85}, {"baseline": 90}, ""),
        ({1: 100, 2: 100}, {"status": "failed"}, "its winner is failed: it is off"),
    ],
)
def test_when_a_race_here_disagrees_with_a_record(times: dict[int, float], more: dict[str, Any], why: str) -> None:
    assert disagrees(times, **more) == why


def test_what_was_not_reached_in_time_is_kept_by_its_first_candidate() -> None:
    """Those that failed are not, on a CPU nor are those that are not compiled. A time for one is enough."""
    for target, unreached in (("cuda-sm_90a", [2]), ("cpu-x86-64-v3", [])):
        evidence = Evidence(SCALE, target_by_name(target), {})
        for unroll in (1, 2, 4):
            rendered = Rendered(candidate=CANDIDATES[unroll], source="", digest="", symbol="s", lines=[])
            evidence.try_too([Proposal(Variant(rendered=rendered))])
        evidence.add(_measured(CANDIDATES[1].id, "wrong-result", reason="it is off"))
        keep_unreached(evidence, lambda variants: next(iter(variants)))
        assert evidence.standing_in == {CANDIDATES[unroll].id for unroll in unreached}
        evidence.standing_in.clear()
        evidence.add(_measured(CANDIDATES[4].id, "ok", screen=(9.0,)))
        keep_unreached(evidence, lambda variants: next(iter(variants)))
        assert not evidence.standing_in


def test_of_several_choices_the_first_that_fits_is_taken() -> None:
    """What fits hardly spills; if none does, it is the one that spills least."""

    def variant(name: str, **made: Any) -> Any:
        resources = {"spill_bytes": made.get("spills")}
        return SimpleNamespace(name=name, compiled="spills" in made, made=SimpleNamespace(resources=resources))

    fails, none = variant("a"), variant("d", spills=0)
    much, more = variant("b", spills=16000), variant("c", spills=20000)
    rounds = list[int]()

    def compiled(variants: Iterable[Any], *_: Any) -> list[Any]:
        rounds.append(len(listed := list(variants)))
        return listed

    given = {"a": [[fails], [none, much], [none, none]], "b": [[fails], [more], [much]], "c": [[fails]], "d": [[none]]}
    taken = Session.first_that_fit(cast(Session, SimpleNamespace(compile=compiled)), given, "generic")
    assert taken == {"a": [none, none], "b": [much], "c": [fails], "d": [none]}
    assert rounds == [4, 3, 3, 0]


def _measured(name: str, status: str, **more: Any) -> Measurement:
    return Measurement(candidate=name, code="", problem=TEN, device="d", policy="p", status=status, **more)


COSTS = st.dictionaries(
    st.sampled_from("pqrst"), st.dictionaries(st.sampled_from("abcdef"), st.floats(1, 3), min_size=1), min_size=1
)


@given(COSTS, st.integers(0, 3))
def test_winners_win_every_problem_and_are_never_far_behind(costs: dict[str, dict[str, float]], each: int) -> None:
    found = list(winners(costs, 1.1, each))
    assert set().union(*(won for _, won in found)) == costs.keys()
    assert len({c for c, _ in found}) == len(found)
    for candidate, won in found:
        assert all(costs[p][candidate] <= 1.1 * min(costs[p].values()) for p in won)
    for where, row in costs.items() if each else ():
        best = min(row, key=lambda c: (row[c], c))
        there = [c for c, won in found if where in won]
        assert best in there
        assert len(there) >= min(each, sum(t <= 1.1 * row[best] for t in row.values()))
