"""What isolation costs: the same measurements in sandboxed workers and in this process.

    python benchmarks/isolation.py --problems 21 --rounds 5 --json isolation.json

The bench of a build screens (verifies, then times) candidates of the bundled operators on a few problems and races the
best: once with its worker processes, once with a pool that carries out every request in this process, in rounds of
changing order. A first pass with workers finds candidates that are not right. They are left out, because a crash would
end this process. The start is counted separately: starting workers or their replacement, all imports, and the first
problem of each operator. There a framework loads what it needs, once in a build.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from projects import plan, write_templates

from aot_tune.bench.devices.family import Role
from aot_tune.bench.host.bench import Bench
from aot_tune.bench.host.runner import Entrant
from aot_tune.bench.host.worker_process import Holdings
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Device
from aot_tune.bench.worker.session_of_family import session_of
from aot_tune.pipeline.evidence import Entry
from aot_tune.pipeline.measuring.lazy_bench import LazyBench
from aot_tune.pipeline.session import LoadedOperator, Session
from aot_tune.plan.library_plan import read_plan
from aot_tune.spec import Problem, all_of
from aot_tune.support.progress import Progress

__all__ = ["Here", "main"]

_FINALISTS = 4


class _Worker(Holdings):
    """Replaces a worker: its session is in this process."""

    state = "READY"

    def __init__(self, session: Any, role: Role) -> None:
        super().__init__()
        self.session, self.role, self.pid = session, role, os.getpid()

    def kill(self) -> None:
        """Do nothing: there is no other worker."""


class Here:
    """A pool without processes: no sandbox and no deadlines."""

    def __init__(self, bench: Bench) -> None:
        bench.findings.folder.mkdir(parents=True, exist_ok=True)
        self.deaths = 0
        self._workers = {r: _Worker(session_of(bench.policy, r, bench.device), r) for r in ("candidate", "framework")}

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_failure: object) -> None:
        """Release what the sessions hold of the device. Workers do that when they end."""
        self._workers.clear()
        gc.collect()
        if "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized():
            sys.modules["torch"].cuda.empty_cache()

    def candidates(self) -> _Worker:
        """The worker for candidates."""
        return self._workers["candidate"]

    def frameworks(self) -> _Worker:
        """The worker for references and baselines."""
        return self._workers["framework"]

    def workers(self) -> list[_Worker]:
        """Both workers."""
        return list(self._workers.values())

    def request(self, worker: _Worker, request: messages.Request, _seconds: float) -> messages.Reply:
        """Carry out a request now."""
        reply: messages.Reply = worker.session.handle(request, lambda _progress: None)
        return reply

    def refer(self, request: messages.Request, seconds: float) -> messages.Reply:
        """Ask for a reference."""
        return self.request(self.frameworks(), request, seconds)

    def settle(self) -> None:
        """Do nothing: nothing runs beside what is timed."""

    def quiet(self, _worker: _Worker) -> None:
        """Do nothing: nothing runs beside what is timed."""


@dataclass(frozen=True)
class Job:
    """One problem and the linked candidates that are measured on it."""

    loaded: LoadedOperator
    problem: Problem
    entries: tuple[tuple[Entry, Path], ...]


def _entrant(e: Entry, path: Path) -> Entrant:
    symbol, requires = e.rendered.symbol, e.requires
    return Entrant(candidate=e.candidate, shared_object=path, symbol=symbol, code=e.code, requires=requires)


def measure(bench: Bench, jobs: Sequence[Job]) -> dict[tuple[str, str], str]:
    """Screen and race everything. Returns the status of each problem and candidate."""
    found: dict[tuple[str, str], str] = {}
    for job in jobs:
        prepared = bench.prepare(job.loaded.folder, job.loaded.operator, job.problem)
        times: dict[str, float] = {}
        entrants = [_entrant(e, path) for e, path in job.entries]
        for one in entrants:
            screened = bench.screen(prepared, one, min(times.values(), default=None))
            found[job.problem.id, one.candidate.id] = screened.status
            if screened.ns is not None:
                times[one.candidate.id] = screened.ns
        fastest = sorted(times, key=lambda c: times[c])[:_FINALISTS]
        entrants = [one for one in entrants if one.candidate.id in fastest]
        if entrants:
            bench.race(prepared, entrants)
    return found


def _timed(make: Callable[[], Bench], jobs: Sequence[Job]) -> tuple[float, float, dict[tuple[str, str], str]]:
    """Seconds until the bench is ready, seconds of measuring, and statuses."""
    begin = time.monotonic()
    first, counted = _parted(jobs)
    with make() as bench:
        statuses = measure(bench, first)
        ready = time.monotonic()
        statuses |= measure(bench, counted)
        return ready - begin, time.monotonic() - ready, statuses


def _parted(jobs: Sequence[Job]) -> tuple[list[Job], list[Job]]:
    """The first problem of each operator, and the others."""
    first = {job.loaded.operator.name: job for job in reversed(jobs)}
    return list(reversed(first.values())), [job for job in jobs if first[job.loaded.operator.name] is not job]


def _jobs(session: Session, lazy: LazyBench, device: Device) -> list[Job]:
    target = next(t for t in session.targets if t.family == device.family)
    jobs = []
    for loaded in session.operators.values():
        workload = loaded.operator.workload_for(device.family)
        entries = session.ask(loaded.operator, target) if workload else []
        serving = {p.id: [e for e in entries if _meant(loaded, p, e)] for p in workload}
        session.compile({e.candidate.id: e for row in serving.values() for e in row}.values(), loaded.operator.name)
        for problem in workload:
            mine = tuple((e, lazy.shared_object(e)) for e in serving[problem.id] if e.compiled)
            if mine:
                jobs.append(Job(loaded, problem, mine))
    return jobs


def _meant(loaded: LoadedOperator, problem: Problem, entry: Entry) -> bool:
    """Whether a candidate is tried on a problem."""
    kernel = loaded.operator.kernel(entry.candidate.kernel)
    return all_of((*entry.requires, *kernel.worthwhile), loaded.operator.facts(problem))


def _without(jobs: Sequence[Job], statuses: dict[tuple[str, str], str]) -> list[Job]:
    """The jobs without candidates that are not right."""
    kept = [
        Job(j.loaded, j.problem, tuple(u for u in j.entries if statuses[j.problem.id, u[0].candidate.id] == "ok"))
        for j in jobs
    ]
    return [j for j in kept if j.entries]


def compare(options: argparse.Namespace, folder: Path, say: TextIO) -> dict[str, dict[str, list[float]]]:
    """Seconds of starting and of measuring, by way and round."""
    began = time.monotonic()
    write_templates(folder / "templates", options.family, options.problems, options.operators)
    cache = options.cache or folder / "cache"
    plan(folder / "plan", folder / "templates", options.family, cache)
    session = Session(*read_plan(folder / "plan"), Progress(say))
    device = next(d for d in session.devices if d.family == options.family)
    threads, made = session.threads, 0

    def workers() -> Bench:
        nonlocal made
        made += 1
        return Bench(device, session.policy_of(device.family), scratch=folder / str(made), threads=threads)

    def here() -> Bench:
        bench = workers()
        bench.context.pool = Here(bench)  # type: ignore[assignment]
        return bench

    found: dict[str, dict[str, list[float]]] = {w: {"start": [], "measuring": []} for w in ("workers", "here")}
    try:
        with LazyBench(session, device) as lazy:
            jobs = _jobs(session, lazy, device)
            begin = time.monotonic()
            jobs = _without(jobs, _timed(workers, jobs)[2])
            counted = _parted(jobs)[1]
            if not counted:
                raise SystemExit(
                    "benchmarks: every operator has only one problem, which counts as start; give more problems"
                )
            print(f"{sum(len(j.entries) for j in counted)} screens, {len(counted)} races in a round", file=say)
            order, longest = random.Random(0), 2 * (time.monotonic() - begin)
            for number in range(options.rounds):
                begin = time.monotonic()
                if begin - began + longest > options.seconds:
                    print(f"{options.rounds - number} rounds are left out: there is no time for them", file=say)
                    break
                ways = [("workers", workers), ("here", here)]
                order.shuffle(ways)
                for name, make in ways:
                    start, measuring, _ = _timed(make, jobs)
                    found[name]["start"].append(start)
                    found[name]["measuring"].append(measuring)
                    print(f"round {number}: {name} start {start:.2f} s, measuring {measuring:.2f} s", file=say)
                longest = max(longest, time.monotonic() - begin)
    finally:
        session.close()
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=21, help="problems in all; default 21")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of both ways; default 5")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="rounds that would not end in time are left out"
    )
    parser.add_argument("--family", default="cuda", help="of the device to measure on: cuda (default) or cpu")
    parser.add_argument("--operators", type=lambda text: text.split(","), default=[], help="names; default all")
    parser.add_argument("--cache", type=Path, help="a cache folder with compiled objects")
    parser.add_argument("--json", type=Path, help="write the seconds there")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    options = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = compare(options, Path(folder), sys.stderr)
    if not found["here"]["measuring"]:
        raise SystemExit("benchmarks: no round ended in time; give it more seconds, or fewer problems")
    ratios = [a / b for a, b in zip(found["workers"]["measuring"], found["here"]["measuring"], strict=True)]
    for name, rows in found.items():
        middle = {what: statistics.median(row) for what, row in rows.items()}
        print(f"{name}: start {middle['start']:.2f} s, measuring {middle['measuring']:.2f} s")
    print(f"isolation: {statistics.median(ratios):.3f} x, from {min(ratios):.3f} to {max(ratios):.3f}")
    if options.json:
        options.json.write_text(json.dumps({**found, "ratios": ratios}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
