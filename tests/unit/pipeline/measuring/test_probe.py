"""Several devices of one model: whether they agree on a probe, and how they share a queue."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pipelines import pool_of

from aot_tune.bench.protocol.measurement_records import Measurement, Status
from aot_tune.compile import Object
from aot_tune.pipeline.evidence import Entry, Evidence
from aot_tune.pipeline.measuring.device_pool import DevicePool
from aot_tune.pipeline.measuring.probe import check_agreement
from aot_tune.pipeline.session import LoadedOperator, Session
from aot_tune.render import Candidate, Rendered
from aot_tune.search import Budget
from aot_tune.spec import Kernel, Operator, Problem, Target, Tensor, dims, problem
from aot_tune.support.errors import AotTuneError


def timed(times: tuple[float, ...], status: Status = "ok") -> Measurement:
    return Measurement(
        candidate="generic",
        code="o",
        problem=problem(N=1 << 22),
        device="d",
        policy="p",
        status=status,
        reason="" if status == "ok" else "illegal address",
        screen=times if status == "ok" else (),
    )


def steady(time: float) -> Measurement:
    return timed((time, 1.001 * time, 0.999 * time, time) * 8)


class Probed:
    """What `check_agreement` needs of a session: it compiles at once, and keeps what is printed."""

    def __init__(self, compiles: bool = True, seconds: float | None = None) -> None:
        self.turn = Budget(seconds)
        self.lines: list[str] = []
        self.compiled: list[str] = []
        self.asked: list[str] = []
        self.compiles = compiles
        self.progress = SimpleNamespace(line=self.lines.append)

    def compile(self, entries: list[Entry], what: str) -> None:
        for entry in entries:
            self.compiled.append(entry.candidate.kernel)
            assert what == "probe"
            entry.object = cast(Object, SimpleNamespace(status="ok" if self.compiles else "compile-failed"))


OPERATOR = Operator(
    name="scale",
    dims=("N",),
    tensors=(Tensor("x", (dims("N")[0],)), Tensor("out", (dims("N")[0],), output=True)),
    reference=lambda xp, call: {"out": call.x},
    flops=dims("N")[0],
    workload=(problem(N=8), problem(N=1 << 22)),
    kernels=(Kernel("generic", "g.j2", backend="nvcc", generic=True), Kernel("fast", "f.j2", backend="nvcc")),
)


def pairs() -> list[tuple[LoadedOperator, Evidence]]:
    found = {}
    for kernel in ("fast", "generic"):
        candidate = Candidate(
            operator="scale", kernel=kernel, backend="nvcc", target="cuda-sm_80", generic=kernel == "generic"
        )
        rendered = Rendered(candidate=candidate, source="", digest="", symbol=kernel, lines=[])
        found[candidate.id] = Entry(candidate=candidate, rendered=rendered, requires=())
    target = Target(name="cuda-sm_80", family="cuda", level=80)
    return [(LoadedOperator(Path(), OPERATOR), Evidence(OPERATOR, target, found))]


def probed(
    times: list[Measurement | AotTuneError], session: Probed, meanwhile: Callable[[], None] = lambda: None
) -> tuple[DevicePool, list[str]]:
    """A pool of so many devices after the check; its members say what the probe was."""
    asked = session.asked
    with pool_of(len(times)) as pool:
        for member, told in zip(pool.members, times, strict=True):

            def probe(_loaded: object, where: Problem, entry: Entry, told: Any = told) -> Measurement:
                asked.append(f"{entry.candidate.kernel} {where.id}")
                if isinstance(told, AotTuneError):
                    raise told
                return cast(Measurement, told)

            member.probe = probe  # type: ignore[method-assign]
        check_agreement(cast(Session, session), pool, pairs(), meanwhile)
    return pool, asked


def units(pool: DevicePool) -> list[str]:
    return [b.device.unit for b in pool.benches]


def test_a_device_that_is_off_measures_nothing_and_a_line_says_so() -> None:
    session = Probed()
    pool, _ = probed([steady(100.0), steady(130.0), steady(100.5)], session)
    assert units(pool) == ["GPU-0", "GPU-2"]
    assert session.lines[0].startswith("LEFT OUT GPU GPU-1: it takes 1.294 x the others' time")


@pytest.mark.parametrize("told", [timed((), "crashed"), AotTuneError("no worker")])
def test_a_device_that_cannot_run_the_probe_is_left_out(told: Measurement | AotTuneError) -> None:
    session = Probed()
    pool, _ = probed([told, steady(100.0), steady(100.5)], session)
    assert units(pool) == ["GPU-1", "GPU-2"]
    assert "LEFT OUT GPU GPU-0: the probe failed on it" in session.lines[0]


@pytest.mark.parametrize("compiles", [True, False])
def test_a_probe_that_runs_nowhere_says_nothing_of_the_devices(compiles: bool) -> None:
    session = Probed(compiles)
    pool, asked = probed([timed((), "wrong-result"), timed((), "wrong-result")], session)
    assert len(pool.members) == 2
    assert bool(asked) == compiles
    assert session.lines == ["NOTE no probe ran on any of the 2 devices: they count as equal"]
