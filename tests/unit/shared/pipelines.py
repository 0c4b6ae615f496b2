"""Evidence, benches and crews of made-up devices, for the tests of the pipeline."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from aot_tune.bench.host.findings import Checks
from aot_tune.bench.protocol.measurement_records import Device, Measurement, Status
from aot_tune.pipeline.evidence import Entry, Evidence
from aot_tune.pipeline.failures import Failures
from aot_tune.pipeline.measuring import measure
from aot_tune.pipeline.measuring.device_pool import DevicePool
from aot_tune.pipeline.measuring.lazy_bench import LazyBench
from aot_tune.pipeline.measuring.measure import Measurer
from aot_tune.pipeline.pending import PendingWork
from aot_tune.pipeline.session import LoadedOperator, Session
from aot_tune.render import Candidate, Rendered
from aot_tune.search import Budget
from aot_tune.spec import Expr, Kernel, Operator, Problem, Target, Tensor, dims, problem
from aot_tune.support.errors import AotTuneError
from aot_tune.support.progress import Progress

M, N = dims("M N")
TARGET = Target(name="cpu-x86-64-v3", family="cpu", level=3)
OPERATOR = Operator(
    name="scale",
    dims=("M", "N"),
    tensors=(Tensor("x", (M, N)), Tensor("out", (M, N), output=True)),
    reference=lambda xp, call: {"out": call.x},
    flops=M * N,
    workload=(problem(M=1, N=8), problem(M=64, N=8)),
    kernels=(
        Kernel("generic", "g.j2", generic=True),
        Kernel("fast", "f.j2", requires=(N % 8 == 0,)),
        Kernel("small", "s.j2", worthwhile=(M <= 16,)),
    ),
)


def entry(kernel: str, digest: str, requires: tuple[Expr, ...] = ()) -> Entry:
    candidate = Candidate(
        operator="scale", kernel=kernel, backend="cxx", target=TARGET.name, generic=kernel == "generic"
    )
    rendered = Rendered(candidate=candidate, source="", digest="", symbol="s", lines=[])
    return Entry(candidate=candidate, rendered=rendered, requires=requires, recorded=digest)


def evidence(*entries: Entry) -> Evidence:
    return Evidence(OPERATOR, TARGET, {e.candidate.id: e for e in entries})


def measured(
    one: Entry | str,
    where: Problem,
    times: tuple[float, ...],
    *,
    status: Status = "ok",
    reason: str = "",
    final: tuple[float, ...] | None = None,
) -> Measurement:
    return Measurement(
        candidate=one if isinstance(one, str) else one.candidate.id,
        code="",
        problem=where,
        device="d",
        policy="p",
        status=status,
        reason=reason,
        screen=times,
        final=final,
        race="r" if final else None,
    )


FAST, SMALL, GENERIC = entry("fast", "f", (N % 8 == 0,)), entry("small", "s"), entry("generic", "g")


ONE, TWO = OPERATOR.workload


class StillBench:
    """Stands in for a device: each call takes a second of a clock that stands still otherwise."""

    def __init__(self, status: Status = "ok", fault: AotTuneError | None = None) -> None:
        self.now, self.status, self.fault, self.calls = 0.0, status, fault, 0
        self.referring = 0.0
        self.store = Store()

    def prepare(self, *_: object) -> object:
        if self.fault is not None:
            self.now += 1.0
            raise self.fault
        return self

    def screen(self, *arguments: Any) -> Measurement:
        self.now += 1.0
        self.calls += 1
        found = measured(arguments[1].candidate.id, ONE, (100.0,) if self.status == "ok" else (), status=self.status)
        return msgspec.structs.replace(found, phases={"bench": 1.0})

    def race(self, _prepared: object, entrants: list) -> list[Measurement]:
        self.now += 1.0
        self.calls += 1
        times = (90.0,) if self.status == "ok" else None
        return [measured(e.candidate.id, ONE, (), status=self.status, final=times) for e in entrants]


class Store:
    """Knows nothing."""

    def find(self, *_: object, peek: bool = False) -> None:
        pass

    find_race = put = put_race = find


def measurer(
    monkeypatch: pytest.MonkeyPatch, bench: StillBench, seconds: float | None, failures: Failures | None = None
) -> tuple[Measurer, PendingWork]:
    monkeypatch.setattr(measure, "baseline_versions", lambda _: {})
    monkeypatch.setattr(measure, "operator_digest", lambda _: "")
    budget = Budget(seconds, lambda: bench.now)
    progress = Progress(stream=cast(Any, SimpleNamespace(write=len, flush=lambda: None)), clock=lambda: bench.now)
    session = SimpleNamespace(
        failures=failures if failures is not None else Failures(),
        operators={"scale": LOADED},
        turn=budget,
        budget=budget,
        progress=progress,
        pending=PendingWork(progress, budget),
        checks=Checks(),
        store=SimpleNamespace(operator=lambda *_: bench.store),
        policy_of=lambda _: SimpleNamespace(digest=""),
    )
    device = Device(family="cpu", name="CPU", slug="cpu", identity={"name": "CPU"})
    lazy = LazyBench(cast(Session, session), device)
    lazy._bench = cast(Any, bench)
    monkeypatch.setattr(lazy, "shared_object", lambda _: Path("x"))
    return Measurer(lazy), session.pending


LOADED = cast(LoadedOperator, SimpleNamespace(operator=OPERATOR, folder=Path()))


def session_of(count: int) -> Any:
    """A session with devices that differ only in their unit; `said` are the lines that it prints."""
    devices = [
        Device(family="cuda", name="GPU", slug="cuda-gpu", identity={"name": "GPU"}, unit=f"GPU-{i}")
        for i in range(count)
    ]
    assert len({d.digest for d in devices}) == 1
    lines, left = list[str](), list(devices)
    return SimpleNamespace(
        turn=Budget(None),
        devices=left,
        leave_out=left.remove,
        progress=SimpleNamespace(line=lines.append),
        said=lines,
        checks=Checks(),
    )


def pool_of(count: int, session: Any = None) -> DevicePool:
    """Devices of such a session; no bench is started, for no job asks for one."""
    session = session or session_of(count)
    return DevicePool(session, list(session.devices))
