"""Code of a Triton function without assumptions is tried where the code with them is among the best."""

from __future__ import annotations

from aot_tune.bench.protocol.measurement_records import Measurement
from aot_tune.pipeline.evidence import Entry, Evidence
from aot_tune.pipeline.prune.after_leader import to_compile, waiting
from aot_tune.pipeline.shipping.finish import least_assuming
from aot_tune.render import Rendered, candidates_for, requirements
from aot_tune.spec import (
    Declarations,
    Kernel,
    KernelParameter,
    Operator,
    Parameter,
    Target,
    Tensor,
    TritonFunction,
    dims,
    problem,
)

(N,) = dims("N")
TARGET = Target(name="cuda-sm_90a", family="cuda", level=90, last=90)
FUNCTION = TritonFunction("k.py:k", {"x": "x", "out": "out", "n": N}, (1,)).inspected(
    {TARGET.name: Declarations(parameters=tuple(KernelParameter(name=n) for n in ("x", "out", "n")))}
)
OPERATOR = Operator(
    name="scale",
    dims=("N",),
    tensors=(Tensor("x", (N,)), Tensor("out", (N,), output=True)),
    reference=lambda xp, call: {"out": call.x},
    flops=N,
    workload=(problem(N=16), problem(N=64)),
    kernels=(
        Kernel("generic", "g.cu.j2", backend="nvcc", generic=True),
        Kernel("rows", backend="triton", triton=FUNCTION, parameters=(Parameter("W", (1, 2)),)),
    ),
)
TIMES = {1: 100.0, 2: 200.0}


def entries() -> tuple[Evidence, list[Entry], list[Entry]]:
    """Evidence without measurements, the entries with assumptions by W, and those without."""
    found: dict[str, Entry] = {}
    for width in TIMES:
        for candidate in candidates_for(OPERATOR, OPERATOR.kernel("rows"), {"W": width}, TARGET):
            name = f"s{candidate.id}"
            rendered = Rendered(candidate=candidate, source=name, digest=name, symbol=name, lines=[])
            guards = requirements(OPERATOR, candidate)
            found[candidate.id] = Entry(candidate=candidate, rendered=rendered, requires=guards)
    evidence = Evidence(OPERATOR, TARGET, found)
    special = [e for e in found.values() if "n%16" in e.candidate.pins]
    return evidence, special, [e for e in found.values() if e not in special]


def measured(evidence: Evidence, special: list[Entry]) -> None:
    for entry in special:
        entry.recorded = entry.rendered.symbol
        for one in evidence.workload:
            evidence.add(
                Measurement(
                    candidate=entry.candidate.id,
                    code=entry.code,
                    problem=one,
                    device="d",
                    policy="p",
                    status="ok",
                    screen=(TIMES[int(entry.candidate.config["W"])],) * 4,
                )
            )


def test_code_without_assumptions_waits_for_the_code_with_them() -> None:
    evidence, special, plain = entries()
    assert (len(special), len(plain)) == (2, 2)
    assert to_compile(evidence, [*special, *plain]) == special
    assert waiting(evidence, [*special, *plain]) == plain
    measured(evidence, special)
    due = to_compile(evidence, plain)
    assert [e.candidate.config for e in due] == [{"W": 1}]
    assert waiting(evidence, plain) == []


def test_what_is_kept_has_the_code_without_assumptions_beside_it() -> None:
    evidence, special, plain = entries()
    assert least_assuming(evidence) == {s.candidate.id: p.candidate.id for s, p in zip(special, plain, strict=True)}
