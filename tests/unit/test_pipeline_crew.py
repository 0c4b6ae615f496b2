"""Several devices of one model: which of them does what, in which thread, whether they agree, and faults."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aot_tune.bench import Device, Measurement, Status
from aot_tune.compile import Object
from aot_tune.database import Code
from aot_tune.errors import AotTuneError
from aot_tune.pipeline.backlog import Backlog
from aot_tune.pipeline.crew import Crew
from aot_tune.pipeline.evidence import Entry, Evidence
from aot_tune.pipeline.measure import Measurer
from aot_tune.pipeline.probe import check_agreement, deviations
from aot_tune.pipeline.session import LoadedOperator, Session
from aot_tune.pipeline.tune import _nothing_is_known
from aot_tune.render import Candidate, Rendered
from aot_tune.search import Budget
from aot_tune.spec import Kernel, Operator, Problem, Target, Tensor, dims, problem


def crew_of(count: int) -> Crew:
    """Devices that differ only in their unit; no bench is started, for no job asks for one."""
    devices = [
        Device(family="cuda", name="GPU", slug="cuda-gpu", identity={"name": "GPU"}, unit=f"GPU-{i}")
        for i in range(count)
    ]
    assert len({d.digest for d in devices}) == 1
    return Crew(cast(Session, SimpleNamespace(turn=Budget(None))), devices)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_jobs_of_one_number_run_in_order_on_one_device_and_thread(count: int) -> None:
    done: list[tuple[int, int, int, int]] = []
    meet = threading.Barrier(count, timeout=10)

    def job(number: int, turn: int) -> Any:
        def run(measurer: Measurer) -> None:
            if turn == 0 and number < count:
                meet.wait()  # else one device may be done with everything before the others begin
            done.append((number, turn, id(measurer), threading.get_ident()))

        return run

    with crew_of(count) as crew:
        for turn in range(4):  # a device keeps its thread from one call to the next: its workers die with it
            crew.each((number, job(number, turn)) for number in range(7))
    assert len(done) == 28
    by_number = {n: [d for d in done if d[0] == n] for n in range(7)}
    for rows in by_number.values():
        assert [r[1] for r in rows] == [0, 1, 2, 3]
        assert len({r[2:] for r in rows}) == 1
    assert len({d[2] for d in done}) == len({d[3] for d in done}) == count
    assert (threading.get_ident() in {d[3] for d in done}) == (count == 1)


@pytest.mark.parametrize("count", [1, 2])
def test_a_fault_of_a_job_ends_all(count: int) -> None:
    begun: list[int] = []

    def job(number: int) -> Any:
        def run(_measurer: Measurer) -> None:
            begun.append(number)
            if number == 1:
                raise RuntimeError("worker lost")

        return run

    with pytest.raises(RuntimeError, match="worker lost"), crew_of(count) as crew:
        crew.each((number, job(number)) for number in range(100))
    assert 1 in begun


def test_a_fault_on_one_device_ends_what_another_is_busy_with(
    monkeypatch: pytest.MonkeyPatch, no_thread_left: Callable[[], bool]
) -> None:
    """Workers that are only starting are not there to be killed the first time."""
    busy, killed, interrupts, began = threading.Event(), threading.Event(), list[int](), time.monotonic()

    def interrupt() -> None:
        interrupts.append(1)
        if len(interrupts) == 3:
            killed.set()

    def screens(measurer: Measurer) -> None:
        busy.set()
        while not measurer._over:  # as screens and verifications ask before each candidate
            assert time.monotonic() - began < 20
            time.sleep(0.01)
        assert killed.wait(20)

    def fails(_measurer: Measurer) -> None:
        assert busy.wait(20)
        raise KeyboardInterrupt

    with crew_of(2) as crew:
        monkeypatch.setattr(crew, "interrupt", interrupt)
        with pytest.raises(KeyboardInterrupt):
            crew.each([(1, fails), (0, screens), (0, lambda _: pytest.fail("it was begun"))])
    assert killed.is_set()
    assert no_thread_left()


def test_a_device_that_has_nothing_left_to_do_takes_what_belongs_to_none_yet() -> None:
    """One long job costs no other device its time; what it was given before stays its own."""
    done, rest = dict[int, list[int]](), threading.Event()

    def long(measurer: Measurer) -> None:
        assert rest.wait(10)
        done.setdefault(0, []).append(id(measurer))

    def short(number: int) -> Any:
        def run(measurer: Measurer) -> None:
            done.setdefault(number, []).append(id(measurer))
            if len(done) == 6:
                rest.set()

        return run

    with crew_of(2) as crew:
        crew.each([(0, long), *((n, short(n)) for n in range(1, 7))])
        assert len({done[n][0] for n in range(1, 7)} | {done[0][0]}) == 2
        assert len({done[n][0] for n in range(1, 7)}) == 1
        crew.each((n, short(n)) for n in range(7))
    assert all(len(set(ids)) == 1 and len(ids) == 2 for ids in done.values())


def test_every_device_is_started() -> None:
    started: list[int] = []
    with crew_of(3) as crew:
        crew.each_member(lambda measurer: started.append(id(measurer)))
        assert sorted(started) == sorted(map(id, crew.members))


def test_two_devices_work_at_the_same_time() -> None:
    meet = threading.Barrier(2, timeout=10)

    def job(_measurer: Measurer) -> None:
        meet.wait()  # broken, and raises, unless both are here at once

    with crew_of(2) as crew:
        crew.each([(0, job), (1, job)])


def timed(times: tuple[float, ...], status: Status = "ok") -> Measurement:
    return Measurement(
        candidate="generic",
        object="o",
        problem=problem(N=1 << 22),
        device="d",
        policy="p",
        status=status,
        reason="" if status == "ok" else "illegal address",
        screen=times if status == "ok" else (),
    )


def steady(time: float) -> Measurement:
    return timed((time, 1.001 * time, 0.999 * time, time) * 8)


def test_a_device_that_is_off_by_more_than_the_noise_is_told_from_the_others() -> None:
    found = deviations({0: steady(100.0), 1: steady(101.0), 2: steady(112.0), 3: steady(90.0)})
    off = {i for i, (ratio, noise) in found.items() if abs(ratio - 1) > noise}
    assert off == {2, 3}
    assert found[2][0] == pytest.approx(1.12)


def test_of_two_devices_the_slower_one_is_off() -> None:
    found = deviations({0: steady(120.0), 1: steady(100.0)})
    assert found[1][0] == 1.0
    assert found[0][0] == pytest.approx(1.2)


def test_noisy_times_say_less() -> None:
    noisy = timed((100.0, 160.0, 60.0, 120.0, 150.0, 70.0))
    ratio, noise = deviations({0: steady(100.0), 1: noisy})[1]
    assert abs(ratio - 1) <= noise


class Probed:
    """What `check_agreement` needs of a session: it compiles at once, and keeps what is printed."""

    def __init__(self, compiles: bool = True) -> None:
        self.lines: list[str] = []
        self.compiled: list[str] = []
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


def probed(times: list[Measurement | AotTuneError], session: Probed) -> tuple[Crew, list[str]]:
    """A crew of so many devices after the check; its members say what the probe was."""
    asked: list[str] = []
    with crew_of(len(times)) as crew:
        for member, told in zip(crew.members, times, strict=True):

            def probe(_loaded: object, where: Problem, entry: Entry, told: Any = told) -> Measurement:
                asked.append(f"{entry.candidate.kernel} {where.id}")
                if isinstance(told, AotTuneError):
                    raise told
                return cast(Measurement, told)

            member.probe = probe  # type: ignore[method-assign]
        check_agreement(cast(Session, session), crew, pairs())
    return crew, asked


def units(crew: Crew) -> list[str]:
    return [b.device.unit for b in crew.benches]


def test_devices_that_agree_on_the_probe_all_stay() -> None:
    session = Probed()
    crew, asked = probed([steady(100.0), steady(100.5), steady(99.5)], session)
    assert units(crew) == ["GPU-0", "GPU-1", "GPU-2"]
    assert len(crew.members) == 3
    assert set(asked) == {f"generic N={1 << 22}"}  # what moves most of a short read
    assert session.lines == ["3 devices agree on a probe: 1.000, 1.005, 0.995 x its median time"]


def test_a_device_that_is_off_measures_nothing_and_a_line_says_so() -> None:
    session = Probed()
    crew, _ = probed([steady(100.0), steady(130.0), steady(100.5)], session)
    assert units(crew) == ["GPU-0", "GPU-2"]
    assert session.lines[0].startswith("LEFT OUT GPU GPU-1: it takes 1.294 x the others' time")


@pytest.mark.parametrize("told", [timed((), "crashed"), AotTuneError("no worker")])
def test_a_device_that_cannot_run_the_probe_is_left_out(told: Measurement | AotTuneError) -> None:
    session = Probed()
    crew, _ = probed([told, steady(100.0), steady(100.5)], session)
    assert units(crew) == ["GPU-1", "GPU-2"]
    assert "LEFT OUT GPU GPU-0: the probe failed on it" in session.lines[0]


@pytest.mark.parametrize("compiles", [True, False])
def test_a_probe_that_runs_nowhere_says_nothing_of_the_devices(compiles: bool) -> None:
    session = Probed(compiles)
    crew, asked = probed([timed((), "wrong-result"), timed((), "wrong-result")], session)
    assert len(crew.members) == 2
    assert bool(asked) == compiles
    assert session.lines == ["NOTE 2 devices are taken for equal: no probe ran on any of them"]


@pytest.mark.parametrize(
    ("mode", "knew_any", "recorded", "seconds", "early"),
    [
        ("auto", False, "", None, True),
        ("auto", False, "", 60.0, True),
        ("auto", False, "", 0.0, False),
        ("auto", True, "", None, False),
        ("auto", False, "GPU", None, False),
        ("auto", False, "another", None, True),
        ("tune", False, "GPU", None, True),
    ],
)
def test_workers_start_early_where_all_is_to_be_measured_and_there_is_time(
    mode: str, knew_any: bool, recorded: str, seconds: float | None, early: bool
) -> None:
    def device(name: str) -> Device:
        return Device(family="cuda", name=name, slug="cuda-gpu", identity={"name": name})

    session: Any = SimpleNamespace(
        options=SimpleNamespace(mode=mode),
        store=SimpleNamespace(knew_any=knew_any),
        databases=[SimpleNamespace(device=device(recorded))] if recorded else [],
        turn=Budget(seconds),
    )
    assert _nothing_is_known(session, device("GPU")) == early


def test_one_device_needs_no_probe() -> None:
    session = Probed()
    probed([steady(1.0)], session)
    assert (session.compiled, session.lines) == ([], [])


def test_what_a_device_measured_before_it_was_left_out_is_counted_and_the_others_go_on() -> None:
    done: list[int] = []
    meet = threading.Barrier(2, timeout=10)

    def job(measurer: Measurer) -> None:
        if len(crew.members) == 2 and len(done) < 2:
            meet.wait()
        done.append(id(measurer))

    with crew_of(3) as crew:
        crew.members[1].measured = 5
        crew.members[0].spent.update(bench=1.0, race=2.0)
        crew.members[1].spent.update(race=1.5, check=0.5)
        crew.leave_out(1)
        assert crew.measured == 5
        assert list(crew.spent.items()) == [("race", 3.5), ("bench", 1.0), ("check", 0.5)]
        crew.each((n, job) for n in range(2))
        crew.each((n, job) for n in range(2, 6))
        assert set(done) == {id(m) for m in crew.members}
        crew.leave_out(1)
        crew.each((n, job) for n in range(6))  # also those that were the other's
        assert len(done) == 12
    assert units(crew) == ["GPU-0"]


def test_devices_share_a_backlog_by_problems() -> None:
    """Each problem's candidates are screened once, all on one device; none waits while another has two problems."""
    ((loaded, evidence),) = pairs()
    for name, entry in evidence.entries.items():
        entry.recorded = Code(name, "device")
    backlog, screened = Backlog([(loaded, evidence)]), list[tuple[int, str, int]]()
    meet = threading.Barrier(2, timeout=10)
    backlog.add(evidence.entries.values())
    with crew_of(2) as crew:
        for i, member in enumerate(crew.members):

            def screen(_loaded: object, _evidence: object, where: Problem, tried: list[Entry], i: int = i) -> None:
                meet.wait()
                screened.append((i, where.id, len(tried)))

            member.screen = screen  # type: ignore[method-assign, assignment]
        backlog.screen(crew, lambda _: True)
        assert screened == []
        backlog.screen(crew, lambda _: False)
    assert {i for i, *_ in screened} == {0, 1}
    assert sorted(row[1:] for row in screened) == sorted((p.id, 2) for p in OPERATOR.workload)
    assert not backlog
