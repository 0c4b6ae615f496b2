"""The end of a budget: what is kept for the link, what runs is ended, and what was ended does not count."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from pipelines import FAST, GENERIC, LOADED, ONE, SMALL, StillBench, evidence, measured, measurer

from aot_tune.bench.host.bench import Bench
from aot_tune.bench.protocol.measurement_records import Device, Measurement, Status
from aot_tune.database.database_records import rounded
from aot_tune.pipeline.evidence import Entry
from aot_tune.pipeline.failures import Failures
from aot_tune.pipeline.measuring.lazy_bench import LazyBench
from aot_tune.pipeline.scheduling.deadline import ended_with
from aot_tune.pipeline.session import Session
from aot_tune.plan.library_plan import Request, make_plan
from aot_tune.search import Budget
from aot_tune.support.errors import AotTuneError
from aot_tune.support.progress import Progress


def test_what_runs_when_the_budget_ends_is_stopped_again_and_again(no_thread_left: Callable[[], bool]) -> None:
    stopped: list[float] = []
    begun = time.monotonic()
    with ended_with(Budget(0.2), lambda: stopped.append(time.monotonic() - begun)):
        while len(stopped) < 3:
            time.sleep(0.01)
            assert time.monotonic() - begun < 10
    assert stopped[0] >= 0.2
    count = len(stopped)
    time.sleep(0.3)
    assert len(stopped) == count
    assert no_thread_left()


class Held(Bench):
    """A bench that has workers, and nothing else."""

    def __init__(self, *pids: int) -> None:
        self._pids = pids

    @property
    def pool(self) -> Any:
        return SimpleNamespace(workers=lambda: [SimpleNamespace(pid=p) for p in self._pids])


def test_interrupting_a_bench_kills_its_workers() -> None:
    device = Device(family="cpu", name="CPU", slug="cpu", identity={"name": "CPU"})
    bench = LazyBench(cast(Session, SimpleNamespace()), device)
    bench.interrupt()  # nothing runs yet
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        bench._bench = Held(process.pid)
        bench.interrupt()
        assert process.wait(10) == -signal.SIGKILL
    bench.interrupt()  # the worker is gone


def test_compiles_that_are_broken_off_leave_no_failed_object(tmp_path: Path) -> None:
    options = {"AOT_TUNE_TARGETS": "cpu-x86-64", "AOT_TUNE_CACHE": "off"}
    request = Request(name="ops", prefix="ops", header="ops.h", operators=("silu_mul", "softmax"), options=options)
    plan, paths, _ = make_plan(request, {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})
    session = Session(plan, paths, Progress(stream=cast(Any, SimpleNamespace(write=len, flush=lambda: None))))
    entries = [e for loaded in session.operators.values() for e in session.generic_entries(loaded.operator)]

    def ready(_entry: Entry) -> None:
        raise InterruptedError

    try:
        with pytest.raises(InterruptedError):
            session.compile(entries, "", ready)
        assert len(entries) == 6  # one a dtype
        assert [e.object for e in entries] == 6 * [None]
        assert session.generic_entries(session.operators["softmax"].operator)[0] is entries[3]
    finally:
        session.close()


def test_what_the_end_of_the_budget_killed_does_not_count_against_the_candidate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, found = StillBench("oom"), evidence(FAST, GENERIC)
    one, _ = measurer(monkeypatch, bench, seconds=1.0)
    one.screen(LOADED, found, ONE, [FAST, GENERIC])
    assert (bench.calls, found.measurements, found.fresh) == (1, {}, {})
    one.screen(LOADED, found, ONE, [GENERIC])
    assert bench.calls == 1  # nothing begins after the end


def test_what_failed_in_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, found = StillBench("oom"), evidence(FAST, GENERIC)
    one, _ = measurer(monkeypatch, bench, seconds=10.0)
    one.screen(LOADED, found, ONE, [FAST])
    assert found.failed(FAST.candidate.id)


@pytest.mark.parametrize(("status", "final"), [("oom", False), ("ok", True)])
def test_a_race_that_the_end_broke_off_leaves_the_screens_as_they_are(
    monkeypatch: pytest.MonkeyPatch, status: Status, final: bool
) -> None:
    bench, found = StillBench(), evidence(FAST, GENERIC)
    one, _ = measurer(monkeypatch, bench, seconds=3.0)
    one.screen(LOADED, found, ONE, [FAST, GENERIC])
    bench.status = status
    one.race(LOADED, found, ONE)
    row = found.measurements[ONE.id]
    assert {m.status for m in row.values()} == {"ok"}
    assert {m.final is not None for m in row.values()} == {final}
    assert (ONE.id in found.fresh) != final


def test_times_decide_as_they_do_in_a_replay_of_their_record(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, found, replayed = StillBench(), evidence(FAST, SMALL), evidence(FAST, SMALL)
    one, _ = measurer(monkeypatch, bench, seconds=None)
    times = {FAST.candidate.id: (123.4549,) * 5, SMALL.candidate.id: (124.686,) * 5}  # within 1 %, a tie, until rounded
    screened = [measured(c, ONE, t) for c, t in times.items()]
    raced = [measured(c, ONE, (), final=t) for c, t in times.items()]
    monkeypatch.setattr(bench, "screen", lambda *given: screened[given[1].candidate.id == SMALL.candidate.id])
    monkeypatch.setattr(bench, "race", lambda *_: raced)
    one.screen(LOADED, found, ONE, [FAST, SMALL])
    assert {m.screen for m in found.measurements[ONE.id].values()} == {(123.45,) * 5, (124.69,) * 5}
    one.race(LOADED, found, ONE)
    for m in raced:
        assert m.final is not None
        replayed.add(msgspec.structs.replace(m, final=tuple(map(rounded, m.final))))
    assert found.costs() == replayed.costs()
    assert found.costs()[ONE.id][SMALL.candidate.id] == pytest.approx(124.69)


@pytest.mark.parametrize("status", ["wrong-result", "crashed"])
def test_what_was_seen_to_be_wrong_counts_even_after_the_end(monkeypatch: pytest.MonkeyPatch, status: Status) -> None:
    """A kill makes nothing wrong; dropped, a variant that is right on another problem would ship."""
    bench, found = StillBench(status), evidence(FAST, GENERIC)
    one, _ = measurer(monkeypatch, bench, seconds=1.0)
    one.screen(LOADED, found, ONE, [FAST, GENERIC])
    assert found.failed(FAST.candidate.id)
    assert not found.failed(GENERIC.candidate.id)

    bench, found = StillBench(), evidence(FAST, GENERIC)
    one, _ = measurer(monkeypatch, bench, seconds=3.0)
    one.screen(LOADED, found, ONE, [FAST, GENERIC])
    bench.status = status
    one.race(LOADED, found, ONE)
    assert found.failed(FAST.candidate.id)


def test_a_reference_that_the_end_killed_is_no_fault_and_one_that_fails_in_time_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for seconds in (1.0, 10.0):
        bench, found = StillBench(fault=AotTuneError("no reference")), evidence(FAST, GENERIC)
        failures = Failures()
        one, _ = measurer(monkeypatch, bench, seconds, failures)
        one.screen(LOADED, found, ONE, [FAST])
        assert found.measurements == {}
        wanted = [f"{LOADED.operator.name}: no reference"] if seconds > 1.0 else []
        assert failures.told() == wanted


@pytest.mark.parametrize(("slow", "races"), [(95.0, 1), (110.0, 1), (1000.0, 2)])
def test_what_a_disturbed_screen_kept_from_a_race_gets_one_of_its_own(
    monkeypatch: pytest.MonkeyPatch, slow: float, races: int
) -> None:
    """A screen of a lucky moment brought one alone into the race, where it was far slower than the others' screens."""
    bench, found = StillBench(), evidence(FAST, SMALL, GENERIC)
    one, _ = measurer(monkeypatch, bench, seconds=None)
    for each, ns in ((FAST, 50.0), (SMALL, 90.0), (GENERIC, 100.0)):
        monkeypatch.setattr(each, "object", SimpleNamespace(status="ok", code="d"))
        found.add(measured(each, ONE, (ns,)))
    found.fresh[ONE.id] = set(found.entries)
    raced: list[list[str]] = []

    def race(_prepared: None, entrants: list) -> list[Measurement]:
        raced.append([e.candidate.kernel for e in entrants])
        times = {"fast": slow, "small": 91.0, "generic": 101.0}
        return [measured(e.candidate.id, ONE, (), final=(times[e.candidate.kernel],)) for e in entrants]

    monkeypatch.setattr(bench, "race", race)
    one.race(LOADED, found, ONE)
    assert raced == [["fast"], ["small", "generic"]][:races]
    assert found.fresh == {}
    assert min(found.times()[ONE.id].values()) == (slow if races == 1 else 91.0)
