"""The end of a budget: what is kept for the link, what runs is ended, and what was ended does not count."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pipelines import FAST, GENERIC, LOADED, ONE, StillBench, evidence, measurer

from aot_tune.bench.host.bench import Bench
from aot_tune.bench.protocol.measurement_records import Device, Status
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
