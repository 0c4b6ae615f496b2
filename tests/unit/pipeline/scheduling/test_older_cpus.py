"""What older CPUs' variants begin with: configs that are most like those which won on another target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

from aot_tune.bench.protocol.measurement_records import Measurement
from aot_tune.compile import target_by_name
from aot_tune.pipeline.evidence import Entry, Evidence
from aot_tune.pipeline.scheduling.older_cpus import transferred
from aot_tune.pipeline.scheduling.transfer import most_alike
from aot_tune.pipeline.session import Session
from aot_tune.render import Candidate, Rendered
from aot_tune.spec import Kernel, Operator, Parameter, Tensor, dims, parameter, problem, target
from aot_tune.spec.load_operators import bundled_templates, load_operators

(N,) = dims("N")
NEW, OLD = target_by_name("cpu-x86-64-v4-bf16"), target_by_name("cpu-x86-64-v3")
WIDTH = parameter("W") * 4 == target("vector_bytes")


def operator(*kernels: Kernel) -> Operator:
    return Operator(
        name="scale",
        dims=("N",),
        tensors=(Tensor("x", (N,)), Tensor("out", (N,), output=True)),
        reference=lambda xp, call: {"out": call.x},
        flops=N,
        workload=tuple(problem(N=n) for n in (10, 100, 1000)),
        kernels=(Kernel("generic", "g.j2", generic=True), *kernels),
    )


def session_of(one: Operator) -> Session:
    """A session whose renderer renders nothing."""

    def render(_operator: Operator, candidate: Candidate, _target: object) -> Rendered:
        return Rendered(candidate=candidate, source="", digest="", symbol="s", lines=[])

    own = [k for k in one.kernels if not k.generic]
    return cast(Any, SimpleNamespace(kernels_for=lambda *_: own, renderer=SimpleNamespace(render=render)))


def tuned(one: Operator, times: Mapping[tuple[str, int], Sequence[float]]) -> Evidence:
    """Evidence with the ns of kernels of some width on the problems, in their order."""
    found = Evidence(one, NEW, {})
    for (kernel, unroll), row in times.items():
        config = {} if kernel == "generic" else {"W": 16, "UNROLL": unroll}
        candidate = Candidate(
            operator=one.name,
            kernel=kernel,
            backend="cxx",
            target=NEW.name,
            config=config,
            generic=kernel == "generic",
        )
        entry = Entry.of(one, session_of(one).renderer.render(one, candidate, NEW))
        found.try_too([entry])
        for where, ns in zip(one.workload, row, strict=True):
            found.add(
                Measurement(
                    candidate=candidate.id, code="", problem=where, device="d", policy="p", status="ok", screen=(ns,)
                )
            )
    return found


def begun(evidence: Evidence) -> list[tuple[str, Any, list[int]]]:
    """What older CPUs begin with: kernel, UNROLL, and the sizes that it is tried on."""
    sizes = {p.id: p.dims["N"] for p in evidence.workload}
    found = transferred(session_of(evidence.operator), evidence, OLD)
    assert all(e.candidate.target == OLD.name and e.candidate.config["W"] == 8 for e in found)
    return [(e.candidate.kernel, e.candidate.config["UNROLL"], sorted(sizes[p] for p in e.only or ())) for e in found]


ROWS = Kernel(
    "rows",
    "r.j2",
    parameters=(Parameter("W", (8, 16)), Parameter("UNROLL", (1, 2, 4, 8))),
    constraints=(WIDTH,),
    order=({"W": 16, "UNROLL": 2}, {"UNROLL": 8}, {"UNROLL": 4}),
)


def test_what_won_is_tried_on_the_problems_that_it_won_the_fewest_that_won_all_first() -> None:
    evidence = tuned(
        operator(ROWS),
        {
            ("rows", 1): (100.0, 100.0, 300.0),
            ("rows", 2): (102.0, 200.0, 300.0),
            ("rows", 4): (104.0, 200.0, 100.0),
            ("generic", 0): (1.0, 1.0, 1.0),
        },
    )
    # behind them the second best of the first problem; that guess which has another width is none for older CPUs
    guess = ("rows", 8, [10, 100, 1000])
    assert begun(evidence) == [("rows", 1, [10, 100]), ("rows", 4, [10, 1000]), ("rows", 2, [10]), guess]


def test_tiles_of_products_become_those_that_fewer_registers_hold() -> None:
    _, gemm = load_operators([bundled_templates()], ["gemm"])["gemm"]
    kernel = gemm.kernel("packed")
    there, here = (list(kernel.configs(target.facts)) for target in (NEW, OLD))
    rest = {"KC": 512, "MC": 64, "NC": 768, "KU": 4, "PACK_A": True, "PACK_B": True, "PF": 0, "PART": "m"}
    for config, tile in (
        ({"MR": 8, "NV": 3}, (8, 4, 3)),
        ({"MR": 14, "NV": 2}, (8, 6, 2)),
        ({"MR": 6, "NV": 4}, (8, 6, 2)),
    ):
        full = {"VW": 16, **config, **rest}
        assert full in there
        found = most_alike(kernel, here, full)
        assert (found["VW"], found["MR"], found["NV"]) == tile
        assert {n: found[n] for n in rest} == rest
