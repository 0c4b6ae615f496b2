"""On older CPUs what is most like a winner stands in for dtypes of which nothing was reached in time."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

from aot_tune.bench.protocol.measurement_records import Measurement
from aot_tune.compile import target_by_name
from aot_tune.pipeline.evidence import Entry, Evidence
from aot_tune.pipeline.session import Session
from aot_tune.pipeline.shipping.filling_in import fills_in, with_filling_in
from aot_tune.pipeline.shipping.standing_in import stand_in
from aot_tune.render import Candidate, Rendered
from aot_tune.select import Selection
from aot_tune.select.selection_records import Node
from aot_tune.spec import Kernel, Operator, Parameter, Problem, Tensor, dims, parameter, problem, stride, target

(N,) = dims("N")
NEW, OLD = target_by_name("cpu-x86-64-v4"), target_by_name("cpu-x86-64-v3")
ROWS = Kernel(
    "rows",
    "r.j2",
    parameters=(Parameter("W", (8, 16)), Parameter("UNROLL", (1, 2, 4))),
    constraints=(parameter("W") * 4 == target("vector_bytes"),),
    requires=(stride("x", 0) == 1,),
)
SCALE = Operator(
    name="scale",
    dims=("N",),
    dtypes={"T": ("f32", "f16")},
    tensors=(Tensor("x", (N,), "T"), Tensor("out", (N,), "T", output=True)),
    reference=lambda xp, call: {"out": call.x},
    flops=N,
    workload=tuple(problem(N=n, dtypes={"T": t}) for t in ("f32", "f16") for n in (10, 100, 1000)),
    kernels=(Kernel("generic", "g.j2", generic=True), ROWS),
)


def session() -> Session:
    """A session whose renderer renders nothing."""

    def render(_operator: Operator, candidate: Candidate, _target: object) -> Rendered:
        return Rendered(candidate=candidate, source="", digest="", symbol="s", lines=[])

    return cast(Any, SimpleNamespace(kernels_for=lambda *_: [ROWS], renderer=SimpleNamespace(render=render)))


def add(
    evidence: Evidence, dtype: str, unroll: int, times: Iterable[tuple[Problem, float]], status: str = "ok"
) -> None:
    """A candidate, and its times in ns."""
    width = evidence.target.facts["vector_bytes"] // 4
    candidate = Candidate(
        operator="scale", kernel="rows", backend="cxx", target=evidence.target.name,
        config={"W": width, "UNROLL": unroll}, dtypes={"T": dtype},
    )  # fmt: skip
    evidence.try_too([Entry.of(SCALE, session().renderer.render(SCALE, candidate, evidence.target))])
    for where, ns in times:
        found = Measurement(
            candidate=candidate.id, code="", problem=where, device="d", policy="p", status=cast(Any, status),
            screen=(ns,) if status == "ok" else (),
        )  # fmt: skip
        evidence.add(found)


def of(dtype: str) -> list[Problem]:
    return [p for p in SCALE.workload_for("cpu") if p.dtypes.get("T", "f32") == dtype]


def tuned() -> Evidence:
    """In f16 UNROLL=4 wins twice, and UNROLL=1 once."""
    found = Evidence(SCALE, NEW, {})
    add(found, "f32", 2, [(p, 10.0) for p in of("f32")])
    add(found, "f16", 1, zip(of("f16"), (10.0, 20.0, 20.0), strict=True))
    add(found, "f16", 4, zip(of("f16"), (20.0, 10.0, 10.0), strict=True))
    return found


def standing(older: Evidence) -> list[tuple[object, object]]:
    found = [e for e in older.entries.values() if e.stands_in]
    assert all(e.candidate.target == OLD.name and e.candidate.config["W"] == 8 for e in found)
    assert all(fills_in(older, e) for e in found)
    return [(e.candidate.dtypes["T"], e.candidate.config["UNROLL"]) for e in found]


def test_what_won_most_of_a_kind_stands_in_for_it() -> None:
    older = Evidence(SCALE, OLD, {}, brief=True)
    add(older, "f32", 2, [(of("f32")[0], 5.0)])
    stand_in(session(), [older, tuned()])
    assert standing(older) == [("f16", 4)]
    selection = Selection(kept=("it",), nodes=(Node(ranked=("it",)),), regret={}, held_out={})
    kept = with_filling_in(session(), older, selection)
    assert kept.nodes == selection.nodes
    assert kept.kept == ("it", *(c for c, e in older.entries.items() if e.stands_in))


def test_what_failed_does_not_stand_in() -> None:
    older = Evidence(SCALE, OLD, {}, brief=True)
    add(older, "f16", 4, [(of("f16")[0], 0.0)], status="wrong-result")
    stand_in(session(), [older, tuned()])
    assert standing(older) == [("f32", 2), ("f16", 1)]


def test_a_target_that_was_tuned_whole_is_left_alone() -> None:
    older = Evidence(SCALE, OLD, {})
    stand_in(session(), [older, tuned()])
    assert standing(older) == []
    stand_in(session(), [Evidence(SCALE, OLD, {}, brief=True)])  # nothing won anywhere
