"""Databases for the tests: any that hypothesis draws, and a small one with everything in it."""

from __future__ import annotations

from typing import get_args

import msgspec
from hypothesis import strategies as st

from aot_tune.bench.protocol.measurement_records import Device, Measurement, Policy, Status
from aot_tune.database import CandidateRecord, OperatorDatabase, SurveyedShape
from aot_tune.render import Candidate
from aot_tune.spec import problem

DEVICE = Device(
    family="cpu", name="Test CPU", slug="test-cpu", identity={"model": "Test CPU", "cores": 2, "flags": "avx"}
)
POLICY = Policy()
texts = st.text(max_size=30)
digests = st.text("0123456789abcdef", min_size=8, max_size=8)
times = st.floats(1e-3, 1e12, allow_nan=False)
problems = st.builds(
    problem,
    M=st.integers(0, 4096),
    K=st.integers(0, 2**40),
    order=st.dictionaries(st.sampled_from("ab"), st.permutations((0, 1)), max_size=2),
    strides=st.dictionaries(st.sampled_from("cd"), st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=2),
    present=st.lists(st.sampled_from(("bias", "residual")), unique=True),
    attributes=st.dictionaries(st.just("activation"), st.sampled_from(("gelu", "silu")), max_size=1),
    alignment=st.dictionaries(st.sampled_from("ab"), st.sampled_from((4, 16, 64)), max_size=2),
)
candidates = st.builds(
    Candidate,
    operator=st.just("gemm"),
    kernel=st.sampled_from(("packed", "small", "plain")),
    backend=st.just("cxx"),
    target=st.sampled_from(("cpu-x86-64-v3", "cpu-x86-64-v4")),
    config=st.dictionaries(
        st.sampled_from(("MR", "NR", "PACK", "KIND")), st.integers(0, 99) | st.booleans(), max_size=4
    ),
    pins=st.dictionaries(st.sampled_from("NK"), st.integers(1, 9999), max_size=2),
    generic=st.booleans(),
)


@st.composite
def databases(draw: st.DrawFn) -> OperatorDatabase:
    records, measurements = [], []
    for candidate in draw(st.lists(candidates, max_size=5, unique_by=lambda c: c.id)):
        status = draw(st.sampled_from(("ok", "ok", "compile-failed", "timeout")))
        records.append(
            CandidateRecord(
                candidate=candidate,
                source=draw(digests),
                object=draw(digests) if status == "ok" else "",
                status=status,
                error="" if status == "ok" else draw(texts),
            )
        )
    chosen = draw(st.lists(problems, min_size=1, max_size=4, unique_by=lambda p: p.id))
    subjects = [(r.id, r.code) for r in records] + [("baseline:numpy", "")]
    for one in chosen:
        for name, digest in subjects:
            if draw(st.booleans()):
                status = draw(st.sampled_from(get_args(Status)))
                measurements.append(
                    Measurement(
                        candidate=name,
                        code=digest,
                        problem=one,
                        device=DEVICE.digest,
                        policy=POLICY.digest,
                        status=status,
                        reason=draw(texts),
                        screen=tuple(draw(st.lists(times, max_size=4))),
                        final=draw(st.none() | st.lists(times, min_size=1, max_size=5).map(tuple)),
                        race=draw(st.none() | digests),
                        error=draw(st.none() | st.floats(0, 1.0 if status == "ok" else 1e9)),
                        bitwise=draw(st.none() | st.booleans()),
                        overhead=draw(times),
                        leak=draw(st.integers(0, 1 << 40)),
                        phases={"load": 0.1},
                    )
                )
    surveyed = draw(st.lists(problems, max_size=4, unique_by=lambda p: p.id)) if records else []
    names = st.sampled_from([r.id for r in records] or [""])
    shapes = [SurveyedShape(problem=p, ns=draw(st.dictionaries(names, st.floats(1, 1e9)))) for p in surveyed]
    return OperatorDatabase(
        operator="gemm",
        contract=draw(digests),
        device=DEVICE,
        policy=msgspec.to_builtins(POLICY),
        policy_digest=POLICY.digest,
        toolchains={"cxx": {"version": draw(texts), "driver": draw(digests)}},
        baselines={"numpy": "2.4.6"},
        candidates=tuple(records),
        problems=tuple(chosen),
        measurements=tuple(measurements),
        survey=tuple(shapes),
    )


def a_database(*, scale: float = 1.0, contract: str = "contract", objects: str = "") -> OperatorDatabase:
    records = [
        CandidateRecord(
            candidate=Candidate(
                operator="gemm", kernel="packed", backend="cxx", target=target, config={"MR": mr, "PACK": True}
            ),
            source=f"source{mr}",
            object=f"object{mr}{target[-1]}{objects}",
            status="ok",
        )
        for mr in (4, 6)
        for target in ("cpu-x86-64-v3", "cpu-x86-64-v4")
    ]
    bad = CandidateRecord(
        candidate=Candidate(operator="gemm", kernel="small", backend="cxx", target="cpu-x86-64-v4"),
        source="source-bad",
        object="",
        status="compile-failed",
        error="gemm/small.cpp.j2:7: error: 'é' was not declared",
    )
    workload = [
        problem(M=m, N=4096, K=4096, order={"b": (1, 0)}, present=["bias"], attributes={"activation": "gelu"})
        for m in (1, 16)
    ]
    measurements = [
        Measurement(
            candidate=r.id,
            code=r.code,
            problem=p,
            device=DEVICE.digest,
            policy=POLICY.digest,
            status="ok",
            screen=(1234.56789 * (n + 1) * scale, 1300.0 * (n + 1) * scale),
            final=(1234.0 * (n + 1) * scale, 1240.5 * (n + 1) * scale, 1260.25 * (n + 1) * scale),
            race="race-1",
            error=0.25,
            bitwise=True,
        )
        for p in workload
        for n, r in enumerate(records)
    ]
    measurements.append(
        Measurement(
            candidate="baseline:numpy",
            code="",
            problem=workload[0],
            device=DEVICE.digest,
            policy=POLICY.digest,
            status="ok",
            final=(900.0,),
            race="race-1",
        )
    )
    measurements[-2] = msgspec.structs.replace(
        measurements[-2], status="crashed", reason="SIGSEGV", screen=(), final=None, race=None, error=None, bitwise=None
    )
    return OperatorDatabase(
        operator="gemm",
        contract=contract,
        device=DEVICE,
        policy=msgspec.to_builtins(POLICY),
        policy_digest=POLICY.digest,
        toolchains={"cxx": {"version": "12.2.0", "driver": "abc"}},
        baselines={"numpy": "2.4.6"},
        candidates=(*records, bad),
        problems=tuple(workload),
        measurements=tuple(measurements),
    )
