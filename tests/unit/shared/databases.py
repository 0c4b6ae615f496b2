"""Databases for the tests: any that hypothesis draws, and a small one with everything in it."""

import json
import random
from pathlib import Path
from typing import Any, get_args

import msgspec
from hypothesis import strategies as st

from aot_tune.bench.protocol.measurement_records import Device, Measurement, Policy, Seen, Status
from aot_tune.compile import Object, Variant
from aot_tune.database import CandidateRecord, MeasurementStore, OperatorDatabase, SurveyedShape, encode
from aot_tune.database.records import canonical_database
from aot_tune.render import Candidate, Rendered
from aot_tune.spec import problem

DEVICE = Device(
    family="cpu", name="Test CPU", slug="test-cpu", identity={"model": "Test CPU", "cores": 2, "flags": "avx"}
)
POLICY = Policy()
SEEN = Seen(driver="580.65.06", unit="GPU-1", clock_mhz=(1755, 1980), memory_mhz=(2619, 2619), reasons=4, others=1)
texts = st.text(max_size=30)
digests = st.text("0123456789abcdef", min_size=8, max_size=8)
verdicts = st.dictionaries(
    st.sampled_from(("memcheck", "racecheck")), st.sampled_from(("clean", "reported falsely: x"))
)
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
                sanitized=draw(verdicts) if status == "ok" else {},
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
                        seen=draw(st.none() | st.just(SEEN)),
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


@st.composite
def related(draw: st.DrawFn, whole: OperatorDatabase | None = None) -> list[OperatorDatabase]:
    """Three records of one operator on one device: parts of a whole, in each of which some is measured otherwise."""
    if whole is None:
        whole = draw(databases())
    return [canonical_database(draw(_part(whole))) for _ in range(3)]


@st.composite
def _part(draw: st.DrawFn, whole: OperatorDatabase) -> OperatorDatabase:
    rng = random.Random(draw(st.integers(0, 1 << 32)))
    share = draw(st.sampled_from((0.0, 0.3, 0.7, 1.0)))
    gone = {c.id for c in whole.candidates if rng.random() > 0.9}
    kept = [m for m in whole.measurements if m.candidate not in gone and rng.random() < 0.8]
    races = draw(st.lists(digests, min_size=1, max_size=2))
    survey = tuple(
        msgspec.structs.replace(s, ns={c: ns * rng.choice((1.0, 1.5)) for c, ns in s.ns.items() if c not in gone})
        for s in whole.survey
        if rng.random() < 0.8
    )
    return msgspec.structs.replace(
        whole,
        candidates=tuple(
            msgspec.structs.replace(c, sanitized=c.sanitized if rng.random() < 0.7 else {})
            for c in whole.candidates
            if c.id not in gone
        ),
        problems=tuple(p for p in whole.problems if rng.random() < 0.8),
        measurements=tuple(_again(m, rng, races) if rng.random() < share else m for m in kept),
        survey=survey,
    )


def _again(m: Measurement, rng: random.Random, races: list[str]) -> Measurement:
    """The same candidate, measured anew."""
    status = rng.choice(("ok", "ok", "ok", "skipped", "timeout", "crashed"))
    final = tuple(rng.choice((90.0, 100.0, 120.0)) for _ in range(rng.choice((3, 5)))) if rng.random() < 0.5 else None
    return msgspec.structs.replace(
        m,
        status=status,
        reason="" if status == "ok" else rng.choice(("SIGSEGV", "killed by SIGKILL")),
        screen=tuple(rng.choice((95.0, 100.0)) for _ in range(rng.randrange(3))),
        final=final,
        race=rng.choice(races) if final else None,
        error=0.5,
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
        ).in_digits()
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


def empty_record(operator: str = "gemm", slug: str = DEVICE.slug, **identity: str | int) -> OperatorDatabase:
    """A record that holds nothing, of DEVICE or of one that differs from it by its slug and by more."""
    other = Device(family=DEVICE.family, name=slug, slug=slug, identity={"name": slug, **identity})
    device = DEVICE if slug == DEVICE.slug else other
    nothing: dict[str, Any] = {"candidates": (), "problems": (), "measurements": ()}
    return msgspec.structs.replace(a_database(), operator=operator, device=device, **nothing)


def variants_of(database: OperatorDatabase) -> list[Variant]:
    """A record's candidates, as if they were compiled."""
    return [
        Variant(
            rendered=Rendered(candidate=c.candidate, source="", digest=c.source, symbol="", lines=[]),
            object=Object(digest=c.object, status=c.status),
        )
        for c in database.candidates
    ]


def in_store(root: Path, database: OperatorDatabase) -> Path:
    """The text of a store after a build that measured what a record has: screens, then a race on each problem."""
    store = MeasurementStore(root).operator(
        database.operator, database.contract, DEVICE, POLICY, baselines=database.baselines
    )
    variants = variants_of(database)
    for m in database.measurements:
        store.find(m.candidate, m.code, m.problem)  # as a build does, which reads the text by it
        store.put(msgspec.structs.replace(m, final=None, race=None), variants)
    for one in database.problems:
        store.put_race([m for m in database.measurements if m.problem == one and m.final], variants)
    (path,) = (root / "measurements").glob("*.jsonl")
    return path


def older_text(database: OperatorDatabase, schema: int = 4) -> bytes:
    """A database as schemas 3 and 4 have it: all problems first, surveys in one line, counts at the end, no digests."""
    lines = [json.loads(line) for line in encode(database).splitlines()]
    found: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        (kind,) = line
        if kind == "times":
            survey = next(s["survey"] for s in found["survey"] if s["survey"]["id"] == line[kind]["survey"])
            survey.setdefault("ns", {})[line[kind]["candidate"]] = line[kind]["ns"]
        else:
            found.setdefault(kind, []).append(line)
    found["header"][0]["header"]["schema"] = schema
    for line in found.get("problem", []):
        del line["problem"]["digest"]
    for line in found.get("survey", []):
        del line["survey"]["id"]
    counts = {f"{kind}s": len(found.get(kind, ())) for kind in ("candidate", "problem", "measurement")}
    surveyed = sum(len(next(iter(line["survey"]["dims"].values()))) for line in found.get("survey", ()))
    found["end"] = [{"end": counts | ({"surveyed": surveyed} if surveyed else {})}]
    text = (json.dumps(line, ensure_ascii=False, separators=(",", ":")) for own in found.values() for line in own)
    return "".join(f"{line}\n" for line in text).encode()
