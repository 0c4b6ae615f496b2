"""Screens and races the candidates of operators on their workloads; what is known from before is not measured again."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from aot_tune.bench import Bench, Device, Measurement, Prepared
from aot_tune.bench import Entry as Entrant
from aot_tune.compile import toolchain_for
from aot_tune.database import OperatorStore, operator_digest
from aot_tune.pipeline.evidence import Entry, Evidence
from aot_tune.pipeline.recorded import Known
from aot_tune.pipeline.session import LoadedOperator, Session, baseline_versions
from aot_tune.report import format_time
from aot_tune.spec import Problem

__all__ = ["Measurer"]

_FINALISTS = 4
_WITHIN = 1.3
"""A race takes the best four of the screen, as far as they are within 1.3 x of the best."""


class Measurer:
    """Measures on one device. The bench and its workers start only when something is not known yet.

    Args:
        session: the build.
        device: measured on.
        known: what committed records know, by operator.
    """

    def __init__(self, session: Session, device: Device, known: Mapping[str, Known]) -> None:
        self._session, self._device, self._known = session, device, known
        self._stack = ExitStack()
        self._bench: Bench | None = None
        self._scratch: Path | None = None
        self._linked: dict[str, Path] = {}
        self.measured = self.reused = 0

    def __enter__(self) -> Measurer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
        self._bench = None

    def measure(self, loaded: LoadedOperator, evidence: Evidence, tick: Callable[[str], None]) -> None:
        """Screen and race the problems of the workload; ends with the budget, after a whole problem."""
        operator = loaded.operator
        store = self._session.store.operator(
            operator.name,
            operator_digest(operator),
            self._device.digest,
            self._session.policy.digest,
            baseline_versions(loaded),
        )
        for i, problem in enumerate(operator.workload):
            if not self._session.budget.allows(0.2):
                left = len(operator.workload) - i
                evidence.note = f"the budget ended before {left} of {len(operator.workload)} problems were measured"
                return
            self._measure(_OneProblem(self, loaded, problem, store), evidence, tick)

    def _measure(self, one: _OneProblem, evidence: Evidence, tick: Callable[[str], None]) -> None:
        tried = evidence.tried(one.problem)
        known = self._known[one.loaded.operator.name]
        recorded = [m for e in tried if (m := known.find(e.candidate.id, one.problem)) is not None]
        if len(recorded) == len(tried):
            self.reused += len(recorded)
            for measurement in (*recorded, *known.baselines(one.problem)):
                evidence.add(measurement)
            for _ in tried:
                tick(f"{one.loaded.operator.name} {one.problem.id}: recorded")
            return
        best: float | None = None
        for entry in tried:
            if not self._session.budget.allows(0.0 if best is None else 1e-9):
                return
            measurement = self._screen(one, entry, best)
            evidence.add(measurement)
            if measurement.ns is not None and (best is None or measurement.ns < best):
                best = measurement.ns
            shown = "nothing yet" if best is None else format_time(best)
            tick(f"{one.loaded.operator.name} {one.problem.id}: best so far {shown}")
        for measurement in self._race(one, evidence, tried):
            evidence.add(measurement)

    def _screen(self, one: _OneProblem, entry: Entry, best: float | None) -> Measurement:
        known = one.store.find(entry.candidate.id, entry.digest, one.problem)
        if known is not None:
            self.reused += 1
            return known
        measurement = self.bench.screen(
            one.prepared(),
            self._shared_object(entry),
            entry.rendered.symbol,
            entry.candidate,
            entry.digest,
            entry.requires,
            best,
        )
        self.measured += 1
        one.store.put(measurement)
        return measurement

    def _race(self, one: _OneProblem, evidence: Evidence, tried: list[Entry]) -> list[Measurement]:
        row = evidence.measurements.get(one.problem.id, {})
        times = {c: m.ns for c, m in row.items() if m.ns is not None}
        finalists = sorted(
            (e for e in tried if e.candidate.id in times), key=lambda e: (times[e.candidate.id], e.candidate.id)
        )
        if not finalists:
            return []
        limit = times[finalists[0].candidate.id] * _WITHIN
        finalists = [e for e in finalists[:_FINALISTS] if times[e.candidate.id] <= limit]
        names = one.baselines()
        subjects = [(e.candidate.id, e.digest) for e in finalists] + [(f"baseline:{n}", "") for n in names]
        known = one.store.find_race(subjects, one.problem)
        if known is not None:
            self.reused += len(known)
            return known
        entrants = [
            Entrant(
                candidate=e.candidate,
                shared_object=self._shared_object(e),
                symbol=e.rendered.symbol,
                object_digest=e.digest,
            )
            for e in finalists
        ]
        raced = self.bench.race(one.prepared(), entrants)
        self.measured += len(raced)
        one.store.put_race(raced)
        return raced

    @property
    def bench(self) -> Bench:
        """The bench, started at first use."""
        if self._bench is None:
            self._scratch = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="aot_tune-bench-")))
            self._bench = self._stack.enter_context(
                Bench(
                    self._device,
                    self._session.policy,
                    scratch=self._scratch,
                    threads=self._session.threads,
                    log=self._session.progress.line,
                )
            )
        return self._bench

    def _shared_object(self, entry: Entry) -> Path:
        """The candidate's object linked for the benchmark, made once."""
        if entry.object is None:  # known from a record, but not on this problem
            self._session.compile([entry], "again")
        assert entry.object is not None
        if entry.digest not in self._linked:
            assert self._scratch is not None or self.bench is not None
            path = Path(str(self._scratch)) / f"{entry.digest[:24]}.so"
            toolchain_for(entry.candidate.backend, self._session.environment).link_shared(
                [Path(entry.object.path)], path
            )
            self._linked[entry.digest] = path
        return self._linked[entry.digest]


class _OneProblem:
    """A problem being measured; its inputs and reference are made when something has to run."""

    def __init__(self, measurer: Measurer, loaded: LoadedOperator, problem: Problem, store: OperatorStore) -> None:
        self._measurer = measurer
        self.loaded, self.problem, self.store = loaded, problem, store
        self._prepared: Prepared | None = None

    def prepared(self) -> Prepared:
        """Inputs and reference."""
        if self._prepared is None:
            self._prepared = self._measurer.bench.prepare(self.loaded.folder, self.loaded.operator, self.problem)
        return self._prepared

    def baselines(self) -> list[str]:
        """Names of the baselines that are installed and can do the problem."""
        here = baseline_versions(self.loaded)
        return [b.name for b in self.loaded.operator.baselines if b.name in here and b.supports(self.problem)]
