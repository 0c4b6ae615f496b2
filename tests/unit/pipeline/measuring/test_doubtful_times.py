"""Times that other programs may have spoiled: at the scheduler's ticks, and above those of larger problems."""

import pytest
from small_operators import make_operator

from aot_tune.bench.protocol.measurement_records import Measurement
from aot_tune.compile import Variant, target_by_name
from aot_tune.pipeline.evidence import Evidence
from aot_tune.pipeline.measuring.doubtful_times import doubts
from aot_tune.render import Candidate, Rendered
from aot_tune.spec import Kernel, problem

TICK = 4e6


@pytest.mark.parametrize(
    ("times", "doubtful"),
    [
        ((7.97e6, 9e6, 10e6), {"N=10": "7.97 ms is 2.0 of the scheduler's ticks"}),
        ((1.9e6, 9e6, 12.02e6), {"N=1000": "12.02 ms is 3.0 of the scheduler's ticks"}),
        ((0.04e6, 3.9e6, 70e6), {}),  # far from a tick, or many
        ((1.8e6, 0.19e6, 2.5e6), {"N=10": "it takes 1.80 ms, and 'N=100' 190.00 us, though that is larger"}),
        ((9000, 3000, 1000), {}),  # calls are too short to tell
        ((1.8e6, 1.2e6, 1e6), {}),  # kernels for larger problems may be better
    ],
)
def test_which_times_are_doubtful(times: tuple[float, ...], doubtful: dict[str, str]) -> None:
    operator = make_operator(Kernel("k", "k.j2"), extents="N", workload=tuple(problem(N=n) for n in (10, 100, 1000)))
    candidate = Candidate(operator="scale", kernel="k", backend="cxx", target="cpu-x86-64-v3", config={})
    variant = Variant(rendered=Rendered(candidate=candidate, source="", digest="", symbol="s", lines=[]))
    evidence = Evidence(operator, target_by_name("cpu-x86-64-v3"), {candidate.id: variant})
    for on, ns in zip(operator.workload, times, strict=True):
        given = {"status": "ok", "final": (ns,) * 5, "race": "r", "screen": (ns,)}
        evidence.add(Measurement(candidate=candidate.id, code="", problem=on, device="d", policy="p", **given))
    assert doubts(evidence, [p.id for p in operator.workload], TICK) == doubtful
